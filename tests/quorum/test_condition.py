"""The condition: what a waiter and a call ask the masters, and when a waiter wakes up."""

from __future__ import annotations

from typing import Any

import pytest
from support.script_calls import script_call
from support.scripted_votes import BEGINNING, KEY, MS, SECOND, TTL_MS, Play

from redlatch import LockLost, NotOwned, QuorumUnavailable
from redlatch.votes.condition_scripts import WAITS

CONDITION = KEY + b"\0cond"
LIMIT = 4_949 * MS


class Holder:
    """A holder on five masters, one of its waits, and its calls, step by step."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.condition = play.build.module("quorum.condition")
        assert play.acquire("yyy")
        self.queue = self.condition.CallQueue(play.quorum, play.hold, CONDITION, TTL_MS)
        self.waiter = self.queue.waiter()

    def answer(self, ballot: Any, *answers: int | None) -> None:
        """Let each master in turn answer; None is a connection that breaks."""
        for index, answer in enumerate(answers):
            if answer is None:
                ballot.failed += 1
                ballot.causes = {**(ballot.causes or {}), index: ConnectionResetError()}
            else:
                ballot.count_answer(index, answer, False)
        ballot.decided = ballot.settled()
        assert ballot.decided

    def enter(self, *answers: int | None) -> None:
        """Enter with one round of answers."""
        steps = self.waiter.entering()
        self.answer(next(steps), *answers)
        assert next(steps, None) is None

    def begin(self, until_ns: int = 1 << 60) -> Any:
        """Begin to wait; return the steps, the question and the watch."""
        steps = self.waiter.awaiting(until_ns)
        # The watch must reach the masters before the question.
        watch, question = next(steps).ballots
        assert next(steps) == [question, watch]
        return steps, question, watch

    def watched(self, watch: Any) -> None:
        """Let all masters say that they push the next change of the waiter's key."""
        for index in range(5):
            watch.count_answer(index, 0, True)
        watch.decided = True


@pytest.fixture
def holder(play: Play) -> Holder:
    return Holder(play)


def verdict(steps: Any) -> tuple[str, bool]:
    """Return the script that ends the wait, and the answer."""
    [parting] = next(steps).ballots
    return script_call(parting.command).script, next(steps).value


def test_a_waiter_enters_on_a_quorum_with_a_ticket_by_the_wall_clock(holder: Holder) -> None:
    steps = holder.waiter.entering()
    ballot = next(steps)
    call = script_call(ballot.command)
    assert (call.script, call.keys) == ("CALL_WAIT", [CONDITION, CONDITION + b"\0calls", CONDITION + b"\0bell"])
    assert call.arguments == [b"1000", b"2500", b"10000", b"1"]
    # Under a guard the masters must remember it for so long.
    assert ballot.command.ttl_ms == 10_000
    holder.answer(ballot, WAITS, WAITS, WAITS)
    assert next(steps, None) is None


def test_a_ticket_that_is_too_low_is_replaced_by_one_that_a_quorum_accepts(holder: Holder) -> None:
    steps = holder.waiter.entering()
    # One faulty master must not drive the tickets up.
    holder.answer(next(steps), -(1 << 52), -5_000_000, -4_000_000, WAITS, WAITS)
    [left] = next(steps).ballots
    assert script_call(left.command)[::2] == ("CALL_LEAVE", [b"1000", b"0", b"10000"])
    ticket = int(script_call(next(steps).command).arguments[0])
    assert 4_000_000 < ticket < 5_010_000


def test_without_a_quorum_no_waiter_enters(holder: Holder) -> None:
    steps = holder.waiter.entering()
    holder.answer(next(steps), None, None, None)
    next(steps)
    again = next(steps)
    holder.answer(again, None, None, None)
    with pytest.raises(QuorumUnavailable, match="wait of"):
        next(steps)


@pytest.mark.parametrize(("ended", "error"), [("lost", LockLost), ("released", NotOwned)])
def test_a_lock_that_ends_while_its_holder_enters_is_reported(
    holder: Holder, ended: str, error: type[Exception]
) -> None:
    steps = holder.waiter.entering()
    ballot = next(steps)
    if ended == "lost":
        holder.play.now += SECOND
    else:
        holder.play.release("yyy")
    holder.answer(ballot, WAITS, WAITS, WAITS)
    with pytest.raises(error):
        next(steps)


