"""How long an acquire tries, and the recovery of calls that were interrupted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.client_queues import World
from support.scripted_votes import KEY, NAME, SECOND, TTL_MS, Play

from redlatch import impl
from redlatch.drivers.lifetime import HeldLocks
from redlatch.errors import ClientClosed, LockError, LockLost


class Interrupted(Exception):
    """Stands for Ctrl-C."""


@pytest.fixture
def world(implementation: impl.Implementation) -> World:
    return World(implementation)


class Recorder:
    """A driver without connections that records what it sends."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.interrupts = 0
        self.woken = 0
        self.status = SimpleNamespace(usable=True)

    def send(self, commands: list[Any]) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise Interrupted
        self.sent += commands

    def wake_called(self) -> None:
        self.woken += 1


@pytest.fixture
def driver() -> Recorder:
    return Recorder()


def attempts(play: Play, driver: Recorder, timeout: float | None) -> int:
    """Return how many attempts an acquire makes, three at most, if all masters refuse it and each takes a second."""
    made = 0
    hold = play.holds.Hold(NAME, KEY, play.plain)
    steps = play.quorum.acquire(hold, TTL_MS, timeout, object())
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
    play.quorum.leave_queue(driver, hold)
    return made


@pytest.mark.parametrize(("timeout", "made"), [(0, 1), (0.5, 1), (1.5, 2), (None, 3)])
def test_an_acquire_tries_until_its_timeout_is_over(
    world: World, driver: Recorder, timeout: float | None, made: int
) -> None:
    assert attempts(world.play, driver, timeout) == made


def claimed(world: World) -> tuple[Any, Any, object]:
    """Return a hold whose attempt is under way, a waiter behind it, and the ticket of the attempt."""
    head = world.holder()
    ticket = object()
    head.free()
    head.claim(ticket)
    head.to_waiting()
    head.ask(world.lease(b"asked", world.now, world.now + SECOND))
    return head, world.waiter(), ticket


def test_an_acquire_that_is_abandoned_is_undone_and_the_next_waiter_is_called(world: World, driver: Recorder) -> None:
    hold, waiter, ticket = claimed(world)
    world.play.quorum.abandon(driver, hold, ticket)
    [undo] = driver.sent
    assert (type(undo).__name__, undo.token) == ("Release", b"asked")
    assert world.called() == [waiter] and driver.woken
    assert hold.state == world.claims.FREE


def test_abandoning_again_or_for_another_ticket_does_nothing(world: World, driver: Recorder) -> None:
    hold, _, ticket = claimed(world)
    world.play.quorum.abandon(driver, hold, object())
    assert not driver.sent and not world.called()
    world.play.quorum.abandon(driver, hold, ticket)
    world.play.quorum.abandon(driver, hold, ticket)
    assert len(driver.sent) == 1


def test_an_abandon_that_is_interrupted_is_completed_by_the_next(world: World, driver: Recorder) -> None:
    hold, waiter, ticket = claimed(world)
    driver.interrupts = 1
    with pytest.raises(Interrupted):
        world.play.quorum.abandon(driver, hold, ticket)
    # The waiter does not wait for the second call.
    assert world.called() == [waiter]
    world.play.quorum.abandon(driver, hold, ticket)
    assert [command.token for command in driver.sent] == [b"asked"]
    assert hold.state == world.claims.FREE


@pytest.mark.parametrize(
    ("error", "sent"), [(KeyboardInterrupt(), True), (ValueError(), True), (LockError("no"), False)]
)
def test_a_release_goes_on_unless_it_has_ended_with_a_lock_error(
    world: World, driver: Recorder, error: BaseException, sent: bool
) -> None:
    hold = world.holder()
    waiter = world.waiter()
    hold.begin_release(world.now)
    world.play.quorum.resend_release(driver, hold, hold.ticket, error)
    assert [command.token for command in driver.sent] == [b"token"] * sent
    assert world.called() == [waiter] * sent


def test_a_release_is_not_resent_for_a_later_claim_of_the_lock_object(world: World, driver: Recorder) -> None:
    hold = world.holder()
    world.waiter()
    world.play.quorum.resend_release(driver, hold, object(), KeyboardInterrupt())
    assert not driver.sent and not world.called()
    assert hold.held(world.now)


def test_a_resent_release_that_is_interrupted_still_leaves_the_queue(world: World, driver: Recorder) -> None:
    hold = world.holder()
    waiter = world.waiter()
    driver.interrupts = 1
    with pytest.raises(Interrupted):
        world.play.quorum.resend_release(driver, hold, hold.ticket, KeyboardInterrupt())
    assert world.called() == [waiter]
    world.play.quorum.resend_release(driver, hold, hold.ticket, KeyboardInterrupt())
    assert len(driver.sent) == 1


def test_a_release_of_a_lock_that_the_closed_client_has_released_says_so(driver: Recorder, world: World) -> None:
    hold = world.holder()
    ticket, token, quorum = hold.ticket, hold.token, world.play.quorum
    # Before it has released its locks, the error of the closed client is all that the caller gets.
    quorum.resend_release(driver, hold, ticket, ClientClosed("client: it is closed"))
    assert hold.state == world.claims.HELD
    HeldLocks(quorum).end()
    # Another claim, or another error, is not about this lock.
    quorum.resend_release(driver, hold, object(), ClientClosed("client: it is closed"))
    quorum.resend_release(driver, hold, ticket, LockError("no quorum"))
    with pytest.raises(LockLost, match=r"released by close\(release=True\)"):
        quorum.resend_release(driver, hold, ticket, ClientClosed("client: it is closed"))
    assert hold.state == world.claims.FREE
    quorum.resend_release(driver, hold, ticket, ClientClosed("client: it is closed"))
    # The lock is released here, because `close` does not find a free hold.
    assert [command.token for command in driver.sent] == [token]
