"""`Connections`: what a caller sees of a list of masters while they are dialled for the first time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hiredis import ProtocolError
from redis.exceptions import ResponseError

from redlatch.drivers.connections import Connections
from redlatch.errors import ConfigurationError, MasterQuarantined
from redlatch.guard.admission import Admissions
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import Guard
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Found
from redlatch.testing import embedded
from redlatch.wire.dial.connect import LONGEST_PAUSE, Connection, dial
from redlatch.wire.dial.switches import Switch
from redlatch.wire.engine.fleet import Fleet
from redlatch.wire.engine.net import BootClock

OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded.masters(1) as [url]:
        yield url


class Watched:
    """A socket that notes when it is closed whether `is_complete` says that every master has been tried."""

    def __init__(self, connection: Connection, connections: Connections, seen: list[bool]) -> None:
        self.sock, self.connections, self.seen = connection.sock, connections, seen

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.seen.append(self.connections.is_complete())
        self.sock.close()


def test_nobody_sees_all_masters_tried_before_the_last_verdict_stands(url: str) -> None:
    # Else a caller between the two would take a wrong list for a good one.
    masters = masters_of([url, url.replace("127.0.0.1", "localhost")])
    connections = Connections(masters, 2, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    try:
        connections.arrive(0, dial(masters[0], 10.0))
        assert not connections.is_complete()
        twin, seen = dial(masters[1], 10.0), list[bool]()
        twin.sock = Watched(twin, connections, seen)  # type: ignore[assignment]
        connections.arrive(1, twin)
        assert seen == [False]
        assert connections.is_complete()
        with pytest.raises(ConfigurationError, match=r"^masters\[1\]: .*run_id"):
            connections.check()
    finally:
        connections.close()


def test_a_connection_may_say_that_leases_are_in_doubt(url: str) -> None:
    masters = masters_of([url])
    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    try:
        first, second = dial(masters[0], 10.0), dial(masters[0], 10.0)
        assert not connections.arrive(0, first)
        connections.fleet.drop(0, ConnectionResetError())
        second.traits.doubted_ns = 1234
        # Returns that leases must be verified.
        assert connections.arrive(0, second)
        assert connections._doubts.cover(1233) and not connections._doubts.cover(1234)
    finally:
        connections.close()


class Sentinel:
    """A master whose sentinels the test plays, and what is dialled."""

    def __init__(self, url: str) -> None:
        [self.master] = masters_of("redis+sentinel://127.0.0.1:1/g")
        [direct] = masters_of(url)
        self.dialled: list[int] = []
        self.hurried: list[int] = []
        self.connections = Connections(
            [self.master], 1, BootClock(), Fleet, lambda index, outcome: None, dialler=lambda *_: self
        )
        self.connections._switches.listen = lambda index: None
        self.connections.make_fleet()
        self.direct = direct

    def start(self, index: int, *_: Any) -> None:
        self.dialled.append(index)

    def hurry(self, index: int) -> None:
        self.hurried.append(index)

    def close(self) -> None:
        """Nothing is dialled."""

    def connection(self) -> Connection:
        """Return a connection as if the sentinels had just named the server."""
        assert self.master.group is not None
        connection = dial(self.direct, 10.0)
        connection.found = Found(OLD, self.master.group.number_question())
        return connection

    def switch(self, address: tuple[str, int]) -> Switch:
        """Note what the listener has found, and return what it reports."""
        group = self.master.group
        assert group is not None
        return Switch(address, group.note(Found(address, group.number_question())))


@pytest.fixture
def sentinel(url: str) -> Iterator[Sentinel]:
    sentinel = Sentinel(url)
    yield sentinel
    sentinel.connections.close()


def test_the_connection_to_a_former_master_is_closed_and_another_one_made(sentinel: Sentinel) -> None:
    connections = sentinel.connections
    connections.arrive(0, sentinel.connection())
    assert connections.fleet.links[0].up
    connections.arrive(0, sentinel.switch(NEW))
    assert not connections.fleet.links[0].up
    [(link, sock)] = connections.fleet.fallen
    sock.close()
    connections.fleet.fallen.clear()
    connections.redial(link)
    assert (sentinel.dialled, sentinel.hurried) == ([0], [0])


def test_a_switch_to_the_master_that_is_connected_changes_nothing(sentinel: Sentinel) -> None:
    connections = sentinel.connections
    connections.arrive(0, sentinel.connection())
    for _ in range(3):
        connections.arrive(0, sentinel.switch(OLD))
    assert connections.fleet.links[0].up
    # A repeated answer is no reason to dial a master sooner.
    assert (sentinel.dialled, sentinel.hurried) == ([], [0])


@pytest.mark.parametrize("heard_first", [False, True])
def test_a_switch_and_a_connection_may_arrive_in_any_order(sentinel: Sentinel, heard_first: bool) -> None:
    connections = sentinel.connections
    connection = sentinel.connection()
    switch = sentinel.switch(NEW)
    arrivals: list[Any] = [switch, connection] if heard_first else [connection, switch]
    for arrival in arrivals:
        connections.arrive(0, arrival)
    assert not connections.fleet.links[0].up
    assert connection.sock.fileno() == -1
    assert sentinel.dialled == [0]
    assert not connections.untried
    connections.check()


class Interrupted(Admissions):
    """A guard whose client another thread closes just before a connection is judged."""

    connections: Connections

    def decide(self, *args: Any) -> Any:
        self.connections.close()
        return super().decide(*args)


def test_a_connection_that_is_judged_while_the_client_closes_is_closed_without_an_error(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    masters = masters_of([url])
    made = list[Interrupted]()

    def guard(set_back: Any) -> Admissions:
        numbers: list[int] = []
        sources = lambda: 0, lambda: 0.5, numbers.append
        made.append(Interrupted((masters[0].address,), Guard(), MARKER, 1000, 0.01, *sources, set_back))
        return made[0]

    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None, guard=guard)
    connections.make_fleet()
    made[0].connections = connections
    connection = dial(masters[0], 10.0, extension=made[0].handshake(0))
    connections.arrive(0, connection)
    assert connection.sock.fileno() == -1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Confused(Admissions):
    """A guard that fails at its second decision."""

    decided = False

    def decide(self, *args: Any) -> Any:
        if self.decided:
            raise RuntimeError("an error in the guard")
        self.decided = True
        return super().decide(*args)


def test_an_error_while_a_connection_waits_closes_it_and_has_the_master_dialled_again(url: str) -> None:
    """The master may be dialled twice, after an interrupt. The connection was dropped, and no other one was made."""
    masters, made = masters_of([url, "redis://127.0.0.1:1"]), list[NoDialler]()

    def guard(set_back: Any) -> Admissions:
        sources = lambda: 0, lambda: 0.5, lambda number: None
        return Confused(tuple([m.address for m in masters]), Guard(), MARKER, 1000, 0.01, *sources, set_back)

    def dialler(*given: Any) -> Any:
        made.append(NoDialler())
        return made[0]

    connections = Connections(masters, 2, BootClock(), Fleet, lambda index, outcome: None, guard=guard, dialler=dialler)
    connections.make_fleet()
    try:
        connection = dial(masters[0], 10.0, extension=guard(lambda index, by_ns: None).handshake(0))
        connections.arrive(0, connection)
        assert connection.sock.fileno() >= 0
        connections.arrive(0, ConnectionRefusedError("the second time it was dialled"))
        assert connection.sock.fileno() == -1
        assert made[0].pauses == [LONGEST_PAUSE]
        assert isinstance(connections.causes()[masters[0].name], RuntimeError)
    finally:
        connections.close()


UNEXPECTED = ConnectionError("a:1 answered with 'WHAT'; the connection was closed")
REFUSED = ResponseError("NOREPLICAS Not enough good replicas to write.")


class NoDialler:
    """A dialler that notes the pauses before it would dial."""

    def __init__(self, *_: Any) -> None:
        self.pauses: list[float] = []

    def start(self, index: int, pause: float = 0.0, extension: Any = None) -> None:
        self.pauses.append(pause)

    def close(self) -> None:
        pass


def broken_again(url: str, causes: list[BaseException], seconds: float) -> list[float]:
    """Have each new connection break for a cause, so many seconds after it was adopted; return the pauses after it."""
    [master], made = masters_of([url]), list[NoDialler]()
    clock, now = BootClock(), 0

    class Clock:
        def now(self) -> int:
            return now

    def dialler(*given: Any) -> Any:
        made.append(NoDialler())
        return made[0]

    def make_fleet(addresses: list[str], quorum: int, _: Any, guarded: bool, room: int) -> Any:
        return Fleet(addresses, quorum, clock, guarded, room)

    its_clock: Any = Clock()
    connections = Connections([master], 1, its_clock, make_fleet, lambda index, outcome: None, dialler=dialler)
    connections.make_fleet()
    try:
        for cause in causes:
            connections.arrive(0, dial(master, 10.0))
            now += int(seconds * 10**9)
            connections.fleet.torn = True
            connections.fleet.recover()
            [(link, sock)] = connections.fleet.fallen
            connections.fleet.fallen.clear()
            sock.close()
            link.cause = cause
            connections.redial(link)
    finally:
        connections.close()
    return made[0].pauses


@pytest.mark.parametrize("cause", [UNEXPECTED, REFUSED, ProtocolError("no RESP")])
def test_a_master_that_soon_ends_each_connection_by_a_reply_is_dialled_after_growing_pauses(
    url: str, cause: Exception
) -> None:
    """Found by an attack: it was dialled hundreds of times a second."""
    assert broken_again(url, [cause] * 7, 0.1) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_connection_that_lasted_or_that_the_network_broke_is_made_again_at_once(url: str) -> None:
    assert broken_again(url, [UNEXPECTED] * 2, 1.0) == [0.0] * 2
    quarantined = MasterQuarantined("it was flushed", doubted_ns=1)
    assert broken_again(url, [ConnectionResetError(), quarantined, TimeoutError()], 0.1) == [0.0] * 3
    assert broken_again(url, [UNEXPECTED, ConnectionResetError(), UNEXPECTED], 0.1) == [0.05, 0.0, 0.05]
