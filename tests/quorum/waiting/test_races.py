"""Races between threads of one client in its wait queues (rows 37 and 40).

In the pure build, CPython may switch threads between two bytecodes. The tests play one such order step by step: a
container runs the steps of the other thread in the middle of a call, where CPython could switch. The compiled build
cannot switch there, so these tests use only the pure build.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from support.client_queues import FOR_EVER, World
from support.interleaving import interpose
from support.scripted_votes import KEY, SECOND

from redlatch import AlreadyHeld, NotOwned, impl


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Holds and queues of the pure build."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    return World(impl.current, tenure=1000.0)


def hand_off(world: World, head: Any) -> None:
    assert world.hand_off(head)


def leave(world: World, head: Any) -> None:
    world.leave(head)


def notify_watchers(world: World, head: Any) -> None:
    world.queues.watches.notify(KEY)


def change(world: World, head: Any) -> None:
    for index in range(2):
        world.queues.watches.changed(index, KEY)


def watch(world: World) -> Any:
    """Return a watch that waits for a change of the key; all three masters have the key."""
    ballot = world.watches.Watch(world.play.commands.Look(KEY), 3, 2, FOR_EVER)
    for index in range(3):
        ballot.count_answer(index, 50, True)
    ballot.reopen(FOR_EVER)
    world.queues.watches.add(KEY, ballot)
    return ballot


@pytest.mark.parametrize("call", [hand_off, leave, notify_watchers, change])
def test_row_40_a_ballot_is_decided_before_another_thread_can_take_it(world: World, call: Any) -> None:
    head = world.holder()
    ballot = watch(world) if call in (notify_watchers, change) else world.waiter()
    found: list[bool] = []
    world.queues.called = world.queues.watches.called = interpose(
        deque, "append", lambda called: found.append(called[0].decided)
    )()
    call(world, head)
    assert (found, world.called()) == ([True], [ballot])


@pytest.mark.parametrize("call", [hand_off, leave, notify_watchers, change])
def test_row_40_an_interrupt_right_after_a_call_leaves_the_ballot_decided_and_called(world: World, call: Any) -> None:
    head = world.holder()
    turn = None if call in (notify_watchers, change) else world.waiter()
    ballot = watch(world) if turn is None else turn

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    world.queues.called = world.queues.watches.called = interpose(deque, "append", strike)()
    with pytest.raises(KeyboardInterrupt):
        call(world, head)
    assert ballot.decided and world.called() == [ballot]
    if turn is not None:
        assert world.head() is turn.hold
    if call is hand_off:
        assert turn is not None and turn.lease is not None
        assert head.resend_release(head.ticket) is None  # the next holder has the lease, so nothing is released


def test_row_40_a_turn_that_another_thread_has_called_gets_no_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the turn asks the masters already, and would not find the lease."""
    head, turn = world.holder(), world.waiter()
    head.begin_release(world.now)
    kind = impl.current.module("quorum.waiting.queues").WaitQueue
    move = kind.move

    def meanwhile(line: Any, now_ns: int) -> None:
        monkeypatch.setattr(kind, "move", move)
        assert world.queues._call_next(line, now_ns, False)
        assert turn.decided and world.head() is turn.hold
        world.queues.drop(turn)

    monkeypatch.setattr(kind, "move", meanwhile)
    assert not world.hand_off(head)
    assert turn.lease is None
    assert head.resend_release(head.ticket) is not None  # the head releases its lease as usual


def test_row_40_a_lease_that_comes_while_its_waiter_looks_for_the_head_is_released(world: World) -> None:
    head, hold = world.holder(), world.hold()
    steps = world.play.acquire_module.acquire(world.policy, world.queues, hold, 30_000, FOR_EVER)
    turn = next(steps)
    assert turn.hold is hold
    world.queues.heads = interpose(dict, "get", lambda _: hand_off(world, head), before=True)(world.queues.heads)
    effect = steps.send(None)  # the waiter's time is over: its turn has not come
    assert [(ballot.command.releases, ballot.command.token) for ballot in effect.ballots] == [(True, b"token")]
    assert turn.lease is None and world.head() is hold


def test_row_40_a_lease_that_was_passed_on_is_not_released_when_its_hold_is_wanted_again(world: World) -> None:
    head, turn, refused = world.holder(), world.waiter(), []
    head.ticket = object()

    def claim(_: object) -> None:
        with pytest.raises(AlreadyHeld):
            head.claim(object())
        refused.append(head)

    world.queues.called = world.queues.watches.called = interpose(deque, "append", claim)()
    steps = world.play.releasing(world.policy, world.queues, head, SECOND)
    assert not list(steps)  # nothing is sent
    assert refused and turn.lease.token == b"token"


def test_row_37_a_waiter_that_leaves_while_a_lease_is_copied_keeps_none_even_after_an_interrupt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, turn = world.holder(), world.waiter()
    kind = impl.current.module("quorum.lease").Lease
    handed_off = kind.handed_off

    def leaves(lease: Any) -> Any:
        monkeypatch.setattr(kind, "handed_off", handed_off)
        assert world.queues.step_out(turn, world.now) is None
        world.queues.join(world.policy, turn, world.now)  # the giver has found it in its line before
        return lease.handed_off()

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "handed_off", leaves)
    world.queues.called = world.queues.watches.called = interpose(deque, "append", strike)()
    with pytest.raises(KeyboardInterrupt):
        hand_off(world, head)
    assert turn.lease is None
    assert head.resend_release(head.ticket) is not None


