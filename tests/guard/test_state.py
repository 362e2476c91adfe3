"""What a client's guard knows of all masters together."""

from __future__ import annotations

import pytest

from redlatch.votes.units import SECOND, quorum_of

from .rig import ADDRESSES, DEFAULT_TTL_MS, MAX_TTL, OUT_NS, Rig


def test_a_quarantine_lasts_for_a_ttl_and_its_drift() -> None:
    assert Rig().admissions.out_ns(MAX_TTL * 1000) == OUT_NS


@pytest.mark.parametrize("masters", range(1, 8))
def test_a_quorum_and_the_witnesses_that_are_needed_have_a_master_in_common(masters: int) -> None:
    rig = Rig(addresses=tuple(f"{index}:1" for index in range(masters))).found()
    state, forgetful = rig.admissions, rig.admissions.masters[0]
    after_ns, rig.now = rig.now, rig.now + SECOND
    needed = masters - quorum_of(masters) + 1
    for others in range(masters - 1):
        assert (state.horizon_for(forgetful, after_ns, rig.now) is None) == (others < needed)
        rig.raise_horizon(others + 1, 3000 + others)
        rig.pulse(others + 1)
    longest = state.horizon_for(forgetful, after_ns, rig.now)
    assert longest == (None if masters == 1 else 3000 + masters - 2)
    assert state.may_be_sure() == (masters > 1)


def test_a_horizon_that_was_read_before_the_master_was_found_to_have_forgotten_does_not_count() -> None:
    rig = Rig().found()
    state = rig.admissions
    assert state.horizon_for(state.masters[0], rig.now - SECOND, rig.now) == DEFAULT_TTL_MS
    assert state.horizon_for(state.masters[0], rig.now, rig.now) is None


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
