"""`UpkeepSchedule`: what is due, and what follows from a renewal."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest
from support.interleaving import meet
from support.upkeep_play import NOW, TTL_MS, Lock, Play

from redlatch.drivers import upkeep as reports
from redlatch.errors import LockError, LockLost
from redlatch.loss import FORGOTTEN, KEY_GONE, RAN_OUT, RELEASED
from redlatch.quorum import upkeep, upkeep_schedule
from redlatch.quorum.key_watch import FIRST_NS
from redlatch.quorum.upkeep import Term
from redlatch.quorum.upkeep_schedule import LONGEST_NS
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_lock_that_is_released_while_its_renewal_is_concluded_is_not_reported_as_lost(play: Play) -> None:
    renewed = play.begin_renewal()
    play.meet(play.released)
    play.schedule.conclude(renewed, {}, None)
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_a_lease_that_a_renewal_finds_forgotten_is_reported_once(play: Play) -> None:
    renewed = play.begin_renewal()
    play.hold.shorten(play.lease.token, NOW)  # as the extension does
    play.schedule.conclude(renewed, {0: LockLost("gone", reason=FORGOTTEN)}, None)
    assert play.schedule.next_ns(NOW + 1) <= NOW + 1
    assert play.lost_at(NOW + 1) == [(FORGOTTEN, play.term)]
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_a_lease_that_runs_out_while_its_renewal_fails_is_reported_once(play: Play) -> None:
    renewed, failure = play.begin_renewal(), LockError("no master answers")
    # The loss is due before the renewal ends, and `conclude` then finds the same loss.
    ((reason, _),) = play.lost_at(NOW + SECOND)
    assert reason
    play.schedule.conclude(renewed, {}, failure)
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_the_failure_of_a_renewal_is_not_that_of_a_later_lease(play: Play) -> None:
    renewed = play.begin_renewal()
    later = play.acquired_again()
    assert later is not play.term
    play.schedule.add(later)
    next_ns = play.schedule.next_ns(NOW)
    play.schedule.conclude(renewed, {}, LockError("no master answers"))
    assert play.schedule.next_ns(NOW) == next_ns
    assert later.failure is None and play.term.failure is not None
    assert "no master answers" not in str(play.upkeep.why_over(NOW + 60 * SECOND))


def test_a_renewal_that_finds_an_old_lease_forgotten_says_nothing_about_a_later_one(play: Play) -> None:
    renewed = play.begin_renewal()
    later = play.acquired_again()
    play.schedule.add(later)
    play.schedule.conclude(renewed, {0: LockLost("gone", reason=FORGOTTEN)}, None)
    assert play.lost_at(NOW) == []
    assert later.live()


def test_a_lock_is_renewed_again_after_each_renewal(play: Play) -> None:
    renewed, now = play.begin_renewal(), NOW
    for _ in range(3):
        play.hold.lease = play.hold.lease.until(now + TTL_MS * MILLISECOND)
        play.schedule.conclude(renewed, {}, None)
        now = play.hold.deadline_ns - TTL_MS * MILLISECOND * 2 // 3
        renewed = play.schedule.due(now)
        assert (renewed, list(play.schedule.lost)) == ([play.term], [])


def test_a_renewal_that_ends_while_the_schedule_looks_at_its_lock_is_followed_by_the_next(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = play.begin_renewal()
    # An extension by the user has the schedule look at the lock while the renewal is under way.
    play.schedule.add(play.upkeep.begin(NOW))
    deadline_ns = NOW + TTL_MS * MILLISECOND
    play.hold.prolong(play.lease.token, NOW, deadline_ns)
    meet(monkeypatch, Term, "plan", lambda: play.schedule.conclude(renewed, {}, None))
    play.schedule.due(NOW)
    assert play.schedule.due(deadline_ns - SECOND) == [play.term]


def test_a_renewal_that_never_began_is_due_again_before_the_deadline(play: Play) -> None:
    play.schedule.add(play.term)
    # The caller was interrupted before it took the result.
    assert play.schedule.due(NOW) == [play.term]
    again_ns = play.schedule.next_ns(NOW)
    assert NOW < again_ns < play.hold.deadline_ns
    assert play.schedule.due(again_ns) == [play.term]


def test_a_lock_at_the_end_of_its_max_hold_is_looked_at_again_at_its_deadline_only(play: Play) -> None:
    play.upkeep.max_hold_ns = SECOND
    play.schedule.add(play.term)
    assert play.schedule.due(NOW) == []
    assert play.term.due_ns == play.hold.deadline_ns


def test_an_event_that_is_made_as_the_loss_is_marked_is_marked_too(play: Play) -> None:
    # The event of a lock that was marked before it had one: its maker saw no reason yet.
    seen: list[str | None] = []
    play.lock._mark_lost = lambda term: seen.append(term.reason)  # type: ignore[method-assign]
    play.schedule.add(play.term)
    play.schedule.due(NOW + SECOND)
    assert seen[-1] is not None


def lines_of(calls: Callable[[], object], *modules: ModuleType) -> int:
    """Return how many lines of these modules a call runs."""
    return struck(calls, 1 << 62, *modules)


def struck(calls: Callable[[], object], place: int, *modules: ModuleType) -> int:
    """Call something, and raise KeyboardInterrupt before the line of this number; return how many lines have run."""
    files = {module.__file__ for module in modules}
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines += 1
            if lines > place:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        calls()
    finally:
        sys.settrace(before)
    return lines


class Attended:
    """A schedule with a renewal and a loss that are due, and the driver's part of a look at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play = play = Play(monkeypatch)
        self.lost = Lock()
        hold = copy.copy(play.hold)
        hold.lease = hold.lease.until(NOW)
        play.schedule.add(play.term)
        play.schedule.add(upkeep.Upkeep(self.lost, hold, TTL_MS).begin(NOW))
        self.due: list[Term] = []
        self.now = NOW

    def attend(self) -> None:
        try:
            self.due += self.play.schedule.due(self.now)
        finally:
            reports.report_losses(self.play.schedule.lost)

    def attend_later(self) -> None:
        self.now = self.play.schedule.next_ns(self.now)
        self.attend()


