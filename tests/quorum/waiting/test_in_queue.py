"""Waiting in the queue behind another hold of this client."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.client_queues import FOR_EVER, World
from support.scripted_votes import BEGINNING, KEY, MS, NAME, SECOND, TTL_MS, clock_of

from redlatch import impl
from redlatch.errors import QuorumUnavailable


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_acquire_that_meets_a_head_that_leaves_asks_the_masters(
    implementation: impl.Implementation, moment: int
) -> None:
    # Another thread leaves while this one reads the clock for the first, second or third time.
    world = World(implementation)
    head, hold = world.holder(), world.holds.Hold(NAME, KEY, world.play.plain)
    hold.claim(object())
    policies, looked = implementation.module("quorum.policy"), iter(range(1, 1000))

    def now() -> int:
        if next(looked) == moment:
            world.leave(head)
            head.free()
        return BEGINNING

    policy = policies.Policy(
        masters=world.policy.masters,
        drift_factor=0.01,
        attempt_ns=None,
        retry=policies.Retry(),
        clock=clock_of(implementation, now),
        random=lambda: 0.5,
        tokens=world.policy.tokens,
        fences=world.policy.fences,
    )
    effect = next(world.play.acquire_module.acquire(policy, world.queues, hold, TTL_MS, FOR_EVER))
    assert isinstance(effect, world.ballots.Ballot)
    assert type(effect.command).__name__ == "Acquire"
    assert world.head() is hold and world.queues.by_key == {}


def second_of_two(world: World, give_up_ns: int) -> Any:
    """Return the steps of an acquire behind a head that asks the masters, which waits in the queue."""
    head, hold = world.hold(), world.holds.Hold(NAME, KEY, world.play.plain)
    assert world.queues.become_head(head, world.play.now)
    hold.claim(object())
    steps = world.play.acquire_module.acquire(world.policy, world.queues, hold, TTL_MS, give_up_ns)
    assert type(next(steps)).__name__ == "QueueEntry"
    return steps


def lost(world: World) -> Any:
    """Return the ballot of an attempt in which two masters have failed."""
    ballot = world.policy.ballot(world.play.commands.Look(KEY))
    world.play.vote(ballot, "!!")
    return ballot


def test_a_waiter_whose_time_ends_while_the_head_rides_out_a_lost_quorum_raises(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, outage_ns=60 * SECOND)
    steps = second_of_two(world, BEGINNING + SECOND)
    world.policy.outage.note(lost(world), BEGINNING, BEGINNING + MS)
    world.play.now = BEGINNING + SECOND
    with pytest.raises(QuorumUnavailable, match="of 3 masters 2 failed") as caught:
        next(steps)
    assert caught.value.elapsed == 1.0
    assert world.queues.by_key == {}


@pytest.mark.parametrize("outage_ns", [0, 60 * SECOND])
def test_a_waiter_whose_time_ends_is_only_late_without_an_outage(
    implementation: impl.Implementation, outage_ns: int
) -> None:
    world = World(implementation, outage_ns=outage_ns)
    steps = second_of_two(world, BEGINNING + SECOND)
    world.policy.outage.note(lost(world), BEGINNING, BEGINNING + MS)
    if outage_ns:
        world.policy.outage.end()
    world.play.now = BEGINNING + SECOND
    assert list(steps) == []


def test_a_waiter_behind_a_holder_is_only_late_although_the_quorum_is_lost(
    implementation: impl.Implementation,
) -> None:
    world = World(implementation, outage_ns=60 * SECOND)
    steps = second_of_two(world, BEGINNING + SECOND)
    head = world.head()
    head.ask(world.lease(b"token", BEGINNING, FOR_EVER))
    head.keep(0)
    world.policy.outage.note(lost(world), BEGINNING, BEGINNING + MS)
    world.play.now = BEGINNING + SECOND
    assert list(steps) == []


def test_waiters_that_become_the_head_later_ride_out_the_same_outage(implementation: impl.Implementation) -> None:
    """Otherwise each of them would ride it out anew, one after the other."""
    world = World(implementation, outage_ns=2 * SECOND)
    steps = second_of_two(world, FOR_EVER)
    head = world.head()
    world.policy.outage.note(lost(world), BEGINNING, BEGINNING + 2 * SECOND)
    # The head gives up.
    world.play.now = BEGINNING + 2 * SECOND
    world.leave(head)
    head.free()
    with pytest.raises(QuorumUnavailable) as caught:
        world.play.follow(steps, itertools.repeat("!!"))
    # It has waited for as long itself, and asks nobody.
    assert not world.play.of("Ballot")
    assert caught.value.elapsed == 2.0


@pytest.mark.parametrize(("gave_up", "asks"), [(1, True), (2, False)])
def test_without_patience_a_waiter_asks_unless_two_heads_found_no_quorum(
    implementation: impl.Implementation, gave_up: int, asks: bool
) -> None:
    """Otherwise the waiters of a name would find the same silent masters one after the other."""
    world = World(implementation)
    steps = second_of_two(world, FOR_EVER)
    head = world.head()
    for _ in range(gave_up):
        started, world.play.now = world.play.now, world.play.now + SECOND
        world.policy.outage.note(lost(world), started, world.play.now)
        world.policy.outage.give_up(started)
    world.leave(head)
    head.free()
    if asks:
        assert type(next(steps).command).__name__ == "Acquire"
    else:
        with pytest.raises(QuorumUnavailable):
            next(steps)
