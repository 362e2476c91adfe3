"""New masters and missing markers: what the reports of all masters show together."""

from __future__ import annotations

import pytest

from redlatch.guard.actions import Admission
from redlatch.guard.evidence import SECOND_LOOK_NS
from redlatch.guard.marker import KEPT_MS, Marker
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import ADDRESSES, MAX_TTL, OUT_NS, START_US, Rig, kept_out_for


def test_new_masters_are_marked_and_let_in_at_once() -> None:
    rig = Rig().found()
    assert {rig.marker(index).master for index in range(3)} == set(ADDRESSES)
    assert all(rig.marker(index).new and rig.marker(index).masters == ADDRESSES for index in range(3))


def test_whether_masters_are_new_is_not_decided_before_all_were_tried() -> None:
    rig = Rig()
    assert rig.decide(0, [rig.report(0), rig.report(1)]) is None


@pytest.mark.parametrize("reached", [1, 2])
def test_if_some_masters_cannot_be_asked_the_others_wait_for_the_longest_ttl(reached: int) -> None:
    rig = Rig()
    reports = [rig.report(0), rig.report(1) if reached > 1 else None, None]
    assert all(rig.decide(index, reports).cause is None for index in range(reached))
    assert all(MAX_TTL - 0.1 < kept_out_for(rig.decide(index)) < MAX_TTL + 0.2 for index in range(reached))
    assert not rig.marker(0).new
    rig.now += OUT_NS
    assert all(rig.decide(index).admitted for index in range(reached))


def test_old_reports_do_not_show_that_masters_are_new() -> None:
    rig = Rig()
    first = rig.report(0)
    rig.now += 2 * SECOND
    admission = rig.admissions.decide(0, first, [first, rig.report(1), rig.report(2)])
    assert admission is not None
    assert (admission.admitted, admission.wait_ns, admission.cause) == (False, 0, None)
    assert rig.admissions.handshake(0).write is None


def test_one_marker_among_those_that_wait_shows_that_the_others_are_not_new() -> None:
    """Whoever is judged first. Found by the simulator: nobody had reached the third when the others were new."""
    rig = Rig()
    rig.markers[1] = Marker("run-b:1", START_US, START_US, True, MAX_TTL * 1000, False, "b:1", ADDRESSES).text()
    reports = [rig.report(index) for index in range(3)]
    for index in (2, 0):
        assert rig.decide(index, reports) == Admission(False, SECOND_LOOK_NS)
    assert rig.decide(1, reports).admitted


def test_a_second_client_is_let_in_at_once() -> None:
    rig = Rig().found()
    rig.now += SECOND
    assert all(rig.again().decide(index).admitted for index in range(3))


def test_two_clients_that_find_new_masters_together_are_both_let_in() -> None:
    one, other = Rig(), Rig()
    other.markers = one.markers
    reports = [one.report(index) for index in range(3)]
    for rig in (one, other):
        assert all(rig.decide(index, reports).cause is None for index in range(3))
    for rig in (one, other):
        assert all(rig.decide(index).admitted for index in range(3))


def test_a_master_whose_marker_is_just_being_written_is_looked_at_again_and_let_in() -> None:
    rig = Rig().found()
    other = rig.again()
    marker, rig.markers[2] = rig.markers[2], None
    assert other.decide(0).admitted
    admission = other.decide(2)
    assert (admission.wait_ns, admission.cause) == (SECOND_LOOK_NS, None)
    rig.markers[2] = marker
    other.now += SECOND_LOOK_NS
    assert other.decide(2).admitted


def test_after_unused_markers_have_expired_masters_are_new_again() -> None:
    rig = Rig().found()
    rig.now += (KEPT_MS + 1) * MILLISECOND
    rig.markers[:] = [None] * 3
    rig.found()
