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
from support.interleaving import interpose, meet
from support.scripted_votes import KEY, SECOND

from redlatch import AlreadyHeld, NotOwned, impl


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Holds and queues of the pure build."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    return World(impl.current, tenure=1000.0)


def module(name: str) -> Any:
    """Return a module of the pure build."""
    return impl.current.module(name)


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
    look = world.watches.Watch(world.play.commands.Look(KEY), 3, 2, FOR_EVER)
    for index in range(3):
        look.count_answer(index, 50, True)
    look.reopen(FOR_EVER)
    world.queues.watches.add(KEY, look)
    return look


@pytest.mark.parametrize("call", [hand_off, leave, notify_watchers, change])
def test_row_40_a_call_is_decided_before_another_thread_can_take_it(world: World, call: Any) -> None:
    head = world.holder()
    awaited = watch(world) if call in (notify_watchers, change) else world.waiter()
    found: list[bool] = []
    world.queues.called = world.queues.watches.called = interpose(
        list, "append", lambda called: found.append(called[0].decided)
    )()
    call(world, head)
    assert (found, world.called()) == ([True], [awaited])


@pytest.mark.parametrize("call", [hand_off, leave, notify_watchers, change])
def test_row_40_an_interrupt_right_after_a_call_leaves_it_decided_and_called(world: World, call: Any) -> None:
    head = world.holder()
    entry = None if call in (notify_watchers, change) else world.waiter()
    awaited = watch(world) if entry is None else entry

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    world.queues.called = world.queues.watches.called = interpose(list, "append", strike)()
    with pytest.raises(KeyboardInterrupt):
        call(world, head)
    assert awaited.decided and world.called() == [awaited]
    if entry is not None:
        assert world.head() is entry.hold
    if call is hand_off:
        assert entry is not None and entry.lease is not None
        # The next holder has the lease, so nothing is released.
        assert head.resend_release(head.ticket, world.now) is None


