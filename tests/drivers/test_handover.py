"""The way of a client from one list to the next: its looks at new masters, and the change of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from operate.test_mover import TTL, mover, use
from support.builds import implementation_named
from support.faces import await_true, wins

from redlatch import Client, ConfigurationError, impl
from redlatch.drivers.arrivals import DIAL_TIMEOUT
from redlatch.drivers.handover import STRIDE, MovingConnections, SuccessorProbe, offset
from redlatch.guard.handover import Successor
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import DEFAULT_GUARD
from redlatch.masters.listed import masters_of
from redlatch.testing import embedded
from redlatch.wire.dial.connect import Connection, Dialler, dial
from redlatch.wire.engine.fleet import Fleet

Fleets = Callable[..., embedded.Masters]


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with embedded.masters(5) as masters:
        use(list(masters[:2]))
        yield list(masters)


class Dials:
    """A dialler that notes what it should dial."""

    def __init__(self, *given: Any) -> None:
        self.started: list[tuple[int, float]] = []
        self.closed = False

    def start(self, index: int, pause: float, extension: Any) -> None:
        self.started.append((index, pause))

    def close(self) -> None:
        self.closed = True


def probe_of(old: list[str], new: list[str], postpone: Callable[[], None] = lambda: None) -> Any:
    previous, names = (tuple(sorted(url.removeprefix("redis://") for url in urls)) for urls in (old, new))
    successor = Successor(masters_of(new), lambda set_back: None, MARKER, previous, names)
    return SuccessorProbe(successor, lambda index, outcome: None, Dials, postpone)


def look(url: str) -> Connection:
    [master] = masters_of(url)
    return dial(master, DIAL_TIMEOUT, False, GuardHandshake(MARKER))


def test_a_probe_looks_once_and_again_only_if_it_is_needed(urls: list[str]) -> None:
    probe = probe_of(urls[:2], urls[2:])
    probe.start()
    probe.start()
    assert probe._dialler.started == [(0, 0.0), (1, 0.0), (2, 0.0)]
    seen = look(urls[2])
    assert not probe.finds(0, seen, False)
    assert seen.sock.fileno() == -1
    assert len(probe._dialler.started) == 3
    probe.start()
    assert probe._dialler.started[3:] == [(0, 0.0)]
    assert not probe.finds(0, look(urls[2]), True)
    assert probe._dialler.started[4][1] > 0
    assert not probe.finds(0, ConnectionRefusedError(), True)
    assert len(probe._dialler.started) == 5


def test_a_probe_looks_later_if_no_thread_can_start(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an attack: the error left the driver in the middle of its work."""
    postponed: list[bool] = []
    probe = probe_of(urls[:2], urls[2:4], lambda: postponed.append(True))

    def fail(*given: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Dials, "start", fail)
        probe.start()
    assert postponed == [True, True]
    probe.start()
    assert [index for index, _ in probe._dialler.started] == [0, 1]


def test_masters_that_came_by_no_handover_are_not_gone_over_to(urls: list[str]) -> None:
    probe = probe_of(urls[2:], urls[:2])
    assert not probe.finds(0, look(urls[0]), False)


def test_outcomes_of_different_lists_have_different_indexes() -> None:
    got: list[int] = []
    offset(lambda index, outcome: got.append(index), STRIDE)(2, ConnectionRefusedError())
    assert got == [STRIDE + 2]


@pytest.fixture(scope="module")
def moved(urls: list[str]) -> tuple[list[str], list[str]]:
    mover(urls[:2], urls[2:]).run()
    return urls[:2], urls[2:]


