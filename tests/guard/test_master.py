"""Pulses: what the answers of a connected master say."""

from __future__ import annotations

from redlatch.votes.units import SECOND

from .rig import Rig


def test_a_pulse_that_shows_nothing_new_changes_nothing() -> None:
    rig = Rig().found()
    for _ in range(5):
        rig.now += SECOND
        assert rig.pulse(0) is None
    assert not rig.behind


def test_a_changed_marker_ends_the_connection() -> None:
    rig = Rig().found()
    trouble = rig.pulse(0, 0)
    assert "marker" in str(trouble)
    assert trouble.doubted_ns == rig.now - 1000


def test_a_clock_that_was_set_back_is_reported_once_and_its_master_votes() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[2] = -3_600_000_000
    assert rig.pulse(2) is None
    assert rig.behind == [2]
    rig.now += SECOND
    assert rig.pulse(2) is None
    assert rig.behind == [2]


def test_a_clock_that_stands_still_keeps_its_master_out_until_it_goes_on() -> None:
    rig = Rig().found()
    stood = rig.clock_us()
    rig.now += SECOND
    assert "stands still" in str(rig.pulse(0, stood + 40))
    rig.ahead_us[0] = stood - rig.clock_us()
    assert "stands still" in str(rig.decide(0).cause)
    rig.now += SECOND
    assert rig.decide(0).admitted  # behind by now, but going
