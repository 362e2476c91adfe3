"""Pulses: what the answers of a connected master say."""

from __future__ import annotations

import pytest

from redlatch.votes.scripts import MARK_WITHIN_US
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


@pytest.mark.parametrize(("default_ttl_ms", "within_us"), [(10_000, 5_000_000), (2000, 2_000_000), (100, 1_000_000)])
def test_a_marker_for_a_master_without_one_must_arrive_soon(default_ttl_ms: int, within_us: int) -> None:
    """A late one could match a master that had got another marker meanwhile, and lost it."""
    rig = Rig().found()
    master = rig.admissions.masters[0]
    master.default_ttl_ms = default_ttl_ms
    there = rig.report(0)
    for marker, expected_us in ((None, within_us), (there.marker, MARK_WITHIN_US)):
        master.write_marker(rig.marker(0), there._replace(marker=marker))
        assert master.write is not None
        assert master.write.made_us + MARK_WITHIN_US - there.server_us == expected_us
