"""`Term` and `Upkeep`: when a lease is over, while other threads change it."""

from __future__ import annotations

import pytest
from support.upkeep_play import NOW, Play

from redlatch.votes.units import SECOND


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
