"""New masters and missing markers: what the reports of all masters show together."""

from __future__ import annotations

import pytest

from redlatch.guard.actions import Admission
from redlatch.guard.evidence import SECOND_LOOK_NS
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import FINAL, Marker
from redlatch.votes.scripts import KEPT_MS
from redlatch.votes.units import MILLISECOND, SECOND

from .rig import ADDRESSES, MAX_TTL, OUT_NS, START_US, Rig, kept_out_for


def test_new_masters_are_marked_and_let_in_at_once() -> None:
    rig = Rig().found()
    assert {rig.marker(index).master for index in range(3)} == set(ADDRESSES)
    assert all(not rig.marker(index).out and rig.marker(index).masters == ADDRESSES for index in range(3))


def test_whether_masters_are_new_is_not_decided_before_all_were_tried() -> None:
    rig = Rig()
    assert rig.decide(0, [rig.report(0), rig.report(1)]) is None


@pytest.mark.parametrize("reached", [1, 2])
def test_while_some_masters_cannot_be_read_the_others_wait_for_them(reached: int) -> None:
    rig = Rig()
    reports = [rig.shake(0), rig.shake(1) if reached > 1 else None, None]
    missing = "b:1 and c:1" if reached == 1 else "c:1"
    for index in range(reached):
        admission = rig.decide(index, reports)
        if index == reached - 1:
            assert str(admission.cause) == f"nobody can say whether it is new: no answer yet from {missing}"
        assert not admission.admitted
    assert rig.markers == [None] * 3
    rig.found()


def test_masters_that_are_never_complete_are_taken_for_forgetful_ones_in_the_end() -> None:
    rig = Rig()
    waiting: list[HandshakeReport | None] = [rig.report(0), rig.report(1), None]
    for index in range(2):
        rig.decide(index, waiting)
    rig.now += OUT_NS
    for index in range(2):
        assert rig.decide(index, waiting).wait_ns == 0  # its marker is written
    assert all(kept_out_for(rig.decide(index)) > MAX_TTL - 1 for index in range(2))
    rig.now += OUT_NS
    assert [rig.decide(index).admitted for index in range(2)] == [False, True]  # one is read before the other
    assert rig.decide(0).admitted


def test_one_marker_among_those_that_wait_shows_that_the_others_are_not_new() -> None:
    """Whoever is judged first. Found by the simulator: nobody had reached the third when the others were new."""
    rig = Rig()
    rig.markers[1] = Marker(
        "run-b:1", START_US, START_US, 0, 0, FINAL, True, MAX_TTL * 1000, False, False, "b:1", ADDRESSES, 1
    ).text()
    reports = [rig.report(index) for index in range(3)]
    for index in (2, 0):
        assert rig.decide(index, reports) == Admission(False, SECOND_LOOK_NS)
    assert rig.decide(1, reports).admitted


def test_a_second_client_is_let_in_at_once() -> None:
    rig = Rig().found()
    rig.now += SECOND
    assert all(rig.again().decide(index).admitted for index in range(3))


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
