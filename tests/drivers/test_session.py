"""The session: how long an acquire tries, and the recovery of calls that were interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from support.client_queues import World
from support.forked import in_child
from support.scripted_votes import KEY, NAME, SECOND, TTL_MS, Play

from redlatch import Client, impl
from redlatch.errors import ClientClosed, LockError, LockLost
from redlatch.masters.listed import masters_of
from redlatch.wire.dial.connect import Dialler


class Interrupted(Exception):
    """Stands for Ctrl-C."""


@pytest.fixture
def world(implementation: impl.Implementation) -> World:
    return World(implementation)


class Sessions:
    """A session without connections that records what it sends, and has the queues of a world."""

    def __init__(self, world: World) -> None:
        self.sent: list[Any] = []
        self.interrupts = 0
        self.woken = 0
        outer = self

        class Recorder(world.play.build.module("drivers.session").Session):  # type: ignore[misc]
            def send(self, commands: list[Any]) -> None:
                if outer.interrupts:
                    outer.interrupts -= 1
                    raise Interrupted
                outer.sent += commands

            def wake_called(self) -> None:
                outer.woken += 1

        masters = masters_of([f"redis://{address}" for address in world.play.quorum.masters])
        self.session: Any = Recorder(masters, world.play.quorum, True, Dialler, None)
        self.play = world.play


@pytest.fixture
def sessions(world: World) -> Sessions:
    return Sessions(world)


def attempts(sessions: Sessions, timeout: float | None) -> int:
    """Return how many attempts an acquire makes, three at most, if all masters refuse it and each takes a second."""
    play, made = sessions.play, 0
    hold = play.holds.Hold(NAME, KEY, play.plain)
    hold.claim(object())
    steps = sessions.session.acquiring(hold, TTL_MS, timeout)
    for effect in steps:
        if type(effect).__name__ == "Pause":
            play.now = effect.until_ns
        else:
            effect.no, effect.decided = effect.size, True
        if type(effect).__name__ == "Ballot":
            made += 1
            play.now += SECOND
        if made == 3:
            break
    steps.close()
    sessions.session.leave_queue(hold)
    return made


@pytest.mark.parametrize(("timeout", "made"), [(0, 1), (0.5, 1), (1.5, 2), (None, 3)])
def test_an_acquire_tries_until_its_timeout_is_over(sessions: Sessions, timeout: float | None, made: int) -> None:
    assert attempts(sessions, timeout) == made


def claimed(world: World) -> tuple[Any, Any, object]:
    """Return a hold whose attempt is under way, a waiter behind it, and the ticket of the attempt."""
    head = world.holder()
    ticket = object()
    head.free()
    head.claim(ticket)
    head.to_waiting()
    head.ask(world.lease(b"asked", world.now, world.now + SECOND))
    return head, world.waiter(), ticket


def test_an_acquire_that_is_abandoned_is_undone_and_the_next_waiter_is_called(world: World, sessions: Sessions) -> None:
    hold, waiter, ticket = claimed(world)
    sessions.session.abandon(hold, ticket)
    [undo] = sessions.sent
    assert (type(undo).__name__, undo.token) == ("Release", b"asked")
    assert world.called() == [waiter] and sessions.woken
    assert hold.state == world.claims.FREE


def test_abandoning_again_or_for_another_ticket_does_nothing(world: World, sessions: Sessions) -> None:
    hold, _, ticket = claimed(world)
    sessions.session.abandon(hold, object())
    assert not sessions.sent and not world.called()
    sessions.session.abandon(hold, ticket)
    sessions.session.abandon(hold, ticket)
    assert len(sessions.sent) == 1


def test_an_abandon_that_is_interrupted_is_completed_by_the_next(world: World, sessions: Sessions) -> None:
    hold, waiter, ticket = claimed(world)
    sessions.interrupts = 1
    with pytest.raises(Interrupted):
        sessions.session.abandon(hold, ticket)
    # The waiter does not wait for the second call.
    assert world.called() == [waiter]
    sessions.session.abandon(hold, ticket)
    assert [command.token for command in sessions.sent] == [b"asked"]
    assert hold.state == world.claims.FREE


@pytest.mark.parametrize(
    ("error", "sent"), [(KeyboardInterrupt(), True), (ValueError(), True), (LockError("no"), False)]
)
def test_a_release_goes_on_unless_it_has_ended_with_a_lock_error(
    world: World, sessions: Sessions, error: BaseException, sent: bool
) -> None:
    hold = world.holder()
    waiter = world.waiter()
    hold.begin_release(world.now)
    sessions.session.resend_release(hold, hold.ticket, error)
    assert [command.token for command in sessions.sent] == [b"token"] * sent
    assert world.called() == [waiter] * sent


def test_a_release_is_not_resent_for_a_later_claim_of_the_lock_object(world: World, sessions: Sessions) -> None:
    hold = world.holder()
    world.waiter()
    sessions.session.resend_release(hold, object(), KeyboardInterrupt())
    assert not sessions.sent and not world.called()
    assert hold.held(world.now)


def test_a_resent_release_that_is_interrupted_still_leaves_the_queue(world: World, sessions: Sessions) -> None:
    hold = world.holder()
    waiter = world.waiter()
    sessions.interrupts = 1
    with pytest.raises(Interrupted):
        sessions.session.resend_release(hold, hold.ticket, KeyboardInterrupt())
    assert world.called() == [waiter]
    sessions.session.resend_release(hold, hold.ticket, KeyboardInterrupt())
    assert len(sessions.sent) == 1


def test_extending_all_gives_each_hold_its_own_error(implementation: impl.Implementation) -> None:
    play = Play(build=implementation)
    assert play.acquire("yyy")
    kept = play.hold
    play.hold = play.holds.Hold(NAME, KEY + b"2", play.plain)
    assert play.acquire("yyy")
    errors: dict[int, LockError] = {}
    extending_all = implementation.module("drivers.session").extending_all
    play.run(
        extending_all(play.quorum, [(kept, TTL_MS, kept.token), (play.hold, TTL_MS, play.hold.token)], errors),
        "nnn",
        "yyy",
    )
    assert list(errors) == [0] and isinstance(errors[0], LockLost)
    assert play.hold.held(play.now)


def test_the_state_says_whether_the_client_can_be_used(implementation: impl.Implementation, three: list[str]) -> None:
    client = Client(three)
    driver: Any = client._driver
    assert (driver.state, driver.forked) == ("not connected", False)
    client.connect()
    assert driver.state.endswith("of 3 connected")

    def look() -> None:
        assert (driver.state, driver.forked) == ("of the parent process", True)

    in_child(look)
    client.close()
    assert driver.state == "closed"


def test_a_release_of_a_lock_that_the_closed_client_has_released_says_so(sessions: Sessions, world: World) -> None:
    hold = world.holder()
    ticket, token, session = hold.ticket, hold.token, sessions.session
    # Before it has released its locks, the error of the closed client is all that the caller gets.
    session.resend_release(hold, ticket, ClientClosed("client: it is closed"))
    assert hold.state == world.claims.HELD
    session.held_locks.end()
    # Another claim, or another error, is not about this lock.
    session.resend_release(hold, object(), ClientClosed("client: it is closed"))
    session.resend_release(hold, ticket, LockError("no quorum"))
    with pytest.raises(LockLost, match=r"released by close\(release=True\)"):
        session.resend_release(hold, ticket, ClientClosed("client: it is closed"))
    assert hold.state == world.claims.FREE
    session.resend_release(hold, ticket, ClientClosed("client: it is closed"))
    # The lock is released here, because `close` does not find a free hold.
    assert [command.token for command in sessions.sent] == [token]
