"""Random histories of conditions and latches on both builds: no call and no count is lost."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from support.selection import ALL

from redlatch import impl
from sim.conditions import BEGIN, History, Story, run, simulate
from sim.parts import Fault

# Sanitizers make everything slower.
SLOWER = 10 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1
# How many histories run on the compiled build; a third of them on the other one.
HISTORIES = int(os.environ.get("REDLATCH_HISTORIES", "80" if ALL else "25"))
SEEDS = {"c": HISTORIES // SLOWER, "python": HISTORIES // 3 // SLOWER}


def test_no_history_loses_a_call_or_a_count(implementation: impl.Implementation) -> None:
    called = returned = 0
    for seed in range(SEEDS[implementation.name]):
        wrong, _, history = simulate(seed)
        assert not wrong, f"seed {seed}: {wrong[0]}"
        called += history.called
        returned += history.returned
    # The histories are not empty ones.
    assert called > returned > SEEDS[implementation.name] / 2


def test_a_seed_fixes_everything_that_happens(implementation: impl.Implementation) -> None:
    for seed in range(4):
        assert simulate(seed)[1].digest() == simulate(seed)[1].digest()


def story(seed: int, consumers: int, faults: tuple[Fault, ...] = (), *strikes: Fault) -> Story:
    """Return a history of consumers and one producer of one item, each with its own client, and faults at the call."""
    return Story(
        seed=seed,
        masters=3,
        pushes=True,
        clients=(0.0,) * (consumers + 1),
        consumers=tuple(range(consumers)),
        producers=((consumers, 1),),
        impatient=False,
        counters=(),
        count=1,
        waiters=(),
        faults=faults,
        cancels=(),
        strikes=tuple((0, strike) for strike in strikes),
    )


# What happens when a call is made, to a waiter or to the masters that have the call or know the waiter: the number of
# consumers, faults before it, faults that follow it, and by how many seconds they come later with each seed. A call
# takes about 15 ms the first time.
RACES: dict[str, tuple[int, list[Fault], list[Fault], float]] = {
    "a waiter is killed before the call": (2, [], [Fault(0.0, "kill", (0,))], 0.0),
    "a waiter is killed as it is called, or as it waits for the lock": (2, [], [Fault(0.01, "kill", (0,))], 0.0005),
    "a waiter is stopped for longer than a call stays": (1, [], [Fault(0.0, "pause", (0, 25.0))], 0.0),
    "the only master that knows both the waiter and the call is lost": (
        1,
        [Fault(BEGIN / 2, "block", (0, 2, "both", 5.5)), Fault(BEGIN / 2, "block", (1, 0, "both", 60.0))],
        [Fault(0.0, "block", (0, 1, "both", 60.0)), Fault(0.1, "stop", (1, 60.0))],
        0.0,
    ),
    "a master forgets the call": (
        1,
        [],
        [Fault(0.0, "block", (0, 1, "both", 4.0)), Fault(0.1, "restart_empty", (1, 0.1))],
        0.0,
    ),
}


def run_race(race: str, seed: int) -> tuple[list[str], History]:
    """Run one race; return the broken rules."""
    consumers, faults, strikes, later = RACES[race]
    struck = [replace(strike, at=strike.at + seed * later) for strike in strikes]
    wrong, _, history = run(story(seed, consumers, tuple(faults), *struck))
    return wrong, history


@pytest.mark.parametrize("race", RACES)
def test_a_call_that_races_with_a_crash_is_not_lost(implementation: impl.Implementation, race: str) -> None:
    taken = 0
    for seed in range(16):
        wrong, history = run_race(race, seed)
        assert not wrong, f"seed {seed}: {wrong[0]}"
        taken += history.taken
    assert taken
