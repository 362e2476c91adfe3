"""For how long a master stays out whose unsure marker may say too little: until others were read (G5)."""

from __future__ import annotations

from typing import Any

from redlatch import Guard
from redlatch.guard.actions import ASK_OTHERS_NS
from redlatch.guard.marker import Marker
from redlatch.votes.units import SECOND

from .rig import DEFAULT_TTL_MS, MAX_TTL, OUT_NS, Rig, kept_out_for


def forgetful(**given: Any) -> Rig:
    """Return a rig whose first master has an unsure marker, and whose others have not been read since."""
    rig = Rig(**given).found()
    rig.restart(0)
    rig.decide(0)
    rig.decide(0)
    assert not rig.marker(0).sure
    return rig


def test_a_master_stays_out_until_another_one_that_a_quorum_needs_is_read() -> None:
    rig = forgetful()
    rig.now += OUT_NS
    admission = rig.decide(0)
    assert (admission.admitted, admission.asks_others) == (False, True)
    assert "too few other masters can be asked" in str(admission.cause)
    rig.pulse(2)
    assert rig.decide(0).admitted


def test_the_reason_says_that_too_few_others_remember_which_ttl_is_in_use() -> None:
    rig = forgetful()
    assert "too few other masters remember" in str(rig.decide(0).cause)
    rig.now += SECOND
    for index in (1, 2):
        rig.pulse(index)
    assert "too few" not in str(rig.decide(0).cause)
    rig.decide(0)
    assert rig.marker(0).sure


def test_a_longer_ttl_that_another_master_knows_of_keeps_it_out_for_longer() -> None:
    rig = forgetful()
    rig.now += OUT_NS
    assert rig.admissions.longest_ms == MAX_TTL * 1000
    rival = rig.again(guard=Guard(max_ttl=2 * MAX_TTL))
    for index in (1, 2, 1):
        rival.decide(index)
    assert rival.marker(1).longest == 2 * MAX_TTL * 1000
    rig.decide(1)  # its pulse has found another identity
    assert MAX_TTL - 1 < kept_out_for(rig.decide(0)) <= MAX_TTL + 1


def test_two_masters_that_forgot_long_ago_let_each_other_in() -> None:
    rig = forgetful()
    rig.restart(1)
    rig.decide(1)
    rig.decide(1)
    later = rig.again()
    later.run_ids = rig.run_ids
    later.now += OUT_NS
    admissions = []
    for index in (0, 1, 0, 1):
        later.now += ASK_OTHERS_NS
        admissions.append(later.decide(index))
    assert [admission.admitted for admission in admissions] == [False, False, True, True]
    assert (admissions[0].wait_ns, admissions[0].settled) == (ASK_OTHERS_NS, False)


def test_a_master_whose_time_may_be_too_short_is_no_witness() -> None:
    rig = forgetful()
    after_ns, rig.now = rig.now, rig.now + OUT_NS
    state = rig.admissions
    rig.decide(0)
    rig.now += SECOND
    rig.decide(0)
    assert not state.masters[0].testifies(after_ns, rig.now)
    rig.pulse(2)
    assert state.horizon_for(state.masters[1], after_ns, rig.now) is None
    assert rig.decide(0).admitted
    assert state.horizon_for(state.masters[1], after_ns, rig.now) == DEFAULT_TTL_MS


def test_what_others_said_before_a_mark_was_seen_does_not_count() -> None:
    """A model found it: a late mark counts from before, and an older reading of another master let this one in."""
    rig = forgetful()
    later = rig.again()
    later.run_ids = rig.run_ids
    later.now += OUT_NS
    later.decide(2)
    assert not later.decide(0).admitted
    later.now += ASK_OTHERS_NS
    assert not later.decide(0).admitted
    later.decide(2)
    assert later.decide(0).admitted


def test_a_sure_marker_knows_the_longest_ttl_at_once() -> None:
    """A model found it: between two writes, the master was taken for one that knows the longest ttl."""
    rig = forgetful()
    rig.now += SECOND
    rig.pulse(1)
    rig.pulse(2)
    state = rig.admissions
    state.longest_ms *= 2
    longest_ms = state.longest_ms
    rig.decide(0)
    write = state.masters[0].write
    assert write is not None
    written = Marker.read(write.new)
    assert written is not None
    assert (written.sure, written.longest) == (True, longest_ms)