def test_no_interrupt_of_a_look_or_a_report_loses_a_renewal_or_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = upkeep, upkeep_schedule, reports
    with monkeypatch.context() as patch:
        whole = Attended(patch)
        places = lines_of(whole.attend, *modules)
    assert (whole.due, whole.lost.reasons) == ([whole.play.term], [RAN_OUT])
    for place in range(places):
        with monkeypatch.context() as patch:
            attended = Attended(patch)
            with pytest.raises(KeyboardInterrupt):
                struck(attended.attend, place, *modules)
            attended.attend()
            attended.attend_later()
        assert attended.play.term in attended.due, place
        assert attended.lost.marked and attended.lost.reasons, place
        assert attended.now < attended.play.hold.deadline_ns, place


def test_a_lock_that_is_collected_is_not_looked_at_again(play: Play) -> None:
    play.schedule.add(play.term)
    assert play.schedule.next_ns(NOW) <= NOW
    del play.lock
    assert (play.schedule.due(NOW), list(play.schedule.lost)) == ([], [])
    assert play.schedule.next_ns(NOW) == 0


def test_all_locks_are_lost_at_once_when_the_client_releases_them(play: Play) -> None:
    play.schedule.add(play.term)
    assert play.lost_at(NOW) == []
    assert not play.schedule.settled()
    play.quorum.released_ns = NOW
    play.quorum.doubts.add(1 << 62)
    assert play.schedule.next_ns(NOW) <= NOW
    assert play.lost_at(NOW) == [(RELEASED, play.term)]
    assert play.lock.marked == [play.term, play.term]
    assert play.schedule.settled()
    assert play.schedule.next_ns(NOW + SECOND) == 0


def test_a_lock_that_ran_out_before_the_client_released_the_others_keeps_its_reason(play: Play) -> None:
    play.schedule.add(play.term)
    play.quorum.released_ns = NOW + 2 * SECOND
    ((reason, _),) = play.lost_at(NOW + 2 * SECOND)
    assert reason.startswith(RAN_OUT)


def test_a_schedule_is_settled_when_its_locks_are_released_or_lost(play: Play) -> None:
    assert play.schedule.settled()
    play.schedule.add(play.term)
    assert not play.schedule.settled()
    play.released()
    assert play.schedule.settled()


# --- heartbeats -----------------------------------------------------------------------------------------------


