"""Founding (F1, F2): how masters without a marker come to be new. `model/founding.pml` is the proof."""

from __future__ import annotations

from typing import Any

import pytest

from redlatch.guard.actions import LOOK_AGAIN_NS
from redlatch.guard.founding import ATTEMPTS, Founding, Step, attempt_of, is_in_use, is_prepared
from redlatch.votes.units import SECOND

from .rig import Rig, refused


def attempts(rig: Rig) -> list[int]:
    """Return the number of the attempt that has begun on each master, or 0."""
    return [attempt_of(rig.report(index)) for index in range(len(rig.markers))]


def prepared(rig: Rig) -> int:
    """Count the masters that are prepared by an attempt."""
    return sum(is_prepared(rig.report(index)) for index in range(len(rig.markers)))


def finals(rig: Rig) -> int:
    """Count the masters with a final marker."""
    return sum(is_in_use(rig.report(index)) for index in range(len(rig.markers)))


def rival(rig: Rig, later_us: int = 1) -> Rig:
    """Return another client of the same masters, whose attempts have larger numbers."""
    other = rig.again()
    other.wall_off_us += later_us
    return other


@pytest.mark.parametrize("masters", [1, 2, 3, 5])
def test_masters_are_founded_by_drafts_prepared_and_final_markers(masters: int) -> None:
    rig = Rig(addresses=tuple(f"{index}:1" for index in range(masters)))
    rig.shake_all()
    assert rig.markers == [None] * masters
    rig.shake_all()
    assert len(set(attempts(rig))) == 1
    assert attempts(rig)[0] > 0
    assert (prepared(rig), finals(rig)) == (0, 0)
    rig.shake_all()
    assert (prepared(rig), finals(rig)) == (masters, 0)
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
    one.shake(0)
    one.shake(1)
    two.now = one.now
    two.shake_all()
    admissions = two.shake_all()
    assert [admission.wait_ns for admission in admissions] == [LOOK_AGAIN_NS] * 3
    number = one.admissions.founding.number
    assert attempts(two) == [number, number, 0]


def test_any_client_finishes_what_a_founder_has_begun_on_all_masters() -> None:
    """The founder ends after its drafts, and after some of the prepared or final markers."""
    for written in range(7):
        one = Rig()
        one.shake_all()
        one.shake_all()
        for place in range(written):
            if place == 3:
                one.shake_all()
            one.shake(place % 3)
        for two in (rival(one), rival(one, later_us=-1)):
            for _ in range(3):
                two.shake_all()
            assert all(admission.admitted for admission in two.shake_all())
            assert {two.marker(index).attempt for index in range(3)} == {one.admissions.founding.number}


def test_a_prepared_master_becomes_final_hours_after_the_others() -> None:
    one = Rig()
    for _ in range(3):
        one.shake_all()
    one.shake(0)
    one.shake(1)
    two = rival(one)
    two.now += 600 * SECOND
    assert [two.decide(index).admitted for index in range(3)] == [True, True, False]
    assert two.decide(2).admitted
    assert not two.marker(2).out


def test_a_prepared_master_of_another_attempt_is_kept_out() -> None:
    one = Rig().found()
    stale = Rig()
    for _ in range(3):
        stale.wall_off_us = 7
        stale.shake_all()
    assert is_prepared(stale.report(1))
    one.markers[1] = stale.markers[1]
    two = one.again()
    two.decide(0)
    two.decide(1)
    two.now += SECOND
    two.decide(1)
    assert not two.decide(1).admitted
    assert two.marker(1).out


def test_a_prepared_marker_is_replaced_after_a_second_look_at_the_others() -> None:
    """Its founder and one of the drafts have gone."""
    one = Rig()
    one.shake_all()
    one.shake_all()
    one.shake_all()
    one.markers[2] = None
    two = rival(one)
    admissions = two.shake_all()
    assert [(admission.wait_ns, admission.cause) for admission in admissions] == [(0, None)] * 3
    assert two.admissions.handshake(0).write is None
    for _ in range(4):
        two.shake_all()
    assert all(admission.admitted for admission in two.shake_all())
    assert two.marker(0).attempt == two.admissions.founding.number


def test_a_prepared_marker_stays_while_the_other_masters_may_have_had_their_draft_since() -> None:
    one = Rig()
    one.shake_all()
    one.shake_all()
    before = one.report(2)._replace(marker=None)
    one.shake_all()
    reports = [one.report(0), one.report(1), before]
    two = Founding(lambda: 1, lambda: 0.0)
    assert two.step(0, reports[0], reports) is Step.READ_AGAIN
    assert two.step(2, reports[2], reports) is Step.READ_AGAIN
    now = [one.report(index) for index in range(3)]
    assert two.step(0, now[0], now) is Step.FINISH


def test_the_earlier_founder_replaces_the_drafts_of_the_later_one() -> None:
    two = rival(Rig())
    two.shake_all()
    two.shake(0)
    two.shake(1)
    reports = [two.report(index) for index in range(3)]
    one = Founding(lambda: 1, lambda: 0.0)
    assert [one.step(index, report, reports) for index, report in enumerate(reports)] == [Step.WRITE_DRAFT] * 3
    assert two.admissions.founding.step(0, reports[0], reports) is not Step.GIVE_WAY


def test_a_founder_that_ends_before_all_drafts_are_written_holds_up_others_until_they_expire() -> None:
    one = Rig()
    two = rival(one)
    one.shake_all()
    one.shake(0)
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
    assert attempts(rig) == [rig.admissions.founding.number] * 3


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


def test_a_client_that_knew_markers_within_a_month_founds_nothing() -> None:
    rig = Rig().found()
    rig.now += 31 * 86_400 * SECOND
    rig.markers[:] = [None] * 3
    rig.shake_all()
    rig.shake_all()
    assert all(rig.marker(index).out for index in range(3))


def test_a_draft_of_an_earlier_process_counts_as_none() -> None:
    rig = Rig()
    rig.shake_all()
    rig.shake_all()
    assert attempt_of(rig.report(0))
    rig.restart(0, keeps=True)
    assert not attempt_of(rig.report(0))


@pytest.mark.parametrize(("text", "final"), [(None, False), (b"mine", True)])
def test_an_unknown_text_counts_as_final(text: Any, final: bool) -> None:
    rig = Rig()
    rig.markers[0] = text
    assert is_in_use(rig.report(0)) == final


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
