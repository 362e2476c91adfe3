"""The fenced lock: its numbers go up, in one round or two."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import BEGINNING, KEY, LATENCY, NAME, SECOND, TTL_MS, Play

from redlatch import Handoff, impl
from redlatch.options import ClientOptions

COUNTER = KEY + b"\0fence"

# What the wall clock of `Play` says in microseconds.
WALL = 1000


@pytest.fixture
def fenced(play: Play, implementation: impl.Implementation) -> Play:
    play.hold = play.holds.Hold(NAME, KEY, implementation.module("quorum.kinds.fenced").Fenced([KEY, COUNTER]))
    return play


def begun(play: Play) -> tuple[Any, Any]:
    """Begin an acquire with one attempt; return its steps and its first ballot."""
    play.hold.claim(play.ticket)
    steps = play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, BEGINNING)
    return steps, next(steps)


def count(ballot: Any, *answers: int) -> None:
    """Count an answer of each master in turn: the number that it granted, or minus its counter."""
    for index, answer in enumerate(answers):
        ballot.count_answer(index, answer, False)
    ballot.decided = ballot.settled()


def test_a_quorum_that_grants_the_proposed_number_makes_one_round(fenced: Play) -> None:
    steps, ballot = begun(fenced)
    assert type(ballot.command).__name__ == "AcquireFenced"
    assert ballot.command.first == ballot.command.last == WALL
    count(ballot, WALL, WALL, WALL)
    assert list(steps) == []
    assert (fenced.hold.state, fenced.hold.fence) == (fenced.claims.HELD, WALL)


def test_higher_counters_need_a_second_round_of_the_masters_that_answered(fenced: Play) -> None:
    steps, first = begun(fenced)
    count(first, WALL, -5000, WALL, -7000)
    second = next(steps)
    assert type(second.command).__name__ == "Confirm"
    assert (second.command.first, second.command.last) == (7001, 7001)
    assert (second.command.key, second.command.token) == (KEY, first.command.token)
    # The fifth master may have a counter above 7000.
    assert (second.asked, second.size, second.quorum) == (0b01111, 4, 3)
    assert second.until_ns == first.until_ns
    second.yes, second.decided = 3, True
    assert list(steps) == []
    assert fenced.hold.fence == 7001


HOUR = 3_600_000_000


@pytest.mark.parametrize("before", [None, WALL - HOUR])
def test_a_marker_that_is_read_while_an_attempt_waits_raises_its_number(fenced: Play, before: int | None) -> None:
    """Found by the simulator: fences went back when the only master forgot before a waiting attempt was sent."""
    fences = fenced.quorum.fences
    if before is not None:
        fences.mark(before)
    steps, first = begun(fenced)
    assert first.command.first == fences.propose()
    fences.mark(WALL)
    count(first, *[first.command.first] * 5)
    second = next(steps)
    assert type(second.command).__name__ == "Confirm"
    assert second.command.first == second.command.last == WALL + HOUR == fences.propose()
    assert (second.asked, second.size, second.quorum) == (0b11111, 5, 3)
    second.yes, second.decided = 3, True
    assert list(steps) == []
    assert fenced.hold.fence == WALL + HOUR


def test_a_marker_raises_the_numbers_of_later_holders_too(fenced: Play, implementation: impl.Implementation) -> None:
    waits_behind(fenced, implementation)
    steps, first = begun(fenced)
    fenced.quorum.fences.mark(WALL)
    count(first, *[WALL] * 5)
    second = next(steps)
    assert (second.command.first, second.command.last) == (WALL + HOUR, WALL + HOUR + 1024)
    assert fenced.hold.lease.fence_end == second.command.last


def test_a_marker_raises_the_number_of_a_second_round(fenced: Play) -> None:
    steps, first = begun(fenced)
    fenced.quorum.fences.mark(WALL)
    count(first, WALL, -5000, -5000)
    assert next(steps).command.first == WALL + HOUR


def test_a_marker_that_is_read_before_or_asks_for_no_more_makes_no_second_round(fenced: Play) -> None:
    fences = fenced.quorum.fences
    fences.mark(WALL)
    steps, first = begun(fenced)
    fences.mark(WALL - HOUR)
    count(first, *[WALL + HOUR] * 5)
    assert list(steps) == []
    assert fenced.hold.fence == WALL + HOUR


def waits_behind(play: Play, implementation: impl.Implementation) -> None:
    """Have another hold wait for the key."""
    queues = implementation.module("quorum.waiting.queues")
    waiting = play.holds.Hold(NAME, KEY, implementation.module("quorum.kinds.fenced").Fenced([KEY, COUNTER]))
    play.queues.join(play.quorum, queues.QueueEntry(waiting, 1 << 62), BEGINNING)


def test_a_lease_reserves_numbers_for_waiters_unless_the_numbers_are_ahead_of_the_clock(
    fenced: Play, implementation: impl.Implementation
) -> None:
    waits_behind(fenced, implementation)
    _, first = begun(fenced)
    assert (first.command.first, first.command.last) == (WALL, WALL + 1024)
    fenced.quorum.fences.note(WALL)
    fenced.hold.free()
    _, again = begun(fenced)
    assert (again.command.first, again.command.last) == (WALL + 1, WALL + 1)


def test_without_hand_offs_no_numbers_are_reserved(fenced: Play, implementation: impl.Implementation) -> None:
    quorums, old = implementation.module("quorum.quorum"), fenced.quorum
    fenced.quorum = quorums.Quorum(
        masters=old.masters,
        options=ClientOptions("", guard=None, handoff=Handoff(tenure=0)),
        clock=old.clock,
        random=old.random,
        tokens=old.tokens,
        fences=old.fences,
    )
    waits_behind(fenced, implementation)
    _, first = begun(fenced)
    assert (first.command.first, first.command.last) == (WALL, WALL)


def test_a_second_round_that_is_refused_is_no_lock_and_is_undone(fenced: Play) -> None:
    steps, first = begun(fenced)
    count(first, -5000, -5000, -5000)
    second = next(steps)
    second.yes, second.no, second.decided = 1, 2, True
    [undo] = next(steps).ballots
    assert (type(undo.command).__name__, undo.command.token) == ("Release", first.command.token)
    # All masters are asked, because each may have the key.
    assert undo.asked == -1
    assert list(steps) == []
    assert fenced.hold.state == fenced.claims.FREE


def test_a_minority_with_counters_is_no_second_round(fenced: Play) -> None:
    steps, ballot = begun(fenced)
    count(ballot, -5000, -5000)
    ballot.no, ballot.decided = 3, True
    # It waits for the other masters and undoes the attempt.
    assert [type(effect).__name__ for effect in steps] == ["list", "Send"]


def test_the_next_attempt_proposes_a_number_above_all_that_were_seen(fenced: Play) -> None:
    steps, first = begun(fenced)
    count(first, -5000, -5000, -5000)
    second = next(steps)
    second.no, second.decided = 2, True
    list(steps)
    # The client knows the counter although it did not get the lock.
    _, later = begun(fenced)
    assert later.command.first > 5000


def test_a_won_number_is_not_proposed_again(fenced: Play) -> None:
    steps, ballot = begun(fenced)
    count(ballot, WALL, WALL, WALL)
    list(steps)
    fenced.release("yyy")
    _, later = begun(fenced)
    assert later.command.first == WALL + 1


def test_a_second_round_above_the_clock_takes_no_numbers_for_later_holders(fenced: Play) -> None:
    steps, first = begun(fenced)
    fenced.now += LATENCY
    steps.close()
    queues = fenced.build.module("quorum.waiting.queues")
    waiting = fenced.holds.Hold(NAME, KEY, fenced.plain)
    waiting.state = fenced.claims.WAITING
    assert not fenced.queues.become_head(waiting, fenced.now)
    fenced.queues.join(fenced.quorum, queues.QueueEntry(waiting, fenced.now + SECOND), fenced.now)
    lease = fenced.hold.kind.lease(fenced.quorum, KEY, fenced.now, fenced.now + SECOND)
    assert lease.fence_end > lease.fence
    fenced.hold.lease = lease
    first = fenced.quorum.ballot(fenced.hold.kind.acquiring(fenced.quorum, KEY, lease, TTL_MS))
    count(first, -50_000, -50_000, -50_000)
    second = fenced.hold.kind.second_round(fenced.quorum, fenced.hold, first)
    assert (second.command.first, second.command.last) == (50_001, 50_001)
    assert (fenced.hold.lease.fence, fenced.hold.lease.fence_end) == (50_001, 50_001)


def test_a_plain_waiter_may_get_the_lease_of_a_fenced_holder_while_numbers_are_left(fenced: Play) -> None:
    steps, ballot = begun(fenced)
    count(ballot, WALL, WALL, WALL)
    list(steps)
    other = fenced.holds.Hold(NAME, KEY, type(fenced.hold.kind)([KEY, COUNTER]))
    assert fenced.hold.may_hand_off_to(fenced.holds.Hold(NAME, KEY, fenced.plain))
    # Another fenced holder needs a number, and none was taken for it.
    assert not fenced.hold.may_hand_off_to(other)
    fenced.hold.lease = fenced.hold.lease.numbered(WALL, WALL + 1)
    assert fenced.hold.may_hand_off_to(other)
