"""`UpkeepSchedule`: what is due, and what follows from a renewal."""

from __future__ import annotations

import pytest
from support.upkeep_play import NOW, TTL_MS, Play

from redlatch.errors import LockError, LockLost
from redlatch.quorum.outcome import FORGOTTEN
from redlatch.votes.units import MILLISECOND, SECOND


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_lock_that_is_released_while_its_renewal_is_concluded_is_not_reported_as_lost(play: Play) -> None:
    renewed = play.begin_renewal()
    play.meet(play.released)
    play.schedule.conclude(renewed, {}, None, NOW + 2 * SECOND)
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_a_lease_that_a_renewal_finds_forgotten_is_reported_once(play: Play) -> None:
    renewed = play.begin_renewal()
    play.hold.shorten(play.lease.token, NOW)  # as the extension does
    play.schedule.conclude(renewed, {0: LockLost("gone", reason=FORGOTTEN)}, None, NOW + 1)
    assert play.schedule.next_ns(NOW + 1) <= NOW + 1
    assert play.lost_at(NOW + 1) == [(FORGOTTEN, play.term)]
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_a_lease_that_runs_out_while_its_renewal_fails_is_reported_once(play: Play) -> None:
    renewed, failure = play.begin_renewal(), LockError("no master answers")
    # The loss is due before the renewal ends, and `conclude` then finds the same loss.
    ((reason, _),) = play.lost_at(NOW + SECOND)
    assert reason
    play.schedule.conclude(renewed, {}, failure, NOW + SECOND)
    assert play.lost_at(NOW + 2 * SECOND) == []


def test_the_failure_of_a_renewal_is_not_that_of_a_later_lease(play: Play) -> None:
    renewed = play.begin_renewal()
    later = play.acquired_again()
    assert later is not play.term
    play.schedule.add(later)
    planned_ns = later.due_ns
    play.schedule.conclude(renewed, {}, LockError("no master answers"), NOW)
    assert later.failure is None
    assert later.due_ns == planned_ns
    assert "no master answers" not in play.upkeep.why_over(NOW + 60 * SECOND)


def test_a_renewal_that_finds_an_old_lease_forgotten_says_nothing_about_a_later_one(play: Play) -> None:
    renewed = play.begin_renewal()
    later = play.acquired_again()
    play.schedule.add(later)
    play.schedule.conclude(renewed, {0: LockLost("gone", reason=FORGOTTEN)}, None, NOW)
    assert play.lost_at(NOW) == []
    assert later.live()


def test_a_lock_is_renewed_again_after_each_renewal(play: Play) -> None:
    renewed, now = play.begin_renewal(), NOW
    for _ in range(3):
        play.hold.lease = play.hold.lease.until(now + TTL_MS * MILLISECOND)
        play.schedule.conclude(renewed, {}, None, now)
        now = play.hold.deadline_ns - TTL_MS * MILLISECOND * 2 // 3
        renewed, lost = play.schedule.due(now)
        assert (renewed, lost) == ([play.term], [])
