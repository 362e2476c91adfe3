"""One attempt, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from test_quorum import BEGINNING, TTL_MS, Play

from redlatch import impl


@pytest.fixture
def play(implementation: impl.Implementation) -> Play:
    return Play(masters=3, build=implementation)


def attempt_of(play: Play) -> Any:
    """Return the attempts of an acquire without a time limit."""
    play.hold.claim(play.ticket)
    return play.new_attempt(play.policy, play.lines, play.hold, TTL_MS, 1 << 62, BEGINNING)


def test_the_vote_of_the_master_that_is_asked_first_is_no_quorum_however_late_it_comes(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.reached()
    ballot = attempt.begin(BEGINNING)
    assert ballot.lone()
    assert attempt.second() is None  # it was silent for too long
    ballot.yes = 1  # another thread counts its vote now
    assert not attempt.won()
    assert not attempt.settles()
    assert attempt.judge().command.releases  # and it is undone


def test_a_yes_of_the_master_that_is_asked_first_leads_to_a_ballot_of_the_others(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.reached()
    ballot = attempt.begin(BEGINNING)
    ballot.yes = 1
    others = attempt.second()
    assert (others.size, others.quorum, others.asked) == (2, 1, ~ballot.asked)
    assert not attempt.won()
    others.yes = 1
    assert attempt.won()
    assert play.hold.state == play.holds.HELD
