"""While a quorum of masters responds, a waiter soon gets a free lock, whatever the ttl: the rule and past failures."""

from __future__ import annotations

import os

import pytest

from redlatch import impl
from sim import found
from sim.__main__ import every
from sim.schedule import run

SEEDS = {"c": 400, "python": 200}
PLANS = {name: plan for name, plan in found.load().items() if plan.prompt and not plan.shards}


@pytest.mark.parametrize("name", PLANS)
def test_row_42_a_stopped_minority_delays_no_waiter(implementation: impl.Implementation, name: str) -> None:
    assert not run(PLANS[name]).wrong


def test_row_42_no_lock_stays_free_for_long_while_masters_are_silent(implementation: impl.Implementation) -> None:
    name = implementation.name
    batches = every(0, SEEDS[name], os.cpu_count() or 1, name, theme="stopped")
    wrong = [seed for batch in batches for seed, _ in batch.wrong]
    assert not wrong, f"python -m tests.sim --theme stopped --impl {name} --seed {wrong[0]}"
