"""The hold: who may claim it, until when it is held, and what an interrupted call sends."""

from __future__ import annotations

import pytest
from support.client_queues import World
from support.scripted_votes import BEGINNING, NAME, SECOND, TTL_MS, Play, undo

from redlatch.errors import AlreadyHeld, QuorumUnavailable


def test_a_hold_that_is_claimed_refuses_a_second_claim(play: Play) -> None:
    play.hold.claim(object())
    with pytest.raises(AlreadyHeld, match="sku:42") as caught:
        play.hold.claim(object())
    assert caught.value.name == NAME


def test_a_hold_that_is_held_refuses_another_acquire_and_stays_held(held: Play) -> None:
    with pytest.raises(AlreadyHeld):
        held.acquire("yyy")
    assert held.hold.held(held.now)


def test_a_hold_that_lost_the_race_may_be_claimed_again(play: Play) -> None:
    assert not play.acquire("nnn")
    play.hold.claim(object())


def test_a_hold_is_held_until_just_before_its_deadline(held: Play) -> None:
    deadline = held.hold.deadline_ns
    assert held.hold.held(deadline - 1)
    assert not held.hold.held(deadline)


def test_a_claim_during_a_release_is_refused(held: Play) -> None:
    steps = held.releasing(held.quorum, held.hold, SECOND)
    next(steps)
    with pytest.raises(AlreadyHeld):
        held.hold.claim(object())


def test_abandoning_a_finished_attempt_does_not_undo_a_later_claim(play: Play) -> None:
    with pytest.raises(QuorumUnavailable):
        play.acquire("!!!", "!!!")
    failed, other = play.ticket, object()
    play.hold.claim(other)
    next(play.acquire_module.acquire(play.quorum, play.hold, TTL_MS, None))
    # Lock.acquire does this after any exception.
    assert undo(play.hold, failed) is None
    assert undo(play.hold, other) is not None


def test_a_ticket_that_was_refused_has_nothing_to_abandon(held: Play) -> None:
    late = object()
    with pytest.raises(AlreadyHeld):
        held.hold.claim(late)
    assert undo(held.hold, late) is None
    assert held.hold.held(held.now)


def test_resend_release_returns_the_same_command_after_an_interrupt(held: Play) -> None:
    steps = held.releasing(held.quorum, held.hold, SECOND)
    first = next(steps).command
    steps.close()
    again = held.hold.resend_release(held.hold.ticket, held.now)
    assert isinstance(again, held.commands.Release)
    assert (again.key, again.token, again.since_ns) == (first.key, first.token, first.since_ns)


def test_resend_release_returns_nothing_if_no_lock_is_held(play: Play) -> None:
    assert play.hold.resend_release(play.hold.ticket, play.now) is None


def test_row_57_only_the_lease_that_was_looked_at_is_lost(world: World) -> None:
    head = world.holder()
    since = head.lease.since_ns
    assert head.holds_since(since) and not head.holds_since(since + 1)
    head.lose_what_it_holds_since(since + 1, world.now)
    assert head.held(world.now)
    head.lose_what_it_holds_since(since, world.now)
    assert not head.held(world.now) and head.lost_ns == world.now
    head.begin_release(world.now)
    assert not head.holds_since(since)


def test_a_key_that_is_deleted_just_before_the_lock_is_held_is_lost(play: Play) -> None:
    play.hold.claim(play.ticket)
    play.hold.ask(play.build.module("quorum.lease").new_lease(b"t", BEGINNING, BEGINNING + SECOND))
    play.hold.lose(BEGINNING + 1)  # another thread, between the last question and `keep`
    play.hold.keep(1)
    assert not play.hold.held(BEGINNING + 1)


def test_an_undo_does_not_end_a_claim_whose_release_another_thread_is_ending(held: Play) -> None:
    """That thread ends the claim itself. If both did, the second one would end the claim of a third."""
    hold = held.hold
    hold.begin_release(held.now)
    hold.state = held.claims.HANDED_OFF
    assert undo(hold, held.ticket) is None
    assert hold.ticket is held.ticket
    hold.free()
    hold.claim(other := object())
    assert undo(hold, held.ticket) is None
    assert hold.ticket is other
