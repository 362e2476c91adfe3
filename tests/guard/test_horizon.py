"""Horizons (G1 to G4): a master that has forgotten is kept out for the longest ttl in use, as the others know it."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch.guard.actions import ASK_OTHERS_NS, SETTLE_NS
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import DEFAULT_TTL_MS, MAX_TTL, OUT_NS, STRICT, Rig, is_marked, kept_out_for

SHORT = DEFAULT_TTL_MS / 1000


def lose(rig: Rig, index: int = 0) -> Any:
    """Flush a master and have its unsure marker written; return the admission that follows."""
    rig.now += SECOND
    rig.markers[index] = None
    assert is_marked(rig.decide(index))
    rig.now += MILLISECOND
    return rig.decide(index)


def ask_others(rig: Rig, index: int = 0) -> None:
    """Have all other masters that may vote answer a pulse."""
    rig.now += ASK_OTHERS_NS
    for other in range(len(rig.markers)):
        if other != index:
            assert rig.pulse(other) is None


def test_a_founded_master_has_the_default_ttl_of_its_first_client_as_horizon() -> None:
    rig = Rig().found()
    assert [rig.marker(index).horizon for index in range(3)] == [DEFAULT_TTL_MS] * 3


def test_a_forgetful_master_is_unsure_until_the_others_were_asked() -> None:
    rig = Rig().found()
    admission = lose(rig)
    assert admission.asks_others
    assert admission.wait_ns == ASK_OTHERS_NS
    assert MAX_TTL - 1 < kept_out_for(admission)
    assert (rig.marker(0).sure, rig.marker(0).out) == (False, MAX_TTL * 1000)


def test_enough_witnesses_make_the_marker_sure_for_the_longest_horizon() -> None:
    rig = Rig().found()
    rig.raise_horizon(2, 3000)
    lose(rig)
    ask_others(rig)
    assert is_marked(rig.decide(0))
    rig.now += MILLISECOND
    left = kept_out_for(rig.decide(0))
    marker = rig.marker(0)
    assert marker.sure
    assert 3000 < marker.out < 3100
    assert marker.horizon == 3000
    assert 2.9 < left < 3.1
    rig.now += round(left * SECOND) + 100 * MILLISECOND
    assert rig.decide(0).admitted


def test_nobody_is_told_before_the_others_had_time_to_say_for_how_long() -> None:
    rig = Rig().found()
    assert not lose(rig).settled
    ask_others(rig)
    assert not rig.decide(0).settled  # its marker is written
    assert rig.decide(0).settled
    other = Rig().found()
    assert not lose(other).settled
    other.now += SETTLE_NS
    assert other.decide(0).settled
    assert lose(Rig(STRICT, addresses=("a:1",)).found()).settled


def test_a_client_that_comes_later_believes_a_sure_marker() -> None:
    rig = Rig().found()
    lose(rig)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    rig.now += SECOND
    other = rig.again()
    assert SHORT - 1.2 < kept_out_for(other.decide(0)) < SHORT - 0.8


def test_a_client_that_knew_of_an_unsure_marker_believes_the_sure_one() -> None:
    rig = Rig().found()
    lose(rig)
    other = rig.again()
    assert kept_out_for(other.decide(0)) > MAX_TTL - 1
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    other.now = rig.now
    assert kept_out_for(other.decide(0)) < SHORT + 0.1


def test_a_later_raise_does_not_keep_the_master_out_longer() -> None:
    rig = Rig().found()
    lose(rig)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    rig.now += 3 * SECOND
    assert rig.decide(0).admitted
    rig.raise_horizon(0, MAX_TTL * 1000)
    assert rig.again().decide(0).admitted


def test_one_witness_of_three_masters_is_too_few() -> None:
    rig = Rig().found()
    lose(rig)
    rig.now += ASK_OTHERS_NS
    rig.pulse(1)
    admission = rig.decide(0)
    assert admission.asks_others
    assert kept_out_for(admission) > MAX_TTL - 1
    assert not rig.marker(0).sure


def test_what_the_others_said_before_the_loss_was_found_does_not_count() -> None:
    rig = Rig().found()
    rig.pulse(1)
    rig.pulse(2)
    assert lose(rig).asks_others
    assert rig.decide(0).asks_others
    assert not rig.marker(0).sure


def test_an_unsure_master_that_is_kept_out_is_no_witness() -> None:
    """Two masters forget at once: nobody can say what they knew."""
    rig = Rig().found()
    lose(rig)
    lose(rig, 1)
    for _ in range(3):
        rig.now += ASK_OTHERS_NS
        rig.pulse(2)
        assert not rig.decide(0).admitted
        assert not rig.decide(1).admitted
    assert not rig.marker(0).sure
    assert not rig.marker(1).sure


def test_a_sure_master_that_is_kept_out_is_a_witness() -> None:
    """Two masters that forget one after the other are each kept out for the longest ttl in use only."""
    rig = Rig().found()
    lose(rig)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    lose(rig, 1)
    rig.now += ASK_OTHERS_NS
    rig.pulse(2)
    assert not rig.decide(0).admitted  # it is dialled each second
    assert is_marked(rig.decide(1))
    assert kept_out_for(rig.decide(1)) < SHORT + 0.1
    assert rig.marker(1).sure


def test_the_others_are_asked_at_growing_pauses_up_to_a_second() -> None:
    rig = Rig().found()
    pauses = [lose(rig).wait_ns]
    for _ in range(8):
        rig.now += pauses[-1]
        admission = rig.decide(0)
        assert admission.asks_others
        pauses.append(admission.wait_ns)
    assert pauses == [ASK_OTHERS_NS, *[ASK_OTHERS_NS << times for times in range(6)], SECOND, SECOND]


def test_late_witnesses_shorten_an_unsure_quarantine() -> None:
    rig = Rig().found()
    lose(rig)
    rig.now += 3 * SECOND
    rig.decide(0)
    ask_others(rig)
    assert is_marked(rig.decide(0))
    assert kept_out_for(rig.decide(0)) < SHORT + 0.2
    assert 5000 < rig.marker(0).out < 5200  # since it was marked


def test_a_quarantine_that_is_over_sooner_than_the_horizon_stays_unsure() -> None:
    rig = Rig().found()
    lose(rig)
    rig.now += (MAX_TTL - 1) * SECOND
    rig.decide(0)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    assert not rig.marker(0).sure
    rig.now += OUT_NS - (MAX_TTL - 1) * SECOND
    assert rig.decide(0).admitted


def test_a_raise_between_the_look_and_the_write_of_the_marker_forces_another_look() -> None:
    rig = Rig().found()
    lose(rig)
    ask_others(rig)
    assert is_marked(rig.decide(0))
    rig.raise_horizon(0, 4000)
    rig.decide(0)
    assert not rig.marker(0).sure
    rig.now += SECOND
    rig.decide(0)
    assert rig.marker(0).sure
    assert rig.marker(0).horizon == 4000


def test_a_horizon_never_falls_when_a_master_is_marked_again() -> None:
    rig = Rig().found()
    rig.raise_horizon(0, 7000)
    rig.now += SECOND
    rig.restart(0, keeps=True)
    assert is_marked(rig.decide(0))
    rig.decide(0)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    assert (rig.marker(0).sure, rig.marker(0).horizon) == (True, 7000)
    assert rig.marker(0).out < 2200


def test_a_sure_marker_from_before_the_loss_that_this_client_has_seen_shortens_nothing() -> None:
    """The databases of a master are swapped, and swapped back."""
    rig = Rig().found()
    lose(rig)
    ask_others(rig)
    rig.decide(0)
    rig.decide(0)
    sure = rig.markers[0]
    rig.now += 5 * SECOND
    assert rig.decide(0).admitted
    lose(rig)
    rig.markers[0] = sure
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1
    assert kept_out_for(rig.decide(0)) > MAX_TTL - 1


@pytest.mark.parametrize("masters", [1, 2])
def test_with_fewer_than_three_masters(masters: int) -> None:
    rig = Rig(STRICT, addresses=("a:1", "b:1")[:masters]).found()
    admission = lose(rig)
    assert admission.asks_others == (masters > 1)
    ask_others(rig)
    rig.decide(0)
    assert (kept_out_for(rig.decide(0)) < SHORT + 0.1) == (masters > 1)


def test_a_client_whose_default_ttl_is_longer_raises_the_horizon_at_once() -> None:
    rig = Rig().found()
    monitor = rig.admissions.monitor(0)
    key, identity, wanted_ms = monitor.pulse()
    assert (key, wanted_ms, monitor.horizon_ms) == (b"\0guard", DEFAULT_TTL_MS, DEFAULT_TTL_MS)
    assert rig.markers[0] == b"%b\n%d" % (identity, DEFAULT_TTL_MS)
    rig.raise_horizon(0, 4000)
    rig.pulse(0)
    assert monitor.horizon_ms == 4000
    assert monitor.pulse() == (key, identity, wanted_ms)