def test_row_40_an_entry_that_another_thread_has_called_gets_no_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the entry asks the masters already, and would not find the lease."""
    head, entry = world.holder(), world.waiter()
    head.begin_release(world.now)
    kind = module("quorum.waiting.queues").WaitQueue
    move = kind.move

    def meanwhile(queue: Any, now_ns: int) -> None:
        monkeypatch.setattr(kind, "move", move)
        assert world.queues._call_next(queue, now_ns, False)
        assert entry.decided and world.head() is entry.hold
        world.queues.drop(entry)

    monkeypatch.setattr(kind, "move", meanwhile)
    assert not world.hand_off(head)
    assert entry.lease is None
    assert head.resend_release(head.ticket, world.now) is not None  # the head releases its lease as usual


def test_row_40_a_lease_that_comes_while_its_waiter_looks_for_the_head_is_released(world: World) -> None:
    head, hold = world.holder(), world.hold()
    steps = world.play.acquire_module.acquire(world.quorum, hold, 30_000, FOR_EVER)
    entry = next(steps)
    assert entry.hold is hold
    world.queues.heads = interpose(dict, "get", lambda _: hand_off(world, head), before=True)(world.queues.heads)
    effect = next(steps)  # the waiter's time is over: it has not been called
    assert [(ballot.command.releases, ballot.command.token) for ballot in effect.ballots] == [(True, b"token")]
    assert entry.lease is None and world.head() is hold


def test_row_40_a_lease_that_was_handed_off_is_not_released_when_its_hold_is_wanted_again(world: World) -> None:
    head, entry, refused = world.holder(), world.waiter(), []
    head.ticket = object()

    def claim(_: object) -> None:
        with pytest.raises(AlreadyHeld):
            head.claim(object())
        refused.append(head)

    world.queues.called = world.queues.watches.called = interpose(list, "append", claim)()
    steps = world.play.releasing(world.quorum, head, SECOND)
    assert not list(steps)  # nothing is sent
    assert refused and entry.lease.token == b"token"


def test_row_37_a_waiter_that_leaves_while_a_lease_is_copied_keeps_none_even_after_an_interrupt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, entry = world.holder(), world.waiter()

    def leave_and_join() -> None:
        assert world.queues.step_out(entry, world.now) is None
        world.queues.join(world.quorum, entry, world.now)  # the giver has found it in its queue before

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    meet(monkeypatch, module("quorum.lease").Lease, "handed_off", leave_and_join)
    world.queues.called = world.queues.watches.called = interpose(list, "append", strike)()
    with pytest.raises(KeyboardInterrupt):
        hand_off(world, head)
    assert entry.lease is None
    assert head.resend_release(head.ticket, world.now) is not None


def test_row_37_a_resent_release_does_not_touch_a_hold_that_was_claimed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = world.holder()
    ticket, mine = head.ticket, object()
    # As `release` does after an interrupt, and then `__exit__`.
    assert head.resend_release(ticket, world.now) is not None

    def acquire() -> None:
        head.claim(mine)
        head.ask(world.lease(b"mine", world.now, world.now + SECOND))
        head.keep(0)

    meet(monkeypatch, module("quorum.hold").Hold, "releasing", acquire)
    assert head.resend_release(ticket, world.now) is None
    assert (head.ticket, head.token) == (mine, b"mine") and head.held(world.now)


def test_row_37_a_resent_release_sends_nothing_for_a_lease_that_is_handed_off_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, entry = world.holder(), world.waiter()
    meet(monkeypatch, module("quorum.hold").Hold, "releasing", lambda: hand_off(world, head))
    assert head.resend_release(head.ticket, world.now) is None
    assert entry.lease is not None


def test_row_37_a_lease_for_which_a_release_was_sent_meanwhile_is_not_handed_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads release one lock object; one is interrupted while the other is about to hand the lease off."""
    head, entry = world.holder(), world.waiter()
    head.begin_release(world.now)

    def resend() -> None:
        assert head.resend_release(head.ticket, world.now) is not None

    meet(monkeypatch, module("quorum.waiting.queues").WaitQueue, "move", resend)
    assert not world.hand_off(head)
    assert entry.lease is None and head.state == world.claims.UNCONFIRMED


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_row_37_an_acquire_is_not_undone_once_another_thread_releases_its_lock_and_not_released_once_it_is_undone(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    head, entry = world.holder(), world.waiter()
    ticket = head.ticket
    if when == "before":
        head.begin_release(world.now)
    if when == "during":
        meet(monkeypatch, module("quorum.hold").Hold, "undoing_attempt", lambda: head.begin_release(world.now))
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
        assert entry.lease is not None


def test_row_37_an_interrupt_while_a_waiter_joins_its_queue_leaves_no_entry_there(world: World) -> None:
    world.holder()

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    hold, kind = world.hold(), interpose(dict, "get", strike)
    steps = world.play.acquire_module.acquire(world.quorum, hold, 30_000, FOR_EVER)
    queue = module("quorum.waiting.queues").WaitQueue()
    queue.entries = interpose(
        deque, "append", lambda entries: setattr(world.queues, "by_key", kind(world.queues.by_key))
    )()
    world.queues.by_key[KEY] = queue
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert not queue.entries


@pytest.mark.parametrize("who", ["enter", "expire"])
def test_row_40_no_second_waiter_is_called_when_the_head_hands_its_lease_off_during_the_check(
    world: World, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    head, first, second = world.holder(), world.waiter(), world.waiter()

    def hand_off_and_end() -> None:
        assert world.hand_off(head)
        first.take_lease()
        head.free()

    meet(monkeypatch, module("quorum.hold").Hold, "busy", hand_off_and_end)
    if who == "enter":
        assert not world.queues.become_head(world.hold(), world.now)
    else:
        world.queues.expire(world.now)
    assert world.head() is first.hold
    assert not second.decided


@pytest.mark.parametrize("step", [1, 2])
def test_row_40_a_waiter_that_joins_a_queue_during_its_removal_is_called(world: World, step: int) -> None:
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
