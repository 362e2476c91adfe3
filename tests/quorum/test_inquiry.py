"""`locked()`, `owned()` and `holder()`."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, SECOND, VALIDITY, Play, Votes

from redlatch.errors import ConfigurationError, QuorumUnavailable


def locked(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.locked(play.quorum, play.hold, SECOND), *script)


def owned(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.owned(play.quorum, play.hold, SECOND), *script)


@pytest.mark.parametrize(("votes", "verdict"), [("yyy", True), ("nnn", False), ("yynnn", False), ("!!yyy", True)])
def test_a_name_is_locked_if_a_quorum_has_a_key_for_it(play: Play, votes: str, verdict: bool) -> None:
    assert locked(play, votes) is verdict


def test_locked_needs_no_token(play: Play) -> None:
    locked(play, "nnn")
    [ask] = play.effects
    assert isinstance(ask.command, play.commands.Locked)
    assert ask.command.token == b""


def test_a_query_that_fails_once_is_repeated(play: Play) -> None:
    assert locked(play, "!!!", "yyy") is True


def test_a_query_that_fails_twice_raises(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        locked(play, "!!!", "!!!")


def test_a_query_that_meets_silence_raises_at_once(play: Play) -> None:
    with pytest.raises(QuorumUnavailable, match="did not answer"):
        locked(play, "yy...")


def test_a_lock_that_is_not_held_is_not_owned_and_no_master_is_asked(play: Play) -> None:
    assert owned(play) is False
    assert not play.effects


def test_a_lock_past_its_deadline_is_not_owned_and_no_master_is_asked(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    assert owned(held) is False
    assert not held.effects


@pytest.mark.parametrize(("votes", "verdict"), [("yyy", True), ("nnn", False), ("nnyyy", True), ("yynnn", False)])
def test_a_held_lock_is_owned_if_a_quorum_has_its_token(held: Play, votes: str, verdict: bool) -> None:
    assert owned(held, votes) is verdict
    assert held.effects[0].command.token == held.hold.token


def test_a_lock_whose_deadline_passes_during_the_query_is_not_owned(held: Play) -> None:
    assert owned(held, held.jump(BEGINNING + VALIDITY, "yyyyy")) is False


def test_a_lock_that_was_acquired_again_during_the_query_is_not_owned(held: Play) -> None:
    def meanwhile(_: Any) -> str:
        held.release("yyy")
        assert held.acquire("yyy")
        return "yyy"

    assert owned(held, meanwhile) is False


# --- the holder ------------------------------------------------------------------------------------------


def answers(*said: bytes | None) -> Any:
    """Return votes: each master's answer about the holder; None is a master that has no key."""

    def vote(ballot: Any) -> str:
        voted = ballot.yes + ballot.no
        for index, answer in enumerate(said):
            if index >= voted and not ballot.settled():
                if answer is None:
                    ballot.no += 1
                else:
                    ballot.count_answer(index, answer, False)
        return ""

    return vote


def holder(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.holder(play.quorum, play.hold, SECOND), *script)


def test_the_holder_is_the_token_of_a_quorum_until_too_few_masters_have_it(play: Play) -> None:
    assert holder(play, answers(b"900 0 a", b"700 0 a", b"800 0 a")) == (b"a", 700, 0)


def test_nobody_holds_a_lock_that_only_a_minority_has(play: Play) -> None:
    assert holder(play, answers(None, None, None, b"700 0 a", b"700 0 a")) is None


def test_masters_that_disagree_are_awaited(play: Play) -> None:
    split = answers(b"700 0 a", b"700 0 b", b"700 0 b", b"650 0 b", b"600 0 a")
    assert holder(play, split, split) == (b"b", 650, 0)


def test_no_token_of_a_split_vote_is_the_holder(play: Play) -> None:
    split = answers(b"700 0 a", b"700 0 b", b"700 0 c", b"700 0 a", None)
    assert holder(play, split, split) is None


def test_a_malformed_answer_names_nobody(play: Play) -> None:
    split = answers(b"nonsense", b"700 0 a", b"700 0 a", b"600 0 a", None)
    assert holder(play, split, split) == (b"a", 600, 0)


def test_the_highest_counter_counts_and_a_key_without_a_ttl_outlives_the_others(play: Play) -> None:
    assert holder(play, answers(b"-1 7 a", b"-1 9 a", b"100 8 a")) == (b"a", 100, 9)
    assert holder(play, answers(b"-1 7 a", b"-1 9 a", b"-1 8 a")) == (b"a", -1, 9)


def test_a_lock_of_many_holders_has_no_holder(play: Play) -> None:
    play.hold = play.holds.Hold(
        "name", b"key", play.build.module("quorum.kinds.semaphore").Slot([b"key", b"tokens"], 2)
    )
    with pytest.raises(ConfigurationError, match="'name' may have several holders"):
        holder(play)
    assert not play.effects


# --- who keeps a lock from being acquired ----------------------------------------------------------------


def blockers(play: Play, timeout_ns: int, *script: Votes) -> Any:
    return play.run(play.inquiry.blockers(play.quorum, [play.hold], timeout_ns), *script)


def test_the_blocker_is_the_holder_that_a_quorum_names(play: Play) -> None:
    [(hold, found)] = blockers(play, SECOND, answers(b"900 0 a", b"700 0 a", b"800 0 a"))
    assert hold is play.hold
    assert (found.owner, found.ttl_left, found.held_for, found.fence) == ("", 0.7, None, None)


def test_the_blocker_is_not_known_without_a_quorum_and_that_is_no_error(play: Play) -> None:
    for votes in ("!!!", "nnn", "..."):
        assert blockers(play, SECOND, votes) == []


def test_masters_that_disagree_about_the_blocker_are_awaited(play: Play) -> None:
    split = answers(b"700 0 a", b"700 0 b", b"700 0 b", b"650 0 b", b"600 0 a")
    [(_, found)] = blockers(play, SECOND, split, split)
    assert found.ttl_left == 0.65


@pytest.mark.parametrize(
    ("timeout_ns", "wait_ns"),
    [(1, SECOND // 100), (SECOND // 2, SECOND // 20), (SECOND, SECOND // 10), (1 << 62, SECOND // 10)],
)
def test_the_question_takes_a_tenth_of_the_timeout_within_limits(play: Play, timeout_ns: int, wait_ns: int) -> None:
    now = play.now
    blockers(play, timeout_ns, "nnn")
    assert play.effects[0].ballots[0].until_ns - now == wait_ns


def test_a_lock_of_many_holders_has_no_blocker_and_no_master_is_asked(play: Play) -> None:
    play.hold = play.holds.Hold(
        "name", b"key", play.build.module("quorum.kinds.semaphore").Slot([b"key", b"tokens"], 2)
    )
    assert blockers(play, SECOND) == []
    assert not play.effects
