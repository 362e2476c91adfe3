"""Releasing: losses, repetitions and interrupts, with and without waiting for the masters."""

from __future__ import annotations

from typing import Any

import pytest
from support.faces import finish, run_script
from support.scripted_votes import BEGINNING, KEY, NAME, SECOND, VALIDITY, Play, clock_of

from redlatch import impl
from redlatch.errors import LockLost, NotOwned, QuorumUnavailable
from redlatch.options import ClientOptions

# --- release -----------------------------------------------------------------------------------------


def test_a_release_asks_once_with_the_token_and_frees_the_object(held: Play) -> None:
    token = held.hold.token
    held.release("yyy")
    [ask] = held.effects
    assert isinstance(ask.command, held.commands.Release)
    assert (ask.command.key, ask.command.token, ask.command.since_ns) == (KEY, token, BEGINNING)
    assert held.hold.state == held.claims.FREE


def test_releasing_twice_is_not_owned(held: Play) -> None:
    held.release("yyy")
    with pytest.raises(NotOwned, match="sku:42") as caught:
        held.release()
    assert caught.value.name == NAME


def test_only_one_of_two_concurrent_releases_continues(held: Play) -> None:
    others: list[Any] = []

    def clock() -> int:
        # Another thread runs at this moment.
        if not others:
            others.append(None)
            others[0] = held.releasing(quorum, held.hold, SECOND)
            next(others[0])
        return held.now

    quorum = type(held.quorum)(
        masters=held.quorum.masters,
        options=ClientOptions("", guard=None),
        clock=clock_of(held.build, clock),
        random=lambda: 0.5,
        tokens=held.quorum.tokens,
        fences=held.quorum.fences,
    )
    with pytest.raises(NotOwned):
        next(held.releasing(quorum, held.hold, SECOND))


def test_releasing_a_lock_that_was_never_held_raises_not_owned(play: Play) -> None:
    with pytest.raises(NotOwned):
        play.release()


