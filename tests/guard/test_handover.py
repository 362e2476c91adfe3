"""Handovers (M1 to M5), as a client of the old or of the new list sees them. `model/handover.pml` is the proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redlatch.guard.actions import LOOK_AGAIN_NS
from redlatch.guard.evidence import AWAITED_NS, SECOND_LOOK_NS
from redlatch.guard.handover import final_marker, left_marker, pending_marker
from redlatch.guard.marker import FINAL, LEFT, PENDING, Marker

from .rig import ADDRESSES, Rig, is_marked, refused

NEW = "d:1", "e:1", "f:1"
MIXED = "b:1", "d:1"
NUMBER = 1 << 120


def leave(rig: Rig, index: int, new: tuple[str, ...] = NEW, number: int = NUMBER) -> None:
    """Mark a master as left."""
    rig.markers[index] = left_marker(rig.marker(index), rig.report(index), new, number).text()


def successors(old: Rig, new: tuple[str, ...] = NEW) -> Rig:
    """Return a client of new masters that are pending."""
    rig = Rig(addresses=new)
    rig.now = old.now
    for index, address in enumerate(new):
        made = pending_marker(old.marker(0), rig.report(index), address, new, NUMBER)
        rig.markers[index] = made.text()
    return rig


def finish(rig: Rig, index: int) -> None:
    rig.markers[index] = final_marker(rig.marker(index), rig.admissions.addresses[index]).text()


# --- the old list ---------------------------------------------------------------------------------------


def test_a_master_that_was_left_takes_releases_and_has_no_vote() -> None:
    rig = Rig().found()
    leave(rig, 0)
    admission = rig.decide(0)
    assert (admission.admitted, admission.votes, admission.kept) == (True, False, True)
    assert "a:1 was left for d:1, e:1, f:1: give this client those masters" in str(admission.cause)
    assert "Client(old, next=new)" in str(admission.cause)


def test_one_master_that_was_left_is_enough_to_see() -> None:
    rig = Rig().found().again()
    leave(rig, 0)
    rig.decide(0)
    assert not rig.decide(1).votes


def test_a_master_that_was_left_and_restarted_has_not_kept_what_it_knew() -> None:
    rig = Rig().found()
    leave(rig, 0)
    rig.restart(0, keeps=True)
    admission = rig.decide(0)
    assert (admission.admitted, admission.votes, admission.kept) == (True, False, False)


def test_a_master_that_has_forgotten_that_it_was_left_is_marked_again() -> None:
    rig = Rig().found()
    leave(rig, 0)
    rig.decide(0)
    rig.restart(1)
    assert rig.decide(1).wait_ns == SECOND_LOOK_NS
    assert not rig.decide(1).votes
    marker = rig.marker(1)
    assert (marker.stage, marker.master, marker.run_id, marker.attempt) == (LEFT, "b:1", "run-b:1+", NUMBER)
    assert (marker.sure, marker.out) == (False, marker.max_ttl)
    assert not final_marker(marker, "b:1").sure


def test_a_master_of_both_lists_that_is_final_shows_that_the_old_list_was_left() -> None:
    rig = Rig().found()
    leave(rig, 1, MIXED)
    rig.markers[1] = final_marker(rig.marker(1), "b:1").text()
    assert not rig.decide(1).votes


def test_a_client_that_was_left_goes_on_after_a_handover_back() -> None:
    rig = Rig().found()
    leave(rig, 0)
    rig.decide(0)
    back = replace(rig.marker(1), attempt=NUMBER + 1, previous=NEW)
    rig.markers[1] = back.text()
    rig.decide(1)
    assert rig.admissions.left is None


# --- the new list ---------------------------------------------------------------------------------------


def test_a_pending_master_has_no_vote() -> None:
    new = successors(Rig().found())
    admission = new.decide(0)
    assert (admission.admitted, admission.wait_ns) == (False, LOOK_AGAIN_NS)
    assert "d:1 waits for the handover from a:1, b:1, c:1" in str(admission.cause)
    assert "redlatch masters move" in str(admission.cause)


def test_a_pending_master_joins_beside_a_final_one() -> None:
    new = successors(Rig().found())
    finish(new, 1)
    assert new.decide(1).admitted
    assert not new.decide(0).admitted
    assert new.decide(0).admitted
    assert new.marker(0).stage == FINAL
    assert new.marker(0).previous == ADDRESSES


def test_a_pending_master_of_another_handover_does_not_join() -> None:
    new = successors(Rig().found())
    finish(new, 1)
    new.markers[0] = replace(new.marker(0), attempt=NUMBER + 1).text()
    assert new.decide(1).admitted
    assert not new.decide(0).admitted
    assert not new.decide(0).admitted


@pytest.mark.parametrize("stage", [PENDING, LEFT])
def test_an_older_marker_of_a_master_that_was_restarted_does_not_join(stage: str) -> None:
    """It may have been final before, and its locks are gone."""
    new = successors(Rig().found())
    if stage == LEFT:
        lists: dict[str, Any] = {"masters": ADDRESSES, "previous": (), "successors": NEW}
        new.markers[0] = replace(new.marker(0), stage=LEFT, **lists).text()
    finish(new, 1)
    assert new.decide(1).admitted
    new.restart(0, keeps=True)
    for _ in range(3):
        assert not new.decide(0).admitted
    assert new.marker(0).out


def test_a_pending_marker_is_back_where_this_client_knew_a_final_one() -> None:
    new = successors(Rig().found())
    pending = new.markers[0]
    for index in range(3):
        finish(new, index)
        assert new.decide(index).admitted
    new.markers[0] = pending
    assert not new.decide(0).admitted
    assert not new.decide(0).admitted
    assert new.marker(0).out


def test_a_master_of_both_lists_joins_as_one_of_the_new_list() -> None:
    old = Rig().found()
    leave(old, 1, MIXED)
    new = successors(old, MIXED)
    new.markers[0], new.run_ids[0] = old.markers[1], "run-b:1"
    assert "waits for the handover from a:1, b:1, c:1" in str(new.decide(0).cause)
    finish(new, 1)
    assert new.decide(1).admitted
    new.decide(0)
    assert new.decide(0).admitted
    marker = new.marker(0)
    assert (marker.masters, marker.master, marker.previous, marker.successors) == (MIXED, "b:1", ADDRESSES, ())


def test_nobody_founds_new_masters_beside_a_pending_one() -> None:
    new = successors(Rig().found())
    new.markers[1] = new.markers[2] = None
    for _ in range(4):
        assert not any(admission.admitted for admission in new.shake_all())
    assert new.markers[1:] == [None, None]


def test_a_handover_that_was_given_up_holds_nobody_up_for_long() -> None:
    new = successors(Rig().found())
    new.shake_all()
    new.markers[:] = [None] * 3
    new.now += AWAITED_NS
    for _ in range(4):
        admissions = new.shake_all()
    assert all(admission.admitted for admission in admissions)


def test_a_client_of_a_third_list_is_refused_by_both() -> None:
    old = Rig().found()
    new = successors(old)
    other = Rig(addresses=("d:1", "x:1", "y:1"))
    other.now, other.markers[0] = new.now, new.markers[0]
    refused(other.decide(0), "d:1 is to join other masters (d:1, e:1, f:1) by a handover")
    leave(old, 0)
    third = Rig(addresses=("a:9", "x:1"))
    third.now, third.markers[0] = old.now, old.markers[0]
    refused(third.decide(0), "was one of other masters (a:1, b:1, c:1)")


# --- the markers ----------------------------------------------------------------------------------------


def test_a_left_marker_keeps_what_the_old_one_says() -> None:
    rig = Rig().found()
    old = replace(rig.marker(0), horizon=7000)
    left = left_marker(old, rig.report(0), NEW, NUMBER)
    assert left == replace(old, stage=LEFT, attempt=NUMBER, successors=NEW)
    assert left.origin() == old.origin()
    assert Marker.read(left.text()) == left


def test_a_left_marker_of_another_process_is_that_of_a_forgetful_master() -> None:
    rig = Rig().found()
    rig.restart(0, keeps=True)
    left = left_marker(rig.marker(0), rig.report(0), NEW, NUMBER)
    assert (left.run_id, left.sure, left.out) == ("run-a:1+", False, left.max_ttl)


def test_a_marker_of_the_list_that_was_replaced_is_that_of_a_forgetful_master() -> None:
    """Found by an attack: an old client marked a shared master again, and no new client could use it any more."""
    rig = Rig().found()
    for index in range(3):
        new = replace(rig.marker(index), attempt=1 << 120, previous=("a:1",))
        rig.markers[index] = new.text()
    old = replace(rig.marker(0), attempt=0, masters=("a:1",), previous=())
    rig.markers[0] = old.text()
    fresh = rig.again()
    assert fresh.decide(0) is None
    reports = [fresh.report(index) for index in range(3)]
    # It may have been read before the handover ended.
    assert (fresh.decide(0, reports).wait_ns, fresh.admissions.masters[0].until_ns) == (SECOND_LOOK_NS, 0)
    fresh.now += SECOND_LOOK_NS
    assert is_marked(fresh.decide(0, reports))
    fresh.decide(0, reports)
    assert (rig.marker(0).masters, rig.marker(0).sure) == (ADDRESSES, False)
    later = replace(old, attempt=1 << 121)
    rig.markers[0] = later.text()
    refused(rig.again().decide(0, reports), "all clients must have the same list")
