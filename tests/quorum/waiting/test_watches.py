"""Watches: which pushes of the masters wake a waiter."""

from __future__ import annotations

from support.client_queues import FOR_EVER, OTHER, World, look
from support.scripted_votes import KEY, SECOND


def test_a_watch_ends_when_a_quorum_has_pushed_the_change(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.reopen(FOR_EVER)
    world.queues.watches.changed(0, KEY)
    assert not ballot.decided
    world.queues.watches.changed(2, KEY)
    assert ballot.decided and world.called() == [ballot]


def test_a_master_that_pushes_twice_counts_once(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.reopen(FOR_EVER)
    world.queues.watches.changed(0, KEY)
    world.queues.watches.changed(0, KEY)
    assert not ballot.decided


def test_another_key_ends_no_watch_and_all_keys_end_each(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.reopen(FOR_EVER)
    for index in range(3):
        world.queues.watches.changed(index, OTHER)
    assert not ballot.decided
    world.queues.watches.changed(0, None)
    world.queues.watches.changed(1, None)
    assert ballot.decided


def test_a_push_before_the_watch_begins_is_not_lost(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    world.queues.watches.changed(0, KEY)
    world.queues.watches.changed(1, KEY)
    ballot.reopen(FOR_EVER)
    assert ballot.decided


def test_the_remaining_time_of_a_look_ends_when_a_quorum_of_keys_has_expired(world: World) -> None:
    assert look(world, 1000, 3000, 2000).left_ns() == 2 * SECOND
    assert look(world, -2, 3000, 2000).left_ns() == 2 * SECOND
    assert look(world, -1, 3000, -1).left_ns() > 1000 * SECOND


def test_a_look_is_not_watchable_if_too_few_masters_push(world: World) -> None:
    assert look(world, 1000, 1000).watchable()
    assert look(world, -2, 1000).watchable()
    assert not look(world, 1000).watchable()


def test_a_change_by_this_client_notifies_its_own_watchers(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.reopen(FOR_EVER)
    # Whatever the hold was, it has just sent a release.
    world.leave(world.hold())
    assert ballot.decided and world.called() == [ballot]


def test_a_broken_connection_calls_all_watchers(world: World) -> None:
    ballots = [look(world, 1000, 2000, 3000) for _ in range(2)]
    for ballot in ballots:
        ballot.reopen(FOR_EVER)
    world.queues.watches.notify_all()
    assert world.called() == ballots


def test_a_watcher_that_stopped_watching_is_not_called(world: World) -> None:
    ballot = look(world, 1000, 2000, 3000)
    ballot.reopen(FOR_EVER)
    world.queues.watches.remove(ballot.command.key, ballot)
    world.queues.watches.changed(0, None)
    world.queues.watches.notify_all()
    assert world.called() == [] and world.queues.watches.by_key == {}


def test_the_end_of_a_watch_whose_beginning_was_interrupted_leaves_nothing(world: World) -> None:
    ballot = look(world, 1000)
    world.queues.watches.by_key[OTHER] = []
    world.queues.watches.remove(OTHER, ballot)
    assert OTHER not in world.queues.watches.by_key
