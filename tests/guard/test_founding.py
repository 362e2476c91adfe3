"""Founding (F1, F2): how masters without a marker come to be new. `model/founding.pml` is the proof."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch.guard.actions import LOOK_AGAIN_NS
from redlatch.guard.founding import ATTEMPTS, Founding, Step, draft_number, has_final
from redlatch.guard.marker import Marker
from redlatch.votes.units import SECOND

from .rig import Rig, refused


def draft(rig: Rig, index: int) -> int:
    """Return the number of the draft on a master, or 0."""
    marker = Marker.read(rig.markers[index])
    return 0 if marker is None else marker.draft


def drafts(rig: Rig) -> list[int]:
    return [draft(rig, index) for index in range(len(rig.markers))]


def finals(rig: Rig) -> int:
    """Count the masters with a final marker."""
    return sum(has_final(rig.report(index)) for index in range(len(rig.markers)))


def rival(rig: Rig, later_us: int = 1) -> Rig:
    """Return another client of the same masters, whose attempts have larger numbers."""
    other = rig.again()
    other.wall_off_us += later_us
    return other


@pytest.mark.parametrize("masters", [1, 2, 3, 5])
def test_masters_are_founded_by_drafts_a_second_look_and_final_markers(masters: int) -> None:
    rig = Rig(addresses=tuple(f"{index}:1" for index in range(masters)))
    rig.shake_all()
    assert rig.markers == [None] * masters
    rig.shake_all()
    assert len(set(drafts(rig))) == 1
    assert drafts(rig)[0] > 0
    rig.shake_all()
    assert finals(rig) == 0
    assert all(admission.admitted for admission in rig.shake_all())
    assert finals(rig) == masters


def test_a_draft_lets_nobody_vote() -> None:
    rig = Rig()
    rig.shake_all()
    rig.shake_all()
    assert not any(admission.admitted for admission in rig.shake_all())
    assert rig.again().decide(0, [rig.report(0), rig.report(1)]) is None


def test_two_founders_at_once_found_together() -> None:
    """The earlier one goes on. Both are let in."""
    one = Rig()
    two = rival(one)
    for _ in range(12):
        for rig in (one, two):
            two.now = one.now = max(one.now, two.now)
            admissions = rig.shake_all()
    assert finals(one) == 3
    assert all(admission.admitted for admission in admissions)
    assert all(admission.admitted for admission in one.shake_all())


def test_a_founder_gives_way_to_the_earlier_one_and_waits() -> None:
    one = Rig()
    two = rival(one)
    one.shake_all()
    one.shake_all()
    two.now = one.now
    two.shake_all()
    admissions = two.shake_all()
    assert [admission.wait_ns for admission in admissions] == [LOOK_AGAIN_NS] * 3
    assert drafts(two) == [one.admissions.founding.number] * 3


def test_the_earlier_founder_replaces_the_drafts_of_the_later_one() -> None:
    two = rival(Rig())
    two.shake_all()
    two.shake_all()
    reports = [two.report(index) for index in range(3)]
    one = Founding(lambda: 1, lambda: 0.0)
    assert [one.step(index, report, reports) for index, report in enumerate(reports)] == [Step.WRITE_DRAFT] * 3
    assert two.admissions.founding.step(0, reports[0], reports) is not Step.GIVE_WAY


def test_a_founder_that_has_died_holds_the_others_up_until_its_drafts_expire() -> None:
    one = Rig()
    two = rival(one)
    one.shake_all()
    one.shake_all()
    two.now = one.now
    for _ in range(3):
        assert finals(two) == 0
        two.shake_all()
    two.markers[:] = [None] * 3
    for _ in range(4):
        admissions = two.shake_all()
    assert all(admission.admitted for admission in admissions)


def test_a_master_that_loses_its_draft_before_the_final_marker_is_kept_out() -> None:
    rig = Rig()
    for _ in range(3):
        rig.shake_all()
    rig.markers[1] = None
    admissions = rig.shake_all()
    assert [admission.admitted for admission in admissions] == [True, False, True]
    rig.now += SECOND
    rig.decide(1)
    assert not rig.decide(1).admitted
    assert rig.marker(1).out


def test_an_attempt_sends_one_draft_to_each_master_at_most() -> None:
    rig = Rig()
    rig.shake_all()
    number = rig.admissions.founding.number
    for index in range(3):
        rig.admissions.handshake(index)  # which fails, and may arrive late
    rig.shake_all()
    rig.shake_all()
    assert rig.admissions.founding.number > number
    assert drafts(rig) == [rig.admissions.founding.number] * 3


def test_a_draft_beside_a_final_marker_is_a_forgetful_master() -> None:
    rig = Rig().found()
    founding = rival(rig)
    founding.markers = [None] * 3
    founding.shake_all()
    founding.shake_all()
    rig.markers[2] = founding.markers[2]
    other = rig.again()
    assert other.decide(0).admitted
    assert other.decide(2).cause is None
    other.now += SECOND
    other.decide(2)
    assert not other.decide(2).admitted
    assert other.marker(2).out


def test_a_client_with_another_list_is_refused_beside_a_draft_and_writes_nothing() -> None:
    rig = Rig()
    rig.shake_all()
    rig.shake_all()
    before = list(rig.markers)
    other = Rig(addresses=("a:1", "b:1"))
    other.now, other.markers = rig.now, rig.markers[:2]
    for admission in other.shake_all():
        refused(admission, "masters for others")
    assert other.markers == before[:2]


def test_a_client_that_knew_markers_within_the_hour_founds_nothing() -> None:
    rig = Rig().found()
    rig.markers[:] = [None] * 3
    rig.shake_all()
    rig.shake_all()
    assert all(rig.marker(index).out for index in range(3))


def test_a_draft_of_an_earlier_process_counts_as_none() -> None:
    rig = Rig()
    rig.shake_all()
    rig.shake_all()
    assert draft_number(rig.report(0))
    rig.restart(0, keeps=True)
    assert not draft_number(rig.report(0))


@pytest.mark.parametrize(("text", "final"), [(None, False), (b"mine", True)])
def test_an_unknown_text_counts_as_final(text: Any, final: bool) -> None:
    rig = Rig()
    rig.markers[0] = text
    assert has_final(rig.report(0)) == final


def test_numbers_grow_and_differ_at_the_same_time() -> None:
    numbers = []
    for random in (0.0, 0.4, 0.999999):
        founding = Founding(lambda: 1_800_000_000_000_000, lambda random=random: random)  # type: ignore[misc]
        founding._begin()
        numbers.append(founding.number)
    later = Founding(lambda: 1_800_000_000_000_001, lambda: 0.0)
    later._begin()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < later.number


def test_drafts_of_two_founders_that_have_crossed_block_nobody() -> None:
    """One founder's draft is on a, the other's on b and c. Found by an attack: both gave way to each other."""
    one = Rig()
    two = rival(one)
    one.shake_all()
    two.shake_all()  # both have drafts to write
    one.shake(0)
    two.shake(1)
    two.shake(2)
    for _ in range(6):
        two.now = one.now = max(one.now, two.now)
        one.shake_all()
        two.now = one.now
        two.shake_all()
    assert finals(one) == 3
    assert all(admission.admitted for admission in one.shake_all())
    assert all(admission.admitted for admission in two.shake_all())


def test_another_attempt_of_a_founder_keeps_its_rank() -> None:
    founding = Founding(iter(range(1, 9)).__next__, lambda: 0.5)
    founding._begin()
    first = founding.number
    founding._begin()
    assert founding.number == first + 1
    assert founding.number // ATTEMPTS == first // ATTEMPTS
