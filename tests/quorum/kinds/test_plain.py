"""The plain lock: what it undoes, and which masters it asks first."""

from __future__ import annotations

import pytest
from support.scripted_votes import BEGINNING, KEY, SECOND, Play

from redlatch import impl


def test_the_one_object_has_no_room_for_the_state_of_a_lock(implementation: impl.Implementation) -> None:
    plain = implementation.module("quorum.kinds.plain").PLAIN
    with pytest.raises(AttributeError):
        plain.key = KEY


def test_an_attempt_that_all_masters_refused_is_not_undone(implementation: impl.Implementation) -> None:
    play = Play(masters=1, build=implementation)
    assert not play.acquire("n")
    assert play.kinds() == ["Ballot Acquire"]


def test_an_attempt_that_lost_does_not_wait_for_the_other_masters(play: Play) -> None:
    assert not play.acquire("nnny")
    # Two masters have not answered, and may have the key for us.
    assert play.kinds() == ["Ballot Acquire", "Send Release"]


def test_the_attempt_after_a_refusal_asks_one_master_before_the_others(play: Play) -> None:
    assert play.acquire("nnn", "yyyyy", give_up_ns=BEGINNING + SECOND)
    first, lone, rest = [ballot for ballot in play.of("Ballot") if type(ballot.command).__name__ == "Acquire"]
    assert first.asked == -1
    assert lone.lone() and rest.asked == ~lone.asked
    assert lone.command.token == rest.command.token != first.command.token


def test_a_waiter_watches_the_key_of_the_lock(play: Play) -> None:
    assert play.acquire("nnn", "yyyyy", give_up_ns=BEGINNING + SECOND)
    [look] = play.of("Watch")
    assert (type(look.command).__name__, look.command.key) == ("Look", KEY)
    # The acquire has ended its watch.
    assert not play.queues.watches.by_key
