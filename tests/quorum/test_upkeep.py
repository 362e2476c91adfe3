"""`UpkeepSchedule`: what is due, played step by step without a driver."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from redlatch import impl
from redlatch.quorum.upkeep import Upkeep, UpkeepSchedule
from redlatch.votes.units import SECOND

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
        self.upkeep.begin(NOW)
        policy: Any = SimpleNamespace(doubts=build.module("quorum.policy").Doubts(), random=lambda: 0.5)
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


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_lease_whose_deadline_has_passed_is_over(play: Play) -> None:
    assert play.upkeep.over(NOW + SECOND)
    assert not play.upkeep.over(NOW + SECOND - 1)


def test_a_lock_that_is_released_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.released)
    assert not play.upkeep.over(NOW + SECOND)
    assert not play.upkeep.over(NOW)


def test_a_lock_that_was_released_has_no_deadline_that_could_be_over(play: Play) -> None:
    play.released()
    assert play.hold.deadline_ns == 0
    assert not play.upkeep.over(NOW)


def test_a_lease_that_was_handed_off_and_came_back_meanwhile_is_not_over(play: Play) -> None:
    play.meet(play.handed_back)
    assert not play.upkeep.over(NOW + SECOND)
    assert play.upkeep.live()


def test_a_lock_that_is_released_while_its_renewal_is_settled_is_not_reported_as_lost(play: Play) -> None:
    play.meet(play.released)
    assert play.schedule.conclude([play.upkeep], {}, None, NOW + 2 * SECOND) == []
