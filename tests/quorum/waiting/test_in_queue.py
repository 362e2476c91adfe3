"""Waiting in the queue behind another hold of this client."""

from __future__ import annotations

import pytest
from support.client_queues import FOR_EVER, World
from support.scripted_votes import BEGINNING, KEY, NAME, TTL_MS, clock_of

from redlatch import impl


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
