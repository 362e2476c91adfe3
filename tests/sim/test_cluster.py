"""Schedules on a cluster whose slots move and whose shards fail over; `python -m tests.sim --theme slots` runs more."""

from __future__ import annotations

import os

import pytest
from support.selection import ALL

from redlatch import impl
from sim import found
from sim.__main__ import every
from sim.drawing import CLUSTERS, draw
from sim.schedule import run

SEEDS = {"c": 400 if ALL else 40, "python": 100 if ALL else 20}
PLANS = {name: plan for name, plan in found.load().items() if plan.shards}


@pytest.mark.parametrize("theme", CLUSTERS)
def test_no_schedule_on_a_cluster_breaks_a_rule(implementation: impl.Implementation, theme: str) -> None:
    name = implementation.name
    wrong = [seed for batch in every(0, SEEDS[name], os.cpu_count() or 1, name, theme=theme) for seed, _ in batch.wrong]
    assert not wrong, f"python -m tests.sim --theme '{theme}' --impl {name} --seed {wrong[0]}"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_a_cluster_that_once_broke_a_rule_breaks_none(implementation: impl.Implementation, name: str) -> None:
    assert not run(PLANS[name]).wrong


@pytest.mark.parametrize("theme", CLUSTERS)
def test_a_seed_fixes_everything_that_happens_on_a_cluster(implementation: impl.Implementation, theme: str) -> None:
    for seed in range(5):
        assert run(draw(seed, theme)) == run(draw(seed, theme))
