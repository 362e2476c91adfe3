"""The end of a client: what it gives back, and its held locks; and which frames tell of a call inside a call."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE
from support.scripted_votes import SECOND, Play

import redlatch
from redlatch.drivers.background import run_aside
from redlatch.drivers.connections import Connections
from redlatch.drivers.lifetime import _OUR_FRAMES, HeldLocks, nested
from redlatch.guard.admission import Admissions
from redlatch.guard.marker import MARKER
from redlatch.guard.settings import Guard
from redlatch.masters.listed import masters_of
from redlatch.testing import embedded
from redlatch.wire.dial.connect import dial
from redlatch.wire.engine.fleet import Fleet
from redlatch.wire.engine.net import BootClock

ABOVE = ("_c", "celery", "compat", "demo", "django", "metrics", "operate", "run", "testing")
# A finalizer may run while a function of these packages is on the stack of a thread that drives the sockets.
DRIVEN = ("drivers", "guard", "locks", "masters", "quorum", "sql", "votes", "wire")


def test_every_package_below_a_client_counts_as_its_call() -> None:
    packages = {path.parent.name for path in Path(redlatch.__file__).parent.glob("*/__init__.py")}
    assert packages >= set(DRIVEN)
    # Of the other packages, none is on the stack below a driver.
    assert packages - set(DRIVEN) == set(ABOVE)
    assert all(f"redlatch.{package}.".startswith(_OUR_FRAMES) for package in DRIVEN)


def test_a_call_in_a_thread_that_runs_aside_is_nested() -> None:
    found: list[bool] = []
    done = threading.Event()

    def finalizer(*_: Any) -> None:
        found.append(nested())
        done.set()

    assert not nested()
    assert run_aside("test", finalizer)
    assert done.wait(PATIENCE)
    assert found == [True]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded.masters(1) as [url]:
        yield url


@pytest.mark.parametrize("how", ["close", "disown"])
def test_a_connection_that_broke_just_before_the_end_is_closed(url: str, how: str) -> None:
    masters = masters_of([url])
    connections = Connections(masters, 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    try:
        connections.arrive(0, dial(masters[0], 10.0))
        connections.fleet.torn = True
        connections.fleet.recover()
        [(_, sock)] = connections.fleet.fallen
        getattr(connections, how)()
        assert sock.fileno() == -1
    finally:
        connections.close()


def test_a_connection_that_no_driver_has_taken_is_closed(url: str) -> None:
    [master] = masters_of([url])
    connections = Connections([master], 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    connection = dial(master, 10.0)
    connections.arrivals.append((0, connection))
    connections.close()
    assert connection.sock.fileno() == -1
    assert (connections.lifecycle.closed, connections.lifecycle.usable, connections.is_closing()) == (True, False, True)


def test_the_sockets_of_a_forgotten_client_are_dismissed(url: str) -> None:
    [master] = masters_of([url])
    dismissed: list[socket.socket] = []

    def dismiss(sock: socket.socket) -> None:
        dismissed.append(sock)
        sock.close()

    connections = Connections([master], 1, BootClock(), Fleet, lambda index, outcome: None)
    connections.make_fleet()
    connections.arrive(0, dial(master, 10.0))
    connections.dismiss = dismiss
    del connections
    gc.collect()
    assert len(dismissed) == 1


@pytest.mark.parametrize("where", ["not taken", "waits for the other masters"])
def test_the_collector_finds_no_connection_of_a_forgotten_client_before_the_client(url: str, where: str) -> None:
    """It finalizes the objects of a cycle one by one, here the socket first: "unclosed socket"."""
    masters = masters_of([url, "redis://127.0.0.1:1"])

    def guard(set_back: Any) -> Admissions:
        sources = lambda: 0, lambda: 0.5, lambda number: None
        return Admissions(tuple([m.address for m in masters]), Guard(), MARKER, 1000, 0.01, *sources, set_back)

    gc.collect()
    gc.disable()
    try:
        # Older than its client, so that the collector comes to it first.
        connection = dial(masters[0], 10.0, extension=guard(lambda index, by_ns: None).handshake(0))
        connections = Connections(masters, 2, BootClock(), Fleet, lambda index, outcome: None, guard=guard)
        connections.make_fleet()
        if where == "not taken":
            connections.arrivals.append((0, connection))
        else:
            connections.arrive(0, connection)
        cycle: list[Any] = [connections]
        cycle.append(cycle)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sock = weakref.ref(connection.sock)
            del connection, connections, cycle
            gc.collect()
            assert [str(each.message) for each in caught] == []
            # It is gone, and an open socket would have warned.
            assert sock() is None
    finally:
        gc.enable()


@pytest.fixture
def play(implementation: Any) -> Play:
    return Play(3, build=implementation)


def holder(play: Play, key: bytes, lasts_ns: int = SECOND) -> Any:
    """Return a hold with a lease, which is the head of its queue."""
    hold = play.holds.Hold(key, key, play.plain)
    hold.claim(object())
    assert play.queues.become_head(hold, play.now)
    hold.ask(play.build.module("quorum.lease").new_lease(b"token of " + key, play.now, play.now + lasts_ns))
    hold.keep(0)
    return hold


def sent_by(locks: HeldLocks) -> list[Any]:
    """Return the ballots that it sends now."""
    sent: list[Any] = []
    assert locks.release(sent.extend) is bool(sent)
    return sent


def test_nothing_is_released_before_the_leases_have_ended(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    hold = holder(play, b"a")
    assert sent_by(locks) == []
    assert hold.held(play.now)


def test_each_lease_ends_before_it_is_released_and_is_released_once(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    holds = [holder(play, b"a"), holder(play, b"b")]
    locks.end()
    assert play.quorum.released_ns == play.now
    assert play.quorum.doubts.cover(play.now + 10**18)
    assert [hold.deadline_ns for hold in holds] == [play.now, play.now]
    ballots = sent_by(locks)
    assert [(ballot.command.key, ballot.command.token) for ballot in ballots] == [
        (b"a", b"token of a"),
        (b"b", b"token of b"),
    ]
    assert all(ballot.command.releases for ballot in ballots)
    assert sent_by(locks) == []


def test_a_lock_that_is_kept_after_the_end_is_released_too(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    locks.end()
    assert sent_by(locks) == []
    play.now += 1
    hold = holder(play, b"a")
    [ballot] = sent_by(locks)
    assert ballot.command.token == b"token of a"
    assert not hold.held(play.now)
    # The same object may have been acquired again.
    hold.free()
    again = play.build.module("quorum.lease").new_lease(b"token again", play.now, play.now + SECOND)
    hold.claim(object())
    hold.ask(again)
    hold.keep(0)
    assert [ballot.command.token for ballot in sent_by(locks)] == [b"token again"]


def test_releases_whose_sending_was_interrupted_are_sent_again(play: Play) -> None:
    def interrupted(ballots: list[Any]) -> None:
        raise KeyboardInterrupt

    locks = HeldLocks(play.quorum)
    holder(play, b"a")
    locks.end()
    with pytest.raises(KeyboardInterrupt):
        locks.release(interrupted)
    locks.end()
    assert [ballot.command.key for ballot in sent_by(locks)] == [b"a"]


def test_a_lock_that_is_free_or_being_released_is_left_alone(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    holder(play, b"a").begin_release(play.now)
    holder(play, b"b").free()
    locks.end()
    assert sent_by(locks) == []


@pytest.mark.parametrize(("votes", "reported"), [("yy", False), ("nn", False), ("y!!", True), ("y", True), ("", True)])
def test_locks_without_a_verdict_are_reported(
    play: Play, caplog: pytest.LogCaptureFixture, votes: str, reported: bool
) -> None:
    locks = HeldLocks(play.quorum)
    holder(play, b"a")
    holder(play, b"b")
    locks.end()
    for ballot, cast in zip(sent_by(locks), ("yy", votes), strict=True):
        play.vote(ballot, cast)
    with caplog.at_level(logging.WARNING, "redlatch"):
        locks.report()
    assert ("1 of 2 locks may stay" in caplog.text) is reported


def test_no_attempt_wins_after_the_leases_have_ended_whatever_is_known_of_the_masters(play: Play) -> None:
    play.quorum.doubts.add(play.now, 0)
    HeldLocks(play.quorum).end()
    play.quorum.doubts.clear(0)
    steps = play.batch.acquire_many(play.quorum, [play.holds.Hold("a", b"a", play.plain)], object(), 1000)
    play.run(steps, "yyy")
    assert play.queues.held() == []