def stalled(play: Play, looks: list[int]) -> int:
    """Look at the schedule at these times after NOW; return for how long it found that nothing ran."""
    play.hold.lease = play.hold.lease.until(NOW + 3600 * SECOND)
    play.schedule.expect_to_run(SECOND)
    play.schedule.add(play.term)
    for ns in looks:
        play.schedule.due(NOW + ns)
    return play.term.stalled_ns


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([0, SECOND, 2 * SECOND], 0),
        ([0, SECOND, 2 * SECOND + 1], SECOND + 1),
        ([SECOND], 0),
        # The first look after the lock was won comes late.
        ([2 * SECOND], 2 * SECOND),
        # The first finding counts.
        ([0, 5 * SECOND, 12 * SECOND], 5 * SECOND),
    ],
)
def test_a_lease_is_not_renewed_any_more_after_a_pause_of_the_process(
    play: Play, looks: list[int], found: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert stalled(play, looks) == found
    assert play.term.renews == (not found)
    assert len(caplog.records) == (1 if found else 0)


def test_a_pause_before_a_lease_began_does_not_concern_it(play: Play) -> None:
    play.schedule.expect_to_run(SECOND)
    play.schedule.due(NOW - 60 * SECOND)
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    assert not play.term.stalled_ns


def test_a_lease_that_is_not_renewed_any_more_runs_out_with_the_reason(play: Play) -> None:
    deadline_ns = play.hold.deadline_ns
    play.schedule.expect_to_run(SECOND // 2)
    play.schedule.add(play.term)
    assert play.schedule.due(NOW + 9 * SECOND // 10) == []
    ((reason, term),) = play.lost_at(deadline_ns)
    assert reason == "its process, or event loop, had not run for 0.9 s, so it was not renewed any more"
    assert term is play.term


def test_a_later_lease_is_renewed_again(play: Play) -> None:
    play.schedule.expect_to_run(SECOND // 2)
    play.schedule.add(play.term)
    play.schedule.due(NOW + 9 * SECOND // 10)
    assert play.term.stalled_ns
    assert not play.acquired_again().stalled_ns


def test_the_schedule_looks_often_enough_for_the_heartbeat(play: Play) -> None:
    play.hold.lease = play.hold.lease.until(NOW + 3600 * SECOND)
    play.schedule.add(play.term)
    assert play.schedule.next_ns(NOW) == NOW + LONGEST_NS
    play.schedule.expect_to_run(SECOND // 10)
    assert play.schedule.next_ns(NOW) == NOW + SECOND // 20
    play.schedule.expect_to_run(0)
    assert play.schedule.next_ns(NOW) == NOW + LONGEST_NS


# --- watched keys ---------------------------------------------------------------------------------------------


def test_a_lease_is_watched_only_if_its_user_asked(play: Play) -> None:
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    assert not play.schedule.keys.watching()
    play.upkeep.asked = True
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    assert play.schedule.keys.watching()
    assert play.schedule.next_ns(NOW) == NOW + FIRST_NS
    play.schedule.due(NOW + FIRST_NS)
    assert play.schedule.keys.take_due() == [play.term]


def test_the_schedule_rests_while_a_question_is_under_way(play: Play) -> None:
    play.upkeep.asked = True
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    watch = play.term.watch
    assert watch is not None
    watch.begin(NOW)
    # A new connection, or an extension, asks for another question.
    watch.ask_by(NOW)
    play.schedule.add(play.term)
    play.schedule.due(NOW + 1)
    assert play.schedule.next_ns(NOW + 1) > NOW + 1
    play.schedule.keys.conclude([play.term])
    assert play.schedule.next_ns(NOW + 2) <= NOW + 2


def test_a_question_follows_a_renewal_and_an_extension(play: Play) -> None:
    play.upkeep.asked = True
    renewed = play.begin_renewal()
    watch = play.term.watch
    assert watch is not None
    watch.due_ns = UNBOUNDED
    play.schedule.conclude(renewed, {}, None)
    play.schedule.due(NOW)
    assert play.schedule.keys.take_due() == [play.term]
    watch.due_ns = UNBOUNDED
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    assert not play.schedule.keys.take_due()
    play.schedule.due(NOW + FIRST_NS)
    assert play.schedule.keys.take_due() == [play.term]


def test_a_lease_whose_key_is_gone_is_lost_at_the_next_look(play: Play) -> None:
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    play.term.lose(KEY_GONE, NOW + 1)
    play.schedule.add(play.term)
    assert play.lost_at(NOW + 1) == [(KEY_GONE, play.term)]


def test_a_key_that_is_gone_after_the_release_is_no_loss(play: Play) -> None:
    play.schedule.add(play.term)
    play.schedule.due(NOW)
    play.handed_back()
    play.term.lose(KEY_GONE, NOW + 1)
    play.released()
    assert play.lost_at(NOW + 100 * SECOND) == []


def test_a_lease_in_doubt_is_verified_even_if_it_is_added_again(play: Play) -> None:
    """Before the fix, a lock whose `lost` was used just then was verified never."""
    play.upkeep.renews = False
    play.quorum.doubts.add(NOW)
    play.schedule.add(play.term)
    play.schedule.add(play.term)
    assert play.schedule.due(NOW) == [play.term]
