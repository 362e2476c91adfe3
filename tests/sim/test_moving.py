"""A handover that crashes at each step; `python -m tests.sim --theme moving` runs more of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlatch import impl
from sim.drawing import draw
from sim.plan import Move
from sim.schedule import run
from sim.themes_moving import LAST, STEPS

# The delays of a write whose mover has crashed; a master refuses one that is older than five seconds.
LATE = (0.001, 1.0, 4.0, 6.0)


@pytest.mark.parametrize("how", ["before", "after", "late"])
def test_a_handover_goes_on_after_a_crash_at_any_step(implementation: impl.Implementation, how: str) -> None:
    for step in range(1, STEPS + 1):
        moves = Move(0.3, step, how, LATE[step % len(LATE)]), Move(2.0), Move(LAST)
        assert not run(replace(draw(step, "moving"), moves=moves)).wrong


def test_two_movers_at_once_end_one_handover(implementation: impl.Implementation) -> None:
    for seed in range(20):
        moves = Move(0.3), Move(0.3 + seed / 1000), Move(LAST)
        assert not run(replace(draw(seed, "moving"), moves=moves)).wrong


def test_a_handover_ends_unless_the_schedule_ends_before(implementation: impl.Implementation) -> None:
    ended = 0
    for seed in range(20):
        result = run(replace(draw(seed, "moving"), moves=(Move(0.3),), faults=()), tracing=True)
        ended += any("mover" in line and "final:" in line for line in result.trace)
    assert ended >= 15
