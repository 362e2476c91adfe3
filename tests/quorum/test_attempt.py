"""One attempt, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoPermissionError
from support.scripted_votes import BEGINNING, LATENCY, SECOND, TTL_MS, Play

from redlatch import impl


@pytest.fixture
def play(implementation: impl.Implementation) -> Play:
    return Play(masters=3, build=implementation)


def attempt_of(play: Play) -> Any:
    """Return the attempts of an acquire without a time limit."""
    play.hold.claim(play.ticket)
    return play.new_attempt(play.quorum, play.hold, TTL_MS, 1 << 62, BEGINNING)


def test_a_late_vote_of_the_first_master_is_no_quorum(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.reached()
    ballot = attempt.begin(BEGINNING)
    assert ballot.lone()
    # The master was silent for too long.
    assert attempt.second() is None
    # Another thread counts its vote now.
    ballot.yes = 1
    assert not attempt.keep_if_won()
    assert not attempt.reopen_for_all()
    # The command that judge returns undoes the vote.
    assert attempt.judge().command.releases


def test_a_yes_of_the_first_master_leads_to_a_ballot_of_the_others(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.reached()
    ballot = attempt.begin(BEGINNING)
    ballot.yes = 1
    others = attempt.second()
    assert (others.size, others.quorum, others.asked) == (2, 1, ~ballot.asked)
    assert not attempt.keep_if_won()
    others.yes = 1
    assert attempt.keep_if_won()
    assert play.hold.state == play.claims.HELD


def split_votes(play: Play) -> Any:
    """Return attempts of which the last one got the vote of the first master, but too few of the others."""
    attempt = attempt_of(play)
    attempt.reached()
    attempt.begin(BEGINNING).yes = 1
    others = attempt.second()
    others.no = 2
    assert not attempt.keep_if_won()
    attempt.reopen_for_all()
    attempt.judge()
    return attempt


@pytest.mark.parametrize("waited", [True, False])
def test_after_a_split_vote_the_masters_are_asked_in_the_same_order_again(play: Play, waited: bool) -> None:
    attempt = split_votes(play)
    attempt.waited(waited)
    assert attempt.begin(BEGINNING).lone()


def test_a_first_master_that_refuses_although_the_key_is_free_is_asked_with_the_others(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.reached()
    attempt.begin(BEGINNING).no = 1
    assert attempt.second() is None
    assert not attempt.keep_if_won()
    attempt.reopen_for_all()
    attempt.judge()
    attempt.waited(False)
    assert not attempt.begin(BEGINNING).lone()


def test_an_interrupted_attempt_shows_no_deadline_while_it_is_undone(play: Play) -> None:
    attempt = attempt_of(play)
    attempt.begin(BEGINNING)
    assert play.hold.undoing(play.ticket) is not None
    assert play.hold.deadline_ns == 0


def test_a_quorum_in_doubt_is_asked_once_more_although_the_time_is_over(play: Play) -> None:
    """Found by an attack: a single attempt on a master that was just flushed said that the free lock was held."""
    play.hold.claim(play.ticket)
    attempt = play.new_attempt(play.quorum, play.hold, TTL_MS, 0, BEGINNING)
    for over in (False, True):
        ballot = attempt.begin(play.now)
        ballot.yes, ballot.decided = 3, True
        play.quorum.doubts.add(play.now + 1)
        assert not attempt.keep_if_won()
        attempt.reopen_for_all()
        assert attempt.judge().command.releases
        assert (bool(attempt.over), bool(attempt.waits)) == (over, over)
        play.now += 1


@pytest.mark.parametrize(("cause", "attempts"), [(ConnectionResetError, 3), (ConnectionRefusedError, 2)])
def test_a_third_attempt_follows_if_another_connection_broke_during_the_second(
    play: Play, cause: type[OSError], attempts: int
) -> None:
    attempt = attempt_of(play)
    over = []
    for _ in range(attempts):
        ballot = attempt.begin(play.now)
        ballot.failed, ballot.decided = 2, True
        ballot.causes = dict.fromkeys(range(2), cause())
        assert not attempt.keep_if_won()
        attempt.reopen_for_all()
        attempt.judge()
        over.append(bool(attempt.over))
    assert over == [False] * (attempts - 1) + [True]


def fail(play: Play, attempt: Any) -> None:
    """Make an attempt in which two of three masters fail."""
    play.vote(attempt.begin(play.now), "!!")
    play.now += LATENCY
    assert attempt.second() is None and not attempt.keep_if_won() and not attempt.reopen_for_all()
    attempt.judge()


def test_a_refusal_of_the_first_master_ends_the_outage(implementation: impl.Implementation) -> None:
    """The next outage is ridden out anew, although the others were not asked in between."""
    play = Play(masters=3, build=implementation, patience=2)
    attempt = attempt_of(play)
    assert play.queues.become_head(play.hold, BEGINNING)
    fail(play, attempt)
    play.now += SECOND
    fail(play, attempt)
    assert not attempt.over and list(play.queues.outages) == [play.hold.key]
    attempt.reached()
    attempt.begin(play.now).no = 1
    assert attempt.second() is None and not attempt.keep_if_won() and not attempt.reopen_for_all()
    attempt.judge()
    assert attempt.waits and play.queues.outages == {}
    attempt.waited(False)
    play.now += SECOND
    began = play.now
    while not attempt.over:
        fail(play, attempt)
        play.now = max(play.now, attempt.pause_ns())
    assert play.now >= began + 2 * SECOND


@pytest.mark.parametrize(("refusals", "over"), [(1, False), (2, True)])
def test_no_patience_is_lost_on_a_missing_right(implementation: impl.Implementation, refusals: int, over: bool) -> None:
    play = Play(masters=3, build=implementation, patience=2)
    attempt = attempt_of(play)
    for _ in range(2):
        ballot = attempt.begin(play.now)
        play.vote(ballot, "!!")
        ballot.causes = {index: NoPermissionError("NOPERM no permissions") for index in range(refusals)}
        play.now += LATENCY
        assert attempt.second() is None and not attempt.keep_if_won() and not attempt.reopen_for_all()
        attempt.judge()
    assert attempt.over is over
