"""The grounds of the scenarios: masters on TCP, on unix sockets, behind TLS, and sick masters."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.blackhole import BlackHole
from bench.contender import Absent
from bench.tls import certify, trusting
from redlatch.errors import ConfigurationError
from redlatch.testing import embedded


@dataclass(frozen=True)
class Ground:
    """A set of running masters.

    Args:
        urls: lists of URLs by the names that entries use: "all" for the fleet's own masters, "3" for three masters.
        pids: the processes of the fleet's own masters.
        spoil: makes the chosen masters sick; called when all contenders have connected. None if all stay healthy.
    """

    urls: dict[str, list[str]]
    pids: list[int]
    spoil: Callable[[], None] | None = None


Wanted = frozenset[str]


@contextmanager
def loopback(fleet: embedded.Masters, wanted: Wanted) -> Iterator[Ground]:
    """Yield the race's own fleet on loopback TCP; start more masters if an entry needs more."""
    urls = {"all": fleet.urls}
    with ExitStack() as stack:
        for name in wanted - {"all"}:
            enough = int(name) <= len(fleet.urls)
            urls[name] = fleet.urls[: int(name)] if enough else stack.enter_context(embedded.masters(int(name)))
        yield Ground(urls, [pid for pid in fleet.pids if pid])


@contextmanager
def unix(fleet: embedded.Masters, wanted: Wanted) -> Iterator[Ground]:
    """Yield as many masters on unix sockets as the fleet has; "tcp" is the fleet itself."""
    with embedded.masters(len(fleet.urls), unix=True) as urls:
        yield Ground({"all": urls, "tcp": fleet.urls}, [])


@contextmanager
def tls(fleet: embedded.Masters, wanted: Wanted) -> Iterator[Ground]:
    """Yield as many masters behind TLS as the fleet has; "tcp" are masters of the same program without TLS.

    Raises:
        Absent: no installed server was built with TLS, or no certificate can be made.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-")))
        directives = certify(folder)
        for server in filter(
            None, (embedded.find_server(), shutil.which("valkey-server"), shutil.which("redis-server"))
        ):
            try:
                urls = stack.enter_context(embedded.masters(len(fleet.urls), server=server, config=directives))
            except ConfigurationError:
                # This server was built without TLS.
                continue
            plain = stack.enter_context(embedded.masters(len(fleet.urls), server=server))
            yield Ground({"all": [trusting(url, directives) for url in urls], "tcp": plain}, [])
            return
        raise Absent("no installed server was built with TLS; put a valkey-server or redis-server with TLS on PATH")


@contextmanager
def sickbed(fleet: embedded.Masters, wanted: Wanted) -> Iterator[Ground]:
    """Yield the fleet, and lists in which one or two of its masters are replaced by masters that will become sick.

    "three" lists three masters of the fleet; "stopped-1-of-3" lists two of them and one that will be stopped.
    """
    healthy = fleet.urls
    beds = embedded.masters(4)
    with beds as (*stopped, dead, dead_too), ExitStack() as stack:
        holes = [stack.enter_context(BlackHole(url)) for url in healthy[-2:]]
        urls = {"all": healthy, "three": healthy[:3], "stopped-1-of-3": [*healthy[:2], stopped[0]]}
        illnesses = {"stopped": stopped, "refused": [dead, dead_too], "swallowed": [hole.url for hole in holes]}
        for illness, patients in illnesses.items():
            urls[f"{illness}-1"] = [*healthy[:-1], patients[-1]]
            urls[f"{illness}-2"] = [*healthy[:-2], *patients]

        def spoil() -> None:
            for number in (0, 1):
                beds.pause(number)
                beds.kill(number + 2)
                holes[number].swallow()

        yield Ground(urls, [], spoil)


GROUNDS: dict[str, Callable[[embedded.Masters, Wanted], AbstractContextManager[Ground]]] = {
    "loopback": loopback,
    "unix": unix,
    "tls": tls,
    "sickbed": sickbed,
}
