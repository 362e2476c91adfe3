"""`locked()` and `owned()`."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, SECOND, VALIDITY, Play, Votes

from redlatch.errors import QuorumUnavailable


def locked(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.locked(play.policy, play.hold, SECOND), *script)


def owned(play: Play, *script: Votes) -> Any:
    return play.run(play.inquiry.owned(play.policy, play.hold, SECOND), *script)


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
