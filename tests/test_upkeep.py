"""`UpkeepSchedule`: what is due, played step by step without a driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redlatch import impl
from redlatch.quorum.hold import HELD
from redlatch.quorum.upkeep import Upkeep, UpkeepSchedule
from redlatch.votes.units import SECOND

NOW = 100 * SECOND


class Lock:
    """A lock object that may be referred to weakly."""


class ReleasedMeanwhile:
    """A held lock that another thread releases at the moment when its deadline is read."""

    token = b"token"
    state = HELD

    @property
    def deadline_ns(self) -> int:
        if self.releases:
            self.state = impl.load("python").module("quorum.hold").FREE
        return NOW + SECOND if self.state == HELD else 0

    releases = False

    def adopt(self, now_ns: int) -> None:
        self.releases = self.releases_at == "due"

    def being_extended(self, now_ns: int) -> bool:
        return False

    lease = SimpleNamespace(asked_ns=NOW - SECOND)
    releases_at = "due"


@pytest.fixture
def policy() -> Any:
    return SimpleNamespace(doubted_ns=0, doubts=lambda asked_ns: False, random=lambda: 0.5)


def test_a_lock_that_is_released_meanwhile_is_not_reported_as_lost(policy: Any) -> None:
    lock, hold = Lock(), ReleasedMeanwhile()
    upkeep = Upkeep(lock, hold, 3000)  # type: ignore[arg-type]
    upkeep.begin(NOW)
    schedule = UpkeepSchedule(policy)
    schedule.add(upkeep)
    assert schedule.due(NOW + SECOND) == ([], [])
    assert hold.state != HELD


def test_a_lock_that_is_released_while_its_renewal_is_settled_is_not_reported_as_lost(policy: Any) -> None:
    lock, hold = Lock(), ReleasedMeanwhile()
    upkeep = Upkeep(lock, hold, 3000, renews=True)  # type: ignore[arg-type]
    upkeep.begin(NOW)
    schedule = UpkeepSchedule(policy)
    hold.releases = True
    assert schedule.settle([upkeep], {}, None, NOW) == []
    assert hold.state != HELD
