"""The latch: what a count, a wait and a question ask the masters, and how they agree on all counts."""

from __future__ import annotations

from typing import Any

import pytest
from support.script_calls import script_call
from support.scripted_votes import KEY, MS, SECOND, Play

from redlatch import QuorumUnavailable
from redlatch.votes.condition_scripts import DIGESTS, OPEN

TTL_MS = 60_000
OPENED = KEY + b"\0open"


def answer(*counts: int) -> int:
    return 2 + len(counts) * DIGESTS + sum(counts) % DIGESTS


class Use:
    """One use of a latch of three counts on five masters, step by step."""

    def __init__(self, play: Play) -> None:
        self.play = play
        module = play.build.module("quorum.latch")
        self.counts = module.Counts(play.quorum, play.hold, 3, TTL_MS)

    def answer(self, ballot: Any, *answers: int | None) -> None:
        """Let each master in turn answer; None is a connection that breaks."""
        for index, given in enumerate(answers):
            if given is None:
                ballot.failed += 1
                ballot.causes = {**(ballot.causes or {}), index: ConnectionResetError()}
            else:
                ballot.count_answer(index, given, False)
        ballot.decided = ballot.settled()
        assert ballot.decided


@pytest.fixture
def use(play: Play) -> Use:
    return Use(play)


def test_a_count_is_a_number_that_a_quorum_must_have(use: Use) -> None:
    steps = use.counts.counting()
    ballot = next(steps)
    call = script_call(ballot.command)
    mine = use.counts.mine
    assert mine > OPEN
    assert (call.script, call.keys) == ("LATCH_ADD", [KEY, OPENED])
    assert call.arguments == [b"60000", b"3", b"%d" % mine]
    assert ballot.command.ttl_ms == TTL_MS
    use.answer(ballot, answer(mine), answer(mine), answer(mine))
    assert next(steps, None) is None
    assert use.counts.left == 2
    undo = use.counts.undoing()
    assert undo.releases and script_call(undo)[::2] == ("LATCH_UNDO", [b"%d" % mine])


def test_a_count_without_a_quorum_raises_at_the_second_failure(use: Use) -> None:
    steps = use.counts.counting()
    use.answer(next(steps), None, None, None)
    use.answer(next(steps), None, None, None)
    with pytest.raises(QuorumUnavailable, match="count_down of"):
        next(steps)


def test_a_count_that_a_master_may_have_forgotten_since_is_sent_again(use: Use) -> None:
    steps = use.counts.counting()
    ballot = next(steps)
    use.play.quorum.doubts.add(use.play.now + 1, 0)
    use.play.now += 2
    mine = use.counts.mine
    use.answer(ballot, *[answer(mine)] * 3)
    again = next(steps)
    assert script_call(again.command).arguments == script_call(ballot.command).arguments


def test_sets_that_differ_for_a_moment_are_not_copied(use: Use) -> None:
    steps = use.counts.asking()
    use.answer(next(steps), answer(7, 8), answer(7, 8), answer(7, 8))
    assert next(steps, None) is None
    assert use.counts.left == 1
    steps = use.counts.counting()
    ballot = next(steps)
    mine = use.counts.mine
    use.answer(ballot, answer(7, mine), answer(7, mine), answer(mine))
    assert type(next(steps)).__name__ == "Pause"
    use.answer(next(steps), *[answer(7, mine)] * 3)
    assert next(steps, None) is None


def test_sets_that_differ_for_longer_are_copied_to_all_masters(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    next(steps)
    for last in (False, True):
        use.answer(next(steps), answer(7), answer(8), answer(7))
        if not last:
            assert type(next(steps)).__name__ == "Pause"
    [place] = next(steps).ballots
    assert script_call(place.command)[::2] == ("LATCH_AT", [b"1"])
    assert next(steps) == [place]
    use.answer(place, 7, 8, 7)
    copy = next(steps)
    assert script_call(copy.command).arguments == [b"60000", b"3", b"7", b"8"]
    use.answer(copy, *[answer(7, 8)] * 3)
    [watch] = next(steps)
    assert (type(watch.command).__name__, watch.command.key) == ("Called", OPENED)
    assert use.counts.left == 1


def test_the_counts_of_one_master_that_is_open_open_a_quorum_before_the_waiter_goes_on(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    next(steps)
    use.answer(next(steps), answer(7), OPEN, answer(7, 8))
    told = next(steps)
    assert script_call(told.command)[::2] == ("LATCH_OPEN", [b"60000"])
    use.answer(told, OPEN, OPEN, OPEN)
    next(steps)
    assert next(steps).value is True
    assert use.play.queues.watches.by_key == {}


def test_the_push_of_one_master_makes_a_waiter_ask_again(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    [watch] = next(steps).ballots
    use.answer(next(steps), *[answer(7)] * 3)
    assert next(steps) == [watch]
    for index in range(5):
        watch.count_answer(index, 0, True)
    assert next(steps) == [watch]
    assert watch.until_ns == use.play.now + SECOND
    assert watch.change(2)
    next(steps)
    use.answer(next(steps), OPEN, OPEN, OPEN)
    next(steps)
    assert next(steps).value is True


def test_a_waiter_whose_masters_push_nothing_polls(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    [watch] = next(steps).ballots
    use.answer(next(steps), *[answer(7)] * 3)
    next(steps)
    watch.no, watch.decided = 5, True
    assert next(steps) == [watch]
    assert watch.until_ns <= use.play.now + 50 * MS


def test_a_wait_whose_time_is_over_answers_that_the_latch_is_closed(use: Use) -> None:
    steps = use.counts.awaiting(use.play.now)
    next(steps)
    use.answer(next(steps), *[answer(7)] * 3)
    next(steps)
    assert next(steps).value is False
    assert use.play.queues.watches.by_key == {}


def test_a_wait_that_is_interrupted_leaves_no_watch(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    next(steps)
    assert OPENED in use.play.queues.watches.by_key
    steps.close()
    assert use.play.queues.watches.by_key == {}


def test_the_end_of_a_watch_can_be_repeated_from_outside(use: Use) -> None:
    steps = use.counts.awaiting(1 << 60)
    next(steps)
    for _ in range(2):
        use.counts.end_watch()
        assert use.play.queues.watches.by_key == {}


def test_a_question_adds_the_sets_of_a_quorum_up_and_changes_nothing(use: Use) -> None:
    steps = use.counts.asking()
    ballot = next(steps)
    assert script_call(ballot.command)[::2] == ("LATCH_LOOK", [])
    assert ballot.command.ttl_ms == 0
    use.answer(ballot, answer(7), answer(8), answer(7))
    [place] = next(steps).ballots
    next(steps)
    use.answer(place, 7, 8, 7)
    assert next(steps, None) is None
    assert use.counts.left == 1


def test_the_votes_of_a_wait_are_awaited_for_its_timeout_but_long_enough_to_come(use: Use) -> None:
    for timeout_ns, waited_ns in ((SECOND // 2, SECOND // 2), (0, 100 * MS), (50 * SECOND, SECOND)):
        steps = use.counts.awaiting(use.play.now + timeout_ns)
        [watch] = next(steps).ballots
        ballot = next(steps)
        assert watch.until_ns == ballot.until_ns == use.play.now + waited_ns
        steps.close()
