"""Clocks: offsets, jumps, and which of two clocks has jumped."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch.guard.clock import CONFIRM_NS, ClockState, Leap, Offset, judge_leap
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import MAX_TTL, STRICT, Rig, is_marked, kept_out_for


@pytest.mark.parametrize("seconds", [0.05, 11.0])
def test_a_clock_that_was_set_forward_keeps_its_master_out(seconds: float) -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = int(seconds * 1_000_000)
    trouble = rig.pulse(0)
    assert "set forward" in str(trouble)
    assert trouble.doubted_ns == rig.now - 1000
    assert rig.pulse(1) is None
    assert is_marked(rig.decide(0))
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1
    other = rig.again()
    other.ahead_us = rig.ahead_us
    assert kept_out_for(other.decide(0)) > MAX_TTL - 1 - seconds


def test_a_clock_that_was_set_forward_while_nobody_was_connected_is_seen_when_somebody_is() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.pulse(1) is None
    assert not rig.decide(0).admitted  # it has a marker to write first
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1


def test_a_jump_is_not_judged_while_nothing_is_known_of_the_others() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.pulse(0) is not None
    admission = rig.decide(0)
    assert not admission.admitted
    assert 0 < admission.wait_ns < SECOND
    rig.now += SECOND
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1  # and the others are not told
    assert not rig.marker(0).out


def test_if_all_clocks_jump_alike_our_own_clock_stood_still() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us = [7_000_000, 7_000_100, 6_999_900]
    assert all(rig.pulse(index) is not None for index in range(3))
    assert all(rig.decide(index).admitted for index in range(3))
    rig.now += SECOND
    assert all(rig.pulse(index) is None for index in range(3))
    assert all(not rig.marker(index).out for index in range(3))


def test_a_minority_that_jumps_alike_is_no_clock_of_ours() -> None:
    rig = Rig(addresses=("a:1", "b:1", "c:1", "d:1", "e:1")).found()
    rig.now += SECOND
    rig.ahead_us[:2] = [60_000_000, 60_000_000]
    assert all(rig.pulse(index) is not None for index in range(2))
    assert not any(rig.decide(index).admitted for index in range(2))  # the others have not answered yet
    assert all(rig.pulse(index) is None for index in range(2, 5))
    for index in range(2):
        assert not rig.decide(index).admitted  # it has a marker to write first
        assert kept_out_for(rig.decide(index)) > MAX_TTL - 1


def test_clocks_that_jump_by_different_times_keep_nobody_else_out() -> None:
    """A client that stood still, and asks its masters one after another, must not speak for all clients."""
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us = [10_000_000, 9_600_000, 10_300_000]
    assert all(rig.pulse(index) is not None for index in range(3))
    rig.now += SECOND
    for index in range(3):
        rig.decide(index)
        assert not rig.marker(index).out


def test_a_jump_of_a_single_master_is_not_written_for_other_clients() -> None:
    rig = Rig(STRICT, addresses=("a:1",)).found()
    rig.now += SECOND
    rig.ahead_us[0] = 1_000_000
    assert rig.pulse(0) is not None
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1
    assert not rig.marker(0).out


def test_the_offset_of_clocks_that_go_at_other_rates_is_no_jump() -> None:
    offset = Offset(0.01)
    for second in range(1, 100):
        now = second * SECOND
        assert offset.note(now, now + MILLISECOND, int(second * 1_009_000)) == 0


@pytest.mark.parametrize("by_ns", [30 * MILLISECOND, 5 * SECOND, -30 * MILLISECOND, -5 * SECOND])
def test_the_offset_of_a_clock_that_is_set_is_a_jump_by_about_as_much(by_ns: Any) -> None:
    offset = Offset(0.01)
    for second in range(1, 10):
        assert offset.note(second * SECOND, second * SECOND + MILLISECOND // 2, second * 1_000_000) == 0
    jump = offset.note(10 * SECOND, 10 * SECOND + MILLISECOND // 2, 10_000_000 + by_ns // 1000)
    assert abs(jump - by_ns) < 15 * MILLISECOND


LEAP, AT = Leap(5 * SECOND, 100 * SECOND), 100 * SECOND


@pytest.mark.parametrize(
    ("others", "size", "later_ns", "state"),
    [
        ([], 3, 0, ClockState.FORWARD_UNHEARD),
        ([], 3, CONFIRM_NS, ClockState.FORWARD_UNCLEAR),
        ([], 1, 0, ClockState.FORWARD_UNCLEAR),
        ([None], 3, 0, ClockState.FORWARD),
        ([LEAP], 3, 0, ClockState.OURS_STOOD_STILL),
        ([LEAP], 5, 0, ClockState.FORWARD_UNHEARD),
        ([LEAP, LEAP], 5, 0, ClockState.OURS_STOOD_STILL),
        ([LEAP, LEAP, None], 5, 0, ClockState.FORWARD),
        ([LEAP._replace(by_ns=5 * SECOND + 20 * MILLISECOND)], 3, 0, ClockState.FORWARD_UNHEARD),
        ([LEAP._replace(at_ns=AT - CONFIRM_NS)], 3, 0, ClockState.FORWARD_UNHEARD),
        ([LEAP._replace(at_ns=AT - 2 * CONFIRM_NS - 1)], 3, 0, ClockState.FORWARD),
    ],
)
def test_a_jump_is_judged_by_the_other_clocks(others: Any, size: Any, later_ns: Any, state: Any) -> None:
    assert judge_leap(LEAP, others, size, AT + later_ns) is state


def test_a_jump_whose_marker_could_not_be_written_is_written_again() -> None:
    """A raise of the horizon comes between the look and the write. Found by an attack: the doubt was lost."""
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[0] = 5_000_000
    for index in range(3):
        rig.pulse(index)
    assert not rig.decide(0).admitted
    rig.raise_horizon(0, 7000)
    assert not rig.decide(0).admitted
    assert not rig.marker(0).out
    rig.decide(0)
    assert rig.marker(0).out
    assert kept_out_for(rig.again().decide(0)) > 0