def test_row_37_who_insists_on_a_release_does_not_touch_a_hold_that_was_claimed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = world.holder()
    ticket, mine = head.ticket, object()
    assert head.resend_release(ticket) is not None  # as `release` does after an interrupt, and then `__exit__`
    kind = impl.current.module("quorum.hold").Hold
    releasing = kind.releasing

    def meanwhile(hold: Any) -> Any:
        monkeypatch.setattr(kind, "releasing", releasing)
        hold.claim(mine)
        hold.ask(world.lease(b"mine", world.now, world.now + SECOND))
        hold.keep(0)
        return hold.releasing()

    monkeypatch.setattr(kind, "releasing", meanwhile)
    assert head.resend_release(ticket) is None
    assert (head.ticket, head.token) == (mine, b"mine") and head.held(world.now)


def test_row_37_who_insists_on_a_release_sends_nothing_for_a_lease_that_is_passed_on_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, turn = world.holder(), world.waiter()
    kind = impl.current.module("quorum.hold").Hold
    releasing = kind.releasing

    def meanwhile(hold: Any) -> Any:
        monkeypatch.setattr(kind, "releasing", releasing)
        assert world.hand_off(head)
        return hold.releasing()

    monkeypatch.setattr(kind, "releasing", meanwhile)
    assert head.resend_release(head.ticket) is None
    assert turn.lease is not None


def test_row_37_a_lease_for_which_a_release_was_sent_meanwhile_is_not_passed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads release through one lock object; one is interrupted while the other is about to pass the lease on."""
    head, turn = world.holder(), world.waiter()
    head.begin_release(world.now)
    kind = impl.current.module("quorum.waiting.queues").WaitQueue
    move = kind.move

    def meanwhile(line: Any, now_ns: int) -> None:
        monkeypatch.setattr(kind, "move", move)
        assert head.resend_release(head.ticket) is not None
        move(line, now_ns)

    monkeypatch.setattr(kind, "move", meanwhile)
    assert not world.hand_off(head)
    assert turn.lease is None and head.state == world.claims.UNCONFIRMED


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_row_37_an_acquire_is_not_undone_once_another_thread_releases_its_lock_and_not_released_once_it_is_undone(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    head, turn = world.holder(), world.waiter()
    ticket = head.ticket
    kind = impl.current.module("quorum.hold").Hold
    releasing = kind.releasing

    def meanwhile(hold: Any) -> Any:
        monkeypatch.setattr(kind, "releasing", releasing)
        head.begin_release(world.now)
        return hold.releasing()

    if when == "before":
        head.begin_release(world.now)
    if when == "during":
        monkeypatch.setattr(kind, "releasing", meanwhile)
    undo = head.undoing(ticket)
    assert (undo is not None) is (when == "after")
    if when == "after":
        with pytest.raises(NotOwned):
            head.begin_release(world.now)
        assert not world.hand_off(head)
        assert head.undoing(ticket) is not None  # once more, after a second interrupt
    head.end_undoing(ticket)
    assert head.state == (world.claims.FREE if when == "after" else world.claims.RELEASING)
    if when != "after":  # the other thread goes on as if nothing had happened
        assert world.hand_off(head)
        assert turn.lease is not None


def test_row_37_an_interrupt_while_a_waiter_joins_its_line_leaves_no_turn_there(world: World) -> None:
    world.holder()

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    hold, kind = world.hold(), interpose(dict, "get", strike)
    steps = world.play.acquire_module.acquire(world.policy, world.queues, hold, 30_000, FOR_EVER)
    line = impl.current.module("quorum.waiting.queues").WaitQueue()
    line.entries = interpose(
        deque, "append", lambda turns: setattr(world.queues, "by_key", kind(world.queues.by_key))
    )()
    world.queues.by_key[KEY] = line
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert not line.entries


@pytest.mark.parametrize("who", ["enter", "expire"])
def test_row_40_no_second_waiter_is_called_when_the_head_passes_its_lease_on_during_the_check(
    world: World, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()
    kind = impl.current.module("quorum.hold").Hold
    busy = kind.busy

    def meanwhile(hold: Any, now_ns: int) -> Any:
        monkeypatch.setattr(kind, "busy", busy)
        assert world.hand_off(head)
        first.take_lease()
        head.free()
        return hold.busy(now_ns)

    monkeypatch.setattr(kind, "busy", meanwhile)
    if who == "enter":
        assert not world.queues.enter(world.hold(), world.now)
    else:
        world.queues.expire(world.now)
    assert world.head() is first.hold
    assert not second.decided


@pytest.mark.parametrize("step", [1, 2])
def test_row_40_a_waiter_that_joins_a_line_during_its_removal_is_called(world: World, step: int) -> None:
    head, first = world.holder(), world.waiter()
    joined: list[Any] = []

    class WaitQueues(dict[bytes, Any]):
        """Lets another thread join behind the given look-up."""

        left = step

        def get(self, key: bytes, default: Any = None) -> Any:
            found = super().get(key, default)
            self.left -= 1
            if self.left == 0:
                joined.append(world.waiter())
            return found

    world.queues.by_key = queues = WaitQueues(world.queues.by_key)
    assert world.queues.step_out(first, world.now) is None
    queues.left = 0
    if not joined:
        joined.append(world.waiter())
    world.leave(head)
    assert world.called() == [joined[0]]


def test_row_40_a_watch_that_begins_while_another_one_ends_is_kept(world: World) -> None:
    first, second, third = watch(world), watch(world), world.watches.Watch(world.play.commands.Look(KEY), 3, 2, 0)

    def meanwhile(_: object) -> None:
        world.queues.watches.remove(KEY, second)
        world.queues.watches.add(KEY, third)

    world.queues.watches.by_key[KEY] = interpose(list, "remove", meanwhile)([first, second])
    world.queues.watches.remove(KEY, first)
    world.queues.watches.notify(KEY)
    assert world.called() == [third]
