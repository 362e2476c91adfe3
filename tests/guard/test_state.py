"""What a client's guard knows of all masters together."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch import Guard
from redlatch.guard.marker import KEPT_MS
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import ADDRESSES, OUT_NS, Rig


@pytest.mark.parametrize(("max_ttl", "kept_ms"), [(10, KEPT_MS), (1800, KEPT_MS), (7200, 14_400_000)])
def test_a_marker_is_kept_for_an_hour_or_twice_the_longest_ttl(max_ttl: Any, kept_ms: Any) -> None:
    assert Rig(Guard(max_ttl=max_ttl)).admissions.kept_ms == kept_ms


def test_a_quarantine_lasts_for_the_longest_ttl_and_its_drift() -> None:
    assert Rig().admissions.quarantine_ns == OUT_NS


def test_a_marker_counts_as_seen_until_it_has_expired() -> None:
    rig = Rig().found()
    state = rig.admissions
    seen_ns = state.masters[0].seen_ns
    assert state.marker_seen_after(state.expired_before(seen_ns)) == rig.marker(0)
    assert state.marker_seen_after(state.expired_before(seen_ns + KEPT_MS * MILLISECOND)) is None


def test_the_only_address_that_no_marker_claims_is_that_of_the_master_without_one() -> None:
    rig = Rig().found()
    known, state = rig.marker(0), rig.admissions
    assert state.unmatched_address(known) == ""
    state.masters[1].marker = None
    assert state.unmatched_address(known) == ADDRESSES[1]
    state.masters[2].marker = None
    assert state.unmatched_address(known) == ""


def test_a_clock_that_was_set_back_is_reported_with_the_index_of_its_master() -> None:
    rig = Rig().found()
    rig.now += SECOND
    rig.ahead_us[1] = -5_000_000
    assert rig.decide(1).admitted
    assert rig.behind == [1]


def test_a_wall_clock_before_1970_is_written_as_0() -> None:
    rig = Rig()
    rig.wall_off_us = -2 * rig.clock_us()
    assert rig.admissions.wall() == 0