def connections_of(old: list[str], new: list[str]) -> tuple[Any, Any]:
    """Return the connections of a client, which dials nobody, and its quorum."""
    client = Client(old, ttl=TTL)
    guard = client._admissions_of(client._masters, DEFAULT_GUARD)
    successor = client._successor_of(new, DEFAULT_GUARD)
    assert successor is not None
    given = client._masters, client._quorum, Fleet, lambda index, outcome: None, False, Dials, guard, successor
    return MovingConnections(*given), client._quorum


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Call a function and interrupt it before a line of `_go_over`; return whether it came to that line."""
    lines = iter(range(line))

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name != "_go_over":
            return None
        if event == "line" and next(lines, None) is None:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_interrupt_anywhere_in_the_change_is_made_good_by_the_next_try(moved: tuple[list[str], list[str]]) -> None:
    """A driver takes an outcome off only after it was dealt with."""
    old, new = moved
    for line in count():
        connections, quorum = connections_of(old, new)
        fleet = connections.make_fleet()
        outcome = look(new[0])
        struck = interrupted_at(line, partial(connections.arrive, STRIDE, outcome))
        # Another thread may ask at any moment.
        known = connections.health().masters, connections.stats(), connections.causes()
        assert {len(each) for each in known} <= {2, 3}
        if struck:
            connections.arrive(STRIDE, outcome)
        assert [link.address for link in fleet.links] == [url.removeprefix("redis://") for url in new]
        assert (fleet.size, fleet.quorum, quorum.majority, connections.quorum) == (3, 2, 2, 2)
        assert [index for index, _ in connections._dialler.started] == [0, 1, 2]
        assert connections.untried == {0, 1, 2}
        connections.close()
        if not struck:
            break
    assert line > 10


def test_an_outcome_of_a_list_that_was_left_is_turned_away(moved: tuple[list[str], list[str]]) -> None:
    old, new = moved
    connections, _ = connections_of(old, new)
    connections.make_fleet()
    connections.arrive(STRIDE, look(new[0]))
    late = look(old[0])
    connections.arrive(0, late)
    assert late.sock.fileno() == -1
    connections.close()


def test_next_must_be_other_masters_and_needs_a_guard(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="the masters that the client has already"):
        Client(urls[:2], next=urls[:2])
    with pytest.raises(ConfigurationError, match="needs a guard"):
        Client(urls[:2], next=urls[2:], guard=None)
    with pytest.raises(ConfigurationError, match="masters"):
        Client(urls[:2], next=[])
    with pytest.raises(ConfigurationError, match="next: sentinel:g is in both lists"):
        Client("redis+sentinel://127.0.0.1:1/g", next="redis+sentinel://127.0.0.1:2/g")


@pytest.fixture
def slow_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a thread that connects sleep just after it has started a dialling thread, as on a busy machine."""
    start = Dialler.start

    def start_and_sleep(*given: Any) -> None:
        start(*given)
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.2)

    monkeypatch.setattr(Dialler, "start", start_and_sleep)


def test_a_left_master_is_looked_at_again_though_it_answered_before_dialling_returned(
    fleet: Fleets, slow_starts: None
) -> None:
    one, other = ([url] for url in fleet(2).urls)
    use(one)
    mover(one, other).run()
    with Client(one, ttl=TTL) as client:
        assert not wins(client.lock("job"))
        mover(other, one).run()
        await_true(lambda: wins(client.lock("job")))


def test_a_new_master_is_looked_at_again_though_it_answered_before_dialling_returned(
    fleet: Fleets, slow_starts: None
) -> None:
    one, other = ([url] for url in fleet(2).urls)
    use(one)
    with Client(one, next=other, ttl=TTL) as client:
        with client.lock("job"):
            pass
        mover(one, other).run()
        await_true(lambda: wins(client.lock("job")))


def test_connecting_again_inside_a_call_of_the_same_thread_leaves_the_role_to_that_call(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """A signal handler or a finalizer may do this."""
    # The parts of the compiled driver cannot be reached.
    monkeypatch.setattr(impl, "current", implementation_named("python"))
    with Client(url) as client:
        driver: Any = client._driver
        leader = driver._leader
        assert leader.take_role()
        driver.connect()
        assert leader.has_role()
        driver._connections._dialled.pop()
        driver._connected = False
        driver.connect()
        # The outer call takes it.
        assert leader.has_role() and list(driver._connections.arrivals) == [(0, None)]
        leader.take_all()
        assert driver._connections.all_dialled() and not driver._connections.arrivals
        leader.leave()
        assert wins(client.lock("job"))


def test_an_error_while_masters_are_dialled_reaches_the_caller_and_the_next_call_dials_the_rest(
    fleet: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Dialler.start

    def fail(dialler: Dialler, index: int, *given: Any) -> None:
        if index == 1:
            raise MemoryError
        start(dialler, index, *given)

    client = Client(fleet(3).urls)
    with monkeypatch.context() as patched:
        patched.setattr(Dialler, "start", fail)
        with pytest.raises(MemoryError):
            client.connect()
    client.connect()
    assert all(master.voting for master in client.health().masters)
    client.close()
