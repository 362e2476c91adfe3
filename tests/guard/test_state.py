"""What a client's guard knows of all masters together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlatch import Guard
from redlatch.guard.actions import ASK_OTHERS_NS, SETTLE_NS
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


# --- G5: clients with another max_ttl ------------------------------------------------------------------


def limits(rig: Rig) -> list[tuple[int, int]]:
    """Return `max_ttl` and `raised` of each marker, in seconds."""
    return [(rig.marker(index).max_ttl // 1000, rig.marker(index).raised // 1000) for index in range(len(rig.markers))]


def test_a_client_with_a_smaller_max_ttl_takes_over_that_of_the_markers() -> None:
    rig = Rig().found()
    before = list(rig.markers)
    smaller = rig.again(guard=Guard(max_ttl=MAX_TTL / 2))
    assert all(admission.admitted for admission in smaller.shake_all())
    assert (smaller.admissions.longest_ms, rig.markers) == (MAX_TTL * 1000, before)


def test_a_larger_max_ttl_is_raised_on_all_masters_before_a_longer_ttl_is_used() -> None:
    rig = Rig().found()
    larger = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    for index in (0, 1):
        assert larger.decide(index).wait_ns == 0
        assert larger.decide(index).admitted
    assert limits(rig) == [(10, 20), (10, 20), (10, 0)]
    monitor = larger.admissions.monitor(0)
    assert monitor.refusal(MAX_TTL * 1000) is None
    assert "other clients give max_ttl=10: a ttl of 15 s may be used as soon as" in str(monitor.refusal(15_000))
    larger.decide(2)
    waiting = larger.decide(2)
    assert (waiting.admitted, waiting.asks_others, waiting.cause) == (False, True, None)
    larger.now += ASK_OTHERS_NS
    larger.pulse(0)
    larger.pulse(1)
    larger.decide(2)
    assert larger.decide(2).admitted
    assert limits(rig) == [(10, 20), (10, 20), (20, 0)]
    assert monitor.refusal(15_000) is None
    later = rig.again()
    for _ in range(3):
        admissions = later.shake_all()
    assert all(admission.admitted for admission in admissions)
    assert limits(rig) == [(20, 0)] * 3


def test_one_marker_shows_that_all_masters_allow_a_ttl() -> None:
    """Else a client that starts while a master is down could not use the ttls that it used before."""
    rig = Rig(guard=Guard(max_ttl=2 * MAX_TTL)).found()
    later = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    assert later.decide(0).admitted
    assert later.admissions.monitor(0).refusal(15_000) is None


def test_a_pulse_asks_for_no_ttl_that_is_not_allowed() -> None:
    rig = Rig(guard=Guard(max_ttl=1)).found()
    assert [rig.marker(index).horizon for index in range(3)] == [1000] * 3
    larger = rig.again()
    larger.decide(0)
    assert larger.decide(0).admitted
    assert larger.admissions.monitor(0).pulse()[2] == 1000


def test_a_master_that_has_lost_its_marker_gets_the_longest_ttls_again() -> None:
    rig = Rig().found()
    larger = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    larger.decide(0)
    larger.decide(0)
    rig.decide(0)
    rig.restart(1)
    rig.decide(1)
    rig.decide(1)
    assert limits(rig)[1] == (10, 20)
    assert rig.marker(1).out == 2 * MAX_TTL * 1000


def test_a_single_master_allows_a_longer_ttl_at_once() -> None:
    rig = Rig(addresses=ADDRESSES[:1]).found()
    larger = rig.again(guard=Guard(max_ttl=2 * MAX_TTL), addresses=ADDRESSES[:1])
    larger.decide(0)
    larger.decide(0)
    larger.now += ASK_OTHERS_NS
    larger.decide(0)
    assert larger.decide(0).admitted
    assert limits(rig) == [(20, 0)]


def test_a_longer_ttl_is_allowed_only_if_all_masters_had_it_at_one_moment() -> None:
    """Found by a review: a master that forgot it before another one had it was marked again with less."""
    rig = Rig().found()
    larger = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    for index in (0, 0, 1, 1):
        larger.decide(index)
    larger.now += SECOND
    rig.now = larger.now
    rig.restart(1)
    larger.run_ids = rig.run_ids
    rig.decide(1)
    rig.decide(1)
    larger.decide(2)
    for _ in range(4):
        larger.pulse(0)
        assert not larger.decide(2).admitted
        larger.now += SECOND // 4
    larger.now += SETTLE_NS
    assert larger.decide(2).admitted
    assert limits(rig)[2] == (10, 20)


def test_a_client_whose_masters_were_raised_by_another_one_doubts_none_of_its_locks() -> None:
    rig = Rig().found()
    assert rig.pulse(0, 0) is not None
    admission = rig.decide(0)  # databases were swapped, and swapped back
    assert (admission.admitted, admission.kept) == (True, False)
    larger = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    larger.decide(0)
    larger.decide(0)
    assert rig.pulse(0, 0) is not None
    admission = rig.decide(0)
    assert (admission.admitted, admission.kept) == (True, True)
    assert not rig.decide(0).kept


def test_what_was_allowed_before_the_masters_were_made_new_is_not_allowed_any_more() -> None:
    """A model found it: the client wrote from memory that the longer ttl is allowed, and others could not know."""
    rig = Rig(Guard(max_ttl=2 * MAX_TTL)).found()
    assert rig.admissions.allowed_ms == 2 * MAX_TTL * 1000
    rig.now += 40 * 86_400 * SECOND
    rig.markers = [None] * 3
    others = rig.again(guard=Guard(max_ttl=MAX_TTL)).found()
    assert [others.marker(index).max_ttl for index in range(3)] == [MAX_TTL * 1000] * 3
    for _ in range(2):
        for index in (0, 1):
            rig.decide(index)
    assert rig.admissions.allowed_ms == MAX_TTL * 1000
    assert limits(rig)[:2] == [(MAX_TTL, 2 * MAX_TTL)] * 2


def test_what_was_allowed_before_counts_only_once_another_marker_says_so_again() -> None:
    """Else a second client that has begun to raise the markers of new masters would make an old one believe itself."""
    rig = Rig(Guard(max_ttl=2 * MAX_TTL)).found()
    rig.now += 40 * 86_400 * SECOND
    rig.markers = [None] * 3
    others = rig.again(guard=Guard(max_ttl=MAX_TTL)).found()
    larger = others.again(guard=Guard(max_ttl=2 * MAX_TTL))
    for index in (0, 0, 1, 1):
        larger.decide(index)
    rig.now, rig.markers = others.now, others.markers
    for index in (0, 1):
        rig.decide(index)
        rig.decide(index)
    assert limits(rig) == [(MAX_TTL, 2 * MAX_TTL)] * 2 + [(MAX_TTL, 0)]
    assert rig.admissions.monitor(0).refusal(15_000) is not None


def test_an_older_marker_that_allows_less_costs_a_longer_ttl_only_a_moment() -> None:
    """One master comes back with old data, another one is dead, and the third one still says what is allowed."""
    rig = Rig(Guard(max_ttl=2 * MAX_TTL)).found()
    rig.markers[0] = replace(rig.marker(0), max_ttl=MAX_TTL * 1000).text()
    rig.now += SECOND
    rig.restart(0, keeps=True)
    for _ in ("restarted", "in doubt", "raised"):
        rig.decide(0)
    monitor = rig.admissions.monitor(1)
    assert monitor.refusal(15_000) is not None
    rig.now += SECOND
    rig.pulse(1)
    assert monitor.refusal(15_000) is None
    rig.decide(0)
    rig.decide(0)
    assert limits(rig)[0] == (2 * MAX_TTL, 0)
