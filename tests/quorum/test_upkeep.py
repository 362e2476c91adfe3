"""`UpkeepSchedule`: what is due, played step by step without a driver."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redlatch import impl
from redlatch.errors import LockError, LockLost
from redlatch.quorum.outcome import FORGOTTEN
from redlatch.quorum.upkeep import Term, Upkeep, UpkeepSchedule
from redlatch.votes.units import MILLISECOND, SECOND

NOW = 100 * SECOND
TTL_MS = 3000


class Lock:
    """A lock object that may be referred to weakly."""


class Play:
    """One held lock, with another thread that comes in while the schedule reads its lease."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        build = impl.load("python")
        self.claims = build.module("quorum.claim")
        self.holds = holds = build.module("quorum.hold")
        self.lease = build.module("quorum.lease").new_lease(b"token", NOW - SECOND, NOW + SECOND)
        self.hold = hold = holds.Hold("name", b"name", build.module("quorum.kinds.plain").PLAIN)
        hold.claim(object())
        hold.ask(self.lease)
        hold.keep(0)
        self.lock = Lock()
        self.upkeep = Upkeep(self.lock, hold, TTL_MS, renews=True)
        self.term = self.upkeep.begin(NOW)
        policy: Any = SimpleNamespace(
            doubts=build.module("quorum.policy").Doubts(),
            random=lambda: 0.5,
            validity_ns=lambda ttl_ms: ttl_ms * MILLISECOND,
        )
        self.schedule = UpkeepSchedule(policy)
        self._meets: Callable[[], None] | None = None
        slot = holds.Hold.lease

        def read(hold: Any) -> Any:
            found, meets, self._meets = slot.__get__(hold), self._meets, None
            if meets is not None:
                meets()
            return found

        monkeypatch.setattr(holds.Hold, "lease", property(read, slot.__set__))

    def meet(self, meets: Callable[[], None]) -> None:
        """Have another thread run this right after the lease is read the next time."""
        self._meets = meets

    def released(self) -> None:
        self.hold.begin_release(NOW)
        self.hold.free()

    def handed_back(self) -> None:
        """Pass the lease on, and get it back from the next holder: the same token, with a later deadline."""
        self.released()
        self.hold.claim(object())
        self.hold.to_waiting()
        self.hold.take_lease(self.lease.until(NOW + 60 * SECOND), self.hold)

    def acquired_again(self) -> Term:
        """Release the lock, and acquire the same lease again: by a hand-off and back."""
        self.handed_back()
        self.upkeep.end()
        return self.upkeep.begin(NOW)

    def begin_renewal(self) -> list[Term]:
        """Let the renewal begin that is due."""
        self.schedule.add(self.term)
        renewed, lost = self.schedule.due(NOW)
        assert (renewed, lost) == ([self.term], [])
        return renewed

    def lost_at(self, now_ns: int) -> list[tuple[str | None, object]]:
        """Return the reasons and the terms of the losses that are due at a time."""
        return [(term.reason, term) for _, term in self.schedule.due(now_ns)[1]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_lease_whose_deadline_has_passed_is_over(play: Play) -> None:
    assert play.term.over(NOW + SECOND)
    assert not play.term.over(NOW + SECOND - 1)


def test_a_lock_that_is_released_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.released)
    assert not play.term.over(NOW + SECOND)
    assert not play.term.over(NOW)


def test_a_lock_that_was_released_has_no_deadline_that_could_be_over(play: Play) -> None:
    play.released()
    assert play.hold.deadline_ns == 0
    assert not play.term.over(NOW)


def test_a_lease_that_was_handed_off_and_came_back_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.handed_back)
    assert not play.term.over(NOW + SECOND)
    assert play.upkeep.live()


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
