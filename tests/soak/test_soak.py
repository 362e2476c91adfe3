"""A hundred seconds of the soak, and a test of its judge. For a longer run: `make soak HOURS=1`."""

from __future__ import annotations

import sys

import pytest
from sim.grants import Grant

from soak.run import Judge, soak

# A process counts as warm after half a minute, and is measured for a minute.
SECONDS = 100.0


@pytest.mark.slow("real processes with a fault every three seconds")
@pytest.mark.skipif(sys.platform != "linux", reason="the sizes of processes are read from /proc")
def test_a_hundred_seconds_of_faults_break_nothing() -> None:
    result = soak(SECONDS, masters=5, processes=8, every=3.0, seed=1, tell=print)
    assert not result.wrong
    assert result.figures["grants"] > 1000
    assert sum(result.figures["faults"].values()) >= SECONDS / 3 - 2
    # These are the processes that are never killed.
    assert len(result.figures["growth (KiB, descriptors)"]) >= 4


def grant(who: str, fence: int, start: int, end: int) -> Grant:
    return Grant(who, "x", "fence", fence, start, start, end)


def test_the_judge_finds_overlaps_and_decreasing_fences_across_its_looks() -> None:
    judge = Judge()
    judge.look([grant("a", 5, 0, 100), grant("b", 6, 200, 300)], 250)
    assert (judge.grants, judge.wrong) == (1, [])
    judge.look([grant("c", 6, 290, 400), grant("d", 7, 900, 950)], 500)
    assert (judge.overlaps, judge.fences) == (1, 1)
    judge.look([], 1000)
    assert (judge.overlaps, judge.fences) == (1, 1)
