"""`UpkeepSchedule`: what is due, and what follows from a renewal."""

from __future__ import annotations

import pytest
from support.interleaving import meet
from support.upkeep_play import NOW, TTL_MS, Lock, Play

from redlatch.errors import LockError, LockLost
from redlatch.quorum.outcome import FORGOTTEN
from redlatch.quorum.upkeep import Term, Upkeep
from redlatch.votes.units import MILLISECOND, SECOND


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
    assert "no master answers" not in play.upkeep.why_over(NOW + 60 * SECOND)


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
        renewed, lost = play.schedule.due(now)
        assert (renewed, lost) == ([play.term], [])


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
    assert play.schedule.due(deadline_ns - SECOND) == ([play.term], [])


def test_an_interrupt_while_the_schedule_looks_loses_no_lock(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def strike() -> None:
        raise KeyboardInterrupt

    play.schedule.add(play.term)
    meet(monkeypatch, Term, "is_due", strike)
    with pytest.raises(KeyboardInterrupt):
        play.schedule.due(NOW)
    assert play.schedule.due(NOW) == ([play.term], [])


def test_an_interrupt_after_a_loss_was_found_leaves_its_report_to_the_next_call(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike() -> None:
        raise KeyboardInterrupt

    play.schedule.add(play.term)
    other = Upkeep(other_lock := Lock(), play.hold, TTL_MS).begin(NOW)
    play.schedule.add(other)
    over = Term.over

    def look(term: Term, now_ns: int) -> bool:
        if term is other:
            monkeypatch.setattr(Term, "over", over)
            strike()
        return over(term, now_ns)

    monkeypatch.setattr(Term, "over", look)
    with pytest.raises(KeyboardInterrupt):
        play.schedule.due(NOW + 2 * SECOND)
    assert [term for _, term in play.lost_at(NOW + 2 * SECOND)] == [play.term, other]
    del other_lock


def test_a_lock_whose_event_is_asked_for_during_its_acquire_is_cared_for_once_it_is_held(play: Play) -> None:
    play.released()
    play.hold.claim(object())
    play.hold.to_waiting()
    play.upkeep.end()
    play.schedule.await_hold(play.upkeep)
    assert NOW < play.schedule.next_ns(NOW) < NOW + SECOND // 10
    play.hold.take_lease(play.lease.until(NOW + 10), play.hold)
    assert play.lost_at(NOW + 20) == [(play.upkeep.reason, play.upkeep.term)]
    assert play.upkeep.reason
    assert play.schedule.next_ns(NOW + 20) == 0


def test_a_lock_whose_acquire_was_lost_is_not_awaited_any_more(play: Play) -> None:
    play.released()
    play.schedule.await_hold(play.upkeep)
    assert play.schedule.next_ns(NOW) == 0


def test_a_lock_that_is_collected_is_not_looked_at_again(play: Play) -> None:
    play.schedule.add(play.term)
    assert play.schedule.next_ns(NOW) <= NOW
    del play.lock
    assert play.schedule.due(NOW) == ([], [])
    assert play.schedule.next_ns(NOW) == 0
