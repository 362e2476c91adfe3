"""Shared fixtures: both implementations, real servers of several kinds, and lock names that are used once."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from support import databases as databases_of_tests
from support.builds import implementation_named
from support.faces import Face
from support.masters import SERVERS, Farm, Keys
from support.proxy import Proxy
from support.restricted import restrict
from support.secrecy import Scanner, scanning
from support.selection import select

# pytest finds these hooks in this module.
from support.timelimit import (  # noqa: F401
    pytest_configure,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
    pytest_unconfigure,
)
from support.without_scripts import use_transactions

from redlatch import Client, impl
from redlatch.testing import embedded

if os.environ.get("REDLATCH_TEST_ACL"):
    restrict()
if os.environ.get("REDLATCH_TEST_WATCH"):
    use_transactions()

# The CI profile of hypothesis has the same settings. With a deadline, an example that takes 0.25 s on a busy machine
# fails its test.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each behaviour once, or everything (see `support.selection`)."""
    select(config, items)


def pytest_collection_finish() -> None:
    """Let the collector of garbage look only at what the tests make. The process has imported a lot, and keeps it.

    A full collection then takes milliseconds instead of half a second, and many tests collect.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def secrecy() -> Iterator[Scanner]:
    """Search every log record and error of the run for secrets; fail at the end if there was a leak."""
    # In drift runs the test counts memory, and the scanner grows with every token.
    if "REDLATCH_DRIFT" in os.environ:
        yield Scanner()
        return
    with scanning() as scanner:
        yield scanner
    assert not scanner.leaks


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGQUIT reach the processes that the tests start.

    A shell without job control starts background jobs with both ignored, and their children inherit this.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(params=["c", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> impl.Implementation:
    """Run the test with an implementation; clients made in the test use it."""
    chosen = implementation_named(request.param)
    monkeypatch.setattr(impl, "current", chosen)
    return chosen


@pytest.fixture(params=["c", "python"], scope="module")
def build(request: pytest.FixtureRequest) -> impl.Implementation:
    """Return an implementation, for tests that hypothesis calls many times."""
    return implementation_named(request.param)


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture
def patient_question(implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the error of a lock that was not won wait for the holder's name as long as a busy machine needs."""
    monkeypatch.setattr(implementation.module("quorum.inquiry"), "LEAST_NS", 10**10)
    monkeypatch.setattr(implementation.module("quorum.inquiry"), "MOST_NS", 10**10)


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


@pytest.fixture
def fleet() -> Iterator[Callable[..., embedded.Masters]]:
    """Start masters that the test may break."""
    with contextlib.ExitStack() as stack:

        def start(count: int = 3, **options: Any) -> embedded.Masters:
            fleet = embedded.masters(count, **options)
            stack.enter_context(fleet)
            return fleet

        yield start


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> str:
    """Return the program of each available server in turn."""
    program = SERVERS[request.param]
    if program is None:
        pytest.skip(f"there is no {request.param} server here")
    return program


@pytest.fixture(params=list(SERVERS))
def server_kind(request: pytest.FixtureRequest) -> str:
    """Return the name of each available server kind in turn, for `Farm.urls`."""
    if SERVERS[request.param] is None:
        pytest.skip(f"there is no {request.param} server here")
    return str(request.param)


@pytest.fixture(params=["threads", "asyncio", "uvloop"])
def connect(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Iterator[Face]:
    """Make clients of each face in turn. All are called the same way and closed after the test."""
    face = Face(request.param)
    yield face
    face.close()


@pytest.fixture
def proxies() -> Iterator[Callable[[list[str]], list[Proxy]]]:
    """Make a proxy in front of each of the given masters."""
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
    """Reserve addresses on which nothing listens."""
    with contextlib.ExitStack() as stack:

        def reserve(count: int) -> list[str]:
            found = []
            for _ in range(count):
                nobody = stack.enter_context(socket.socket())
                nobody.bind(("127.0.0.1", 0))
                found.append(f"redis://127.0.0.1:{nobody.getsockname()[1]}")
            return found

        yield reserve
        # Drop-ins dial until they are collected, and another process may get these ports next.
        gc.collect()


@pytest.fixture(scope="session")
def databases() -> Iterator[Callable[[str], databases_of_tests.Server]]:
    """Return the running server of a kind, "postgresql" or "mariadb"; all tests of a process share it."""
    with contextlib.ExitStack() as stack:
        running: dict[str, databases_of_tests.Server] = {}

        def server(kind: str) -> databases_of_tests.Server:
            if kind not in running:
                running[kind] = stack.enter_context(databases_of_tests.server_of(kind))
            return running[kind]

        yield server


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a lock name that no other test uses."""
    return f"lock-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def client(implementation: impl.Implementation, urls: list[str]) -> Iterator[Any]:
    """Return a client of five masters, on each implementation in turn."""

    with Client(urls) as client:
        yield client


@pytest.fixture
def keys() -> Keys:
    """Read the masters directly."""

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
    """Set the seconds after which a waiter asks the masters again without a wake-up."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(implementation.module("quorum.waiting.contention"), "BACKSTOP_NS", int(seconds * 1e9))

    return set_to


@pytest.fixture
def no_backstop(
    backstop: Callable[[float], None], implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable the backstop, so that a missed wake-up hangs the test. Masters keep silent waiters for 60 s."""
    backstop(3600)
    # By default the masters remove a waiter that has not asked for 2.5 s.
    for kind in ("fair", "readwrite"):
        monkeypatch.setattr(implementation.module(f"quorum.kinds.{kind}"), "ALIVE_MS", b"60000")


@pytest.fixture
def strike() -> Iterator[Any]:
    """Raise one KeyboardInterrupt in the main thread after the given seconds."""
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