def test_the_push_of_one_master_wakes_the_waiter(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, watch = holder.begin()
    assert (type(watch.command).__name__, watch.command.key) == ("Watched", CONDITION + b":1000")
    assert script_call(question.command).arguments == [b"1000", b"2500", b"10000", b"0"]
    holder.answer(question, WAITS, WAITS, WAITS, WAITS, WAITS)
    holder.watched(watch)
    assert next(steps) == [watch]
    assert watch.until_ns == holder.play.now + SECOND
    assert watch.change(4)
    [last] = next(steps).ballots
    # It counts as alive for the ttl of the lock, in which it should have the lock again; but for 2.5 s at least.
    assert script_call(last.command).arguments == [b"1000", b"2500", b"10000", b"0"]
    assert next(steps).value is True
    assert holder.play.queues.watches.by_key == {}
    holder.answer(last, WAITS, 2_000, 2_000)
    assert holder.waiter.used() == 2_000
    assert script_call(holder.waiter.leaving(2_000)).arguments == [b"1000", b"2000", b"10000"]


def test_a_call_that_a_master_names_wakes_the_waiter(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, _ = holder.begin()
    holder.answer(question, WAITS, 3_000, 2_000)
    assert verdict(steps) == ("CALL_WAIT", True)
    assert holder.waiter.used() == 2_000


def test_a_wake_up_by_this_client_itself_asks_again(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, watch = holder.begin()
    holder.answer(question, WAITS, WAITS, WAITS)
    holder.watched(watch)
    assert next(steps) == [watch]
    holder.play.queues.watches.notify(CONDITION)
    _, again = next(steps).ballots
    assert script_call(again.command).script == "CALL_WAIT"


@pytest.mark.parametrize(("after", "wakes"), [(LIMIT - MS, False), (LIMIT + MS, True)])
def test_a_waiter_that_a_quorum_has_not_heard_for_long_wakes_up(holder: Holder, after: int, wakes: bool) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    entered = holder.play.now
    steps, question, watch = holder.begin()
    holder.play.now = entered + after
    holder.answer(question, WAITS, WAITS, WAITS)
    holder.watched(watch)
    if wakes:
        assert verdict(steps) == ("CALL_WAIT", True)
    else:
        assert next(steps) == [watch]


def test_a_waiter_wakes_up_if_a_master_may_have_forgotten_a_call(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, _ = holder.begin()
    holder.play.quorum.doubts.add(holder.play.now + 1, 0)
    holder.answer(question, WAITS, WAITS, WAITS)
    assert verdict(steps) == ("CALL_WAIT", True)


def test_a_waiter_whose_time_is_over_leaves_and_others_of_this_client_ask(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    other = holder.queue.waiter()
    other._ticket = 1
    watching = other.awaiting(1 << 60)
    watch, _ = next(watching).ballots
    steps, question, _ = holder.begin(BEGINNING)
    holder.answer(question, WAITS, WAITS, WAITS)
    assert verdict(steps) == ("CALL_LEAVE", False)
    assert watch.decided


@pytest.mark.parametrize("how", ["close", "throw"])
def test_a_wait_that_is_interrupted_leaves_no_watch(holder: Holder, how: str) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, _, _ = holder.begin()
    if how == "close":
        steps.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())
    assert holder.play.queues.watches.by_key == {}


def test_a_waiter_whose_masters_push_nothing_polls(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, watch = holder.begin()
    holder.answer(question, WAITS, WAITS, WAITS)
    watch.no, watch.decided = 5, True
    assert next(steps) == [watch]
    assert watch.until_ns <= holder.play.now + 50 * MS


# --- calls -----------------------------------------------------------------------------------------------


def test_a_call_has_a_number_above_the_last_one_and_is_done_with_a_quorum(holder: Holder) -> None:
    numbers = []
    for count in (1, 3, 0, 1001):
        steps = holder.queue.notifying(count)
        # More than 1,000 call all.
        single = 0 < count <= 1000
        ballots = next(steps).ballots if single and count > 1 else []
        ballots.append(next(steps))
        assert len(ballots) == (count if single else 1)
        for ballot in ballots:
            call = script_call(ballot.command)
            assert call.script == "CALL_NOTIFY"
            assert call.arguments[1:] == [b"1" if single else b"0", b"10000"]
            numbers.append(int(call.arguments[0]))
            holder.answer(ballot, WAITS, WAITS, WAITS)
        assert next(steps, None) is None
    assert numbers == sorted(set(numbers))


def test_a_call_whose_number_is_too_low_is_repeated_with_a_higher_one(holder: Holder) -> None:
    steps = holder.queue.notifying(1)
    holder.answer(next(steps), -9_000_000, -9_000_000, -9_000_000)
    assert int(script_call(next(steps).command).arguments[0]) > 9_000_000


@pytest.mark.parametrize("why", ["late", "in doubt"])
def test_a_call_that_waiters_may_miss_is_repeated(holder: Holder, why: str) -> None:
    steps = holder.queue.notifying(1)
    ballot = next(steps)
    if why == "late":
        holder.play.now += LIMIT + MS
    else:
        holder.play.quorum.doubts.add(holder.play.now + 1, 0)
        holder.play.now += 2
    holder.answer(ballot, WAITS, WAITS, WAITS)
    again = next(steps)
    assert int(script_call(again.command).arguments[0]) > int(script_call(ballot.command).arguments[0])


def test_a_call_without_a_quorum_raises_at_the_second_failure(holder: Holder) -> None:
    steps = holder.queue.notifying(1)
    holder.answer(next(steps), None, None, None)
    holder.answer(next(steps), None, None, None)
    with pytest.raises(QuorumUnavailable, match="notify of"):
        next(steps)


def test_a_call_wakes_the_waiter_of_this_client_that_the_masters_name(holder: Holder) -> None:
    holder.enter(WAITS, WAITS, WAITS)
    steps, question, watch = holder.begin()
    holder.answer(question, WAITS, WAITS, WAITS)
    holder.watched(watch)
    assert next(steps) == [watch]
    calling = holder.queue.notifying(1)
    holder.answer(next(calling), WAITS, 1000, 1000)
    assert next(calling, None) is None
    assert watch.decided
