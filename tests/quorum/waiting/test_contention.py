"""Waiting for a change of a key that another client has."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_votes import KEY, LATENCY, SECOND, TTL_MS, Play

from redlatch import impl
from redlatch.options import ClientOptions


def look_at(play: Play) -> tuple[Any, Any]:
    """Begin to wait for a change of a key that three masters are asked about; return the steps and the look."""
    until = play.now + SECOND
    steps = play.contention_module.wait_for_change(play.quorum, KEY, LATENCY, SECOND, 0, until)
    look = next(steps)
    # This master keeps the key for 300 ms, and pushes.
    look.count_answer(0, 300, True)
    # The key is gone on this master.
    look.yes += 1
    assert look.settled()
    assert next(steps) == [look]
    assert not look.settled()
    return steps, look


def ended(steps: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def test_a_key_that_only_one_master_has_is_not_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    # This is the third answer, which is late.
    look.yes += 1
    assert ended(steps) is False


def test_a_change_that_was_pushed_was_waited_for(build: impl.Implementation) -> None:
    steps, look = look_at(Play(3, build=build))
    assert look.change(0)
    assert ended(steps) is True


def test_a_time_that_is_over_was_waited_for(build: impl.Implementation) -> None:
    steps, _ = look_at(Play(3, build=build))
    assert ended(steps) is True


@pytest.mark.parametrize("told", [[0], [0, 1], [0, 1, 2]])
def test_pushes_that_another_thread_reads_while_a_watch_begins_end_it(
    implementation: impl.Implementation, told: list[int]
) -> None:
    # Another thread of the client drives the sockets meanwhile; here its part runs when the random number is drawn.
    play = Play(3, build=implementation)
    quorums = implementation.module("quorum.quorum")

    def chance() -> float:
        for index in told:
            play.queues.watches.changed(index, KEY)
        return 0.5

    quorum = play.quorum = quorums.Quorum(
        masters=play.quorum.masters,
        options=ClientOptions("", guard=None),
        clock=play.quorum.clock,
        random=chance,
        tokens=play.quorum.tokens,
        fences=play.quorum.fences,
    )
    play.hold.claim(object())
    steps = play.acquire_module.acquire(quorum, play.hold, TTL_MS, None)
    play.vote(next(steps), "nnn")
    # This effect is the undo.
    next(steps)
    ballot = next(steps)
    for index in range(3):
        ballot.no += 1
        ballot.count_answer(index, 1000, True)
    ballot.decided = True
    [watched] = next(steps)
    assert watched.decided == (len(told) >= 2)