def test_releasing_at_the_deadline_is_lost_and_still_deletes_the_key(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(LockLost, match="validity ran out"):
        held.release("yyy")
    assert held.kinds() == ["Ballot Release"]
    assert held.hold.state == held.claims.FREE


def test_releasing_one_nanosecond_before_the_deadline_is_in_time(held: Play) -> None:
    held.now = BEGINNING + VALIDITY - 1
    held.release("yyy")
    assert held.hold.state == held.claims.FREE


def test_releasing_a_lock_that_a_quorum_has_forgotten_raises_lock_lost(held: Play) -> None:
    with pytest.raises(LockLost, match="forgotten"):
        held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_a_minority_that_forgot_the_token_does_not_fail_a_release(held: Play) -> None:
    held.release("nnyyy")


def test_a_release_that_fails_once_is_sent_again(held: Play) -> None:
    held.release("!!!", "yyy")
    assert held.kinds() == ["Ballot Release"] * 2


def test_a_no_to_a_repeated_release_is_no_loss(held: Play) -> None:
    held.release("!!!", "nnn")
    assert held.hold.state == held.claims.FREE


def test_a_release_that_fails_twice_raises_with_causes_and_may_be_called_again(held: Play) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        held.release("!!!", "!!!")
    assert len(caught.value.causes) == 3
    held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_a_lock_that_is_being_released_is_no_longer_held(held: Play) -> None:
    next(held.releasing(held.quorum, held.hold, SECOND))
    assert not held.hold.held(held.now)


def test_an_interrupted_release_may_be_called_again_and_a_no_is_then_no_loss(held: Play) -> None:
    steps = held.releasing(held.quorum, held.hold, SECOND)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    # Lock.release does this after any interrupt.
    held.hold.resend_release(held.hold.ticket, held.now)
    held.release("nnn")
    assert held.hold.state == held.claims.FREE


def test_an_object_whose_release_was_interrupted_may_acquire_again(held: Play) -> None:
    steps = held.releasing(held.quorum, held.hold, SECOND)
    next(steps)
    steps.close()
    held.hold.resend_release(held.hold.ticket, held.now)
    assert held.acquire("yyy")


def test_a_second_release_during_a_release_is_refused_and_disturbs_nothing(held: Play) -> None:
    first = held.releasing(held.quorum, held.hold, SECOND)
    ballot = next(first)
    with pytest.raises(NotOwned):
        held.release("yyy")
    held.vote(ballot, "yyy")
    assert next(first, None) is None
    assert held.acquire("yyy", give_up_ns=None)
    assert held.hold.held(held.now)


def test_a_release_that_is_sent_again_names_the_token_that_it_has_named(held: Play) -> None:
    """An interrupt in a second release of the same object gives the claim away, and another acquire wins."""
    old, steps = held.hold.token, held.releasing(held.quorum, held.hold, SECOND)
    ballot = next(steps)
    held.hold.resend_release(held.hold.ticket, held.now)
    assert held.acquire("yyy")
    held.vote(ballot, "!!!")
    assert next(steps).command.token == old != held.hold.token


def test_hand_offs_of_two_threads_share_no_generator_that_runs(implementation: impl.Implementation) -> None:
    """Of two threads that begin a generator at the same time, one gets a ValueError. An ended one begins never."""
    text = "import inspect; from redlatch import impl; found = impl.current.module('quorum.effects').ENDED\n"
    text += "print(found.gi_frame is None)"
    assert finish(run_script(text, implementation.name, wait=False)) == ("True\n", "")


# --- releasing without waiting -----------------------------------------------------------------------


def test_release_nowait_sends_the_release_and_frees_the_object_at_once(held: Play) -> None:
    token = held.hold.token
    lock = object()
    held.run(held.releasing_nowait(held.quorum, held.hold, lock))
    [tell] = held.effects
    [ballot] = tell.ballots
    assert held.kinds() == ["Send Release"]
    assert (ballot.command.token, ballot.released_lock) == (token, lock)
    assert held.hold.state == held.claims.FREE


def test_release_nowait_after_the_deadline_is_a_loss_and_still_deletes_the_key(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(LockLost, match="validity ran out"):
        held.run(held.releasing_nowait(held.quorum, held.hold, object()))
    assert held.kinds() == ["Send Release"]
    # The loss is not reported a second time.
    assert held.effects[0].ballots[0].released_lock is None
    assert held.hold.state == held.claims.FREE


def test_release_nowait_after_an_interrupted_release_sends_the_same_command_again(held: Play) -> None:
    steps = held.releasing(held.quorum, held.hold, SECOND)
    next(steps)
    sent = held.hold.resend_release(held.hold.ticket, held.now)
    lock = object()
    held.run(held.releasing_nowait(held.quorum, held.hold, lock))
    [ballot] = held.effects[0].ballots
    # Any master may have obeyed the first one, so a "no" is a loss only if the master has forgotten since.
    assert (ballot.command, ballot.command.tried, ballot.released_lock) == (sent, -1, lock)


def test_row_60_a_release_that_began_too_late_is_a_loss_when_it_is_called_again(held: Play) -> None:
    held.now = BEGINNING + VALIDITY
    with pytest.raises(QuorumUnavailable):
        held.release("!!!", "!!!")
    with pytest.raises(LockLost, match="validity ran out"):
        held.release("yyy")


def test_row_60_a_release_that_began_in_time_is_no_loss_when_it_is_called_again_later(held: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        held.release("!!!", "!!!")
    held.now = BEGINNING + 3 * VALIDITY
    held.release("nnn")
    assert held.hold.state == held.claims.FREE


@pytest.mark.parametrize("interrupted", [False, True])
def test_row_60_a_release_that_is_called_again_is_a_loss_if_a_quorum_has_forgotten_since(
    held: Play, interrupted: bool
) -> None:
    if interrupted:
        next(held.releasing(held.quorum, held.hold, SECOND))
        held.hold.resend_release(held.hold.ticket, held.now)
    else:
        with pytest.raises(QuorumUnavailable):
            held.release("!!!", "!!!")
    for master in (0, 1, 2):
        held.quorum.doubts.add(held.now, master)
    with pytest.raises(LockLost, match="a quorum has forgotten it"):
        held.release("nnn")


@pytest.mark.parametrize("late", [False, True])
def test_row_60_a_release_that_is_interrupted_before_its_first_step_is_late_if_the_interrupt_is(
    held: Play, late: bool
) -> None:
    held.now = BEGINNING + VALIDITY - (not late)
    held.hold.resend_release(held.hold.ticket, held.now)
    held.now += SECOND
    if late:
        with pytest.raises(LockLost, match="validity ran out"):
            held.release("nnn")
    else:
        held.release("nnn")


def test_release_nowait_needs_a_held_lock(held: Play) -> None:
    held.release("yyy")
    with pytest.raises(NotOwned):
        held.run(held.releasing_nowait(held.quorum, held.hold, object()))
