"""The locks of a client that is closed with ``release=True``: which are released, how often, and what is reported."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.scripted_votes import SECOND, Play

from redlatch.drivers.held_locks import HeldLocks


@pytest.fixture
def play(implementation: Any) -> Play:
    return Play(3, build=implementation)


def holder(play: Play, key: bytes, lasts_ns: int = SECOND) -> Any:
    """Return a hold with a lease, which is the head of its queue."""
    hold = play.holds.Hold(key, key, play.plain)
    hold.claim(object())
    assert play.queues.become_head(hold, play.now)
    hold.ask(play.build.module("quorum.lease").new_lease(b"token of " + key, play.now, play.now + lasts_ns))
    hold.keep(0)
    return hold


def sent_by(locks: HeldLocks) -> list[Any]:
    """Return the ballots that it sends now."""
    sent: list[Any] = []
    assert locks.release(sent.extend) is bool(sent)
    return sent


def test_nothing_is_released_before_the_leases_have_ended(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    hold = holder(play, b"a")
    assert sent_by(locks) == []
    assert hold.held(play.now)


def test_each_lease_ends_before_it_is_released_and_is_released_once(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    holds = [holder(play, b"a"), holder(play, b"b")]
    locks.end()
    assert play.quorum.released_ns == play.now
    assert play.quorum.doubts.cover(play.now + 10**18)
    assert [hold.deadline_ns for hold in holds] == [play.now, play.now]
    ballots = sent_by(locks)
    assert [(ballot.command.key, ballot.command.token) for ballot in ballots] == [
        (b"a", b"token of a"),
        (b"b", b"token of b"),
    ]
    assert all(ballot.command.releases for ballot in ballots)
    assert sent_by(locks) == []


def test_a_lock_that_is_kept_after_the_end_is_released_too(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    locks.end()
    assert sent_by(locks) == []
    play.now += 1
    hold = holder(play, b"a")
    [ballot] = sent_by(locks)
    assert ballot.command.token == b"token of a"
    assert not hold.held(play.now)
    # The same object may have been acquired again.
    hold.free()
    again = play.build.module("quorum.lease").new_lease(b"token again", play.now, play.now + SECOND)
    hold.claim(object())
    hold.ask(again)
    hold.keep(0)
    assert [ballot.command.token for ballot in sent_by(locks)] == [b"token again"]


def test_releases_whose_sending_was_interrupted_are_sent_again(play: Play) -> None:
    def interrupted(ballots: list[Any]) -> None:
        raise KeyboardInterrupt

    locks = HeldLocks(play.quorum)
    holder(play, b"a")
    locks.end()
    with pytest.raises(KeyboardInterrupt):
        locks.release(interrupted)
    locks.end()
    assert [ballot.command.key for ballot in sent_by(locks)] == [b"a"]


def test_a_lock_that_is_free_or_being_released_is_left_alone(play: Play) -> None:
    locks = HeldLocks(play.quorum)
    holder(play, b"a").begin_release(play.now)
    holder(play, b"b").free()
    locks.end()
    assert sent_by(locks) == []


@pytest.mark.parametrize(("votes", "reported"), [("yy", False), ("nn", False), ("y!!", True), ("y", True), ("", True)])
def test_locks_without_a_verdict_are_reported(
    play: Play, caplog: pytest.LogCaptureFixture, votes: str, reported: bool
) -> None:
    locks = HeldLocks(play.quorum)
    holder(play, b"a")
    holder(play, b"b")
    locks.end()
    for ballot, cast in zip(sent_by(locks), ("yy", votes), strict=True):
        play.vote(ballot, cast)
    with caplog.at_level(logging.WARNING, "redlatch"):
        locks.report()
    assert ("1 of 2 locks may stay" in caplog.text) is reported


def test_no_attempt_wins_after_the_leases_have_ended_whatever_is_known_of_the_masters(play: Play) -> None:
    play.quorum.doubts.add(play.now, 0)
    HeldLocks(play.quorum).end()
    play.quorum.doubts.clear(0)
    steps = play.batch.acquire_many(play.quorum, [play.holds.Hold("a", b"a", play.plain)], object(), 1000)
    play.run(steps, "yyy")
    assert play.queues.held() == []
