# cython: annotation_typing=True
"""Wait for a lock that another holder has: behind other holds of this client, or for a change of its key."""

from __future__ import annotations

from collections.abc import Generator

from redlatch.errors import LockError

from ...votes.commands import Look
from ...votes.units import MILLISECOND, SECOND
from ..claim import HELD
from ..effects import Effect, Pause, Send, Steps
from ..extend import extend
from ..hold import Hold
from ..outcome import repeated
from ..policy import Outage
from ..quorum import Quorum
from .queues import QueueEntry
from .watches import Watch, new_watch

# A waiter asks the masters at least this often, because a push may be lost on its way.
BACKSTOP_NS = SECOND

# After a tenure, the next waiter waits for this many changes. The masters push a change to waiters of other processes
# at once, so 2 let these ask first.
BACK_OFFS = 2

# In a drop-in, a waiter that joins the queue as its first asks about the holder's key after this time; most hand-offs
# take less. `WaitQueues.expire` wakes one that becomes the first later.
FIRST_LOOK_NS = 5 * MILLISECOND


# --- behind other holds of this client --------------------------------------------------------------------


def reach_the_head(quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int) -> Generator[Effect, None, bool]:
    """Wait behind other holds of this client; return whether the hold must ask the masters now.

    Raises:
        QuorumUnavailable: other heads have found out meanwhile that the quorum is lost.
    """
    began = quorum.clock.now()
    backs_off = False
    if quorum.clock.now() < until_ns:
        backs_off = yield from _wait_in_queue(quorum, hold, ttl_ms, until_ns)
    elif not quorum.trust_local_holder:
        # A user may have deleted the key of the holder. Only the masters know.
        return True
    if hold.state == HELD:
        return False
    if quorum.queues.heads.get(hold.key) is not hold:
        hold.free()
        _raise_if_known(quorum, hold, began, until_ns)
        return False
    _raise_if_known(quorum, hold, began, until_ns)
    if hold.kind.orderly:
        backs_off = False
    for _ in range(BACK_OFFS if backs_off else 0):
        yield from wait_for_change(quorum, hold.key, 0, quorum.wait_ns(ttl_ms), 0, until_ns)
    # Waiters of other processes that poll notice a free lock only at the end of their pause.
    if backs_off and quorum.queues.watches.polls:
        pause_ns = quorum.retry.back_off_ns(quorum.random())
        yield Pause(min(quorum.clock.now() + pause_ns, until_ns))
    return True


def _raise_if_known(quorum: Quorum, hold: Hold, began_ns: int, until_ns: int) -> None:
    outage: Outage | None = quorum.queues.outages.get(hold.key)
    now = quorum.clock.now()
    if outage is not None and outage.known(quorum.patience_ns, began_ns, until_ns, now):
        raise repeated(outage.error, now - began_ns)


def _wait_in_queue(quorum: Quorum, hold: Hold, ttl_ms: int, until_ns: int) -> Generator[Effect, None, bool]:
    """Wait; return whether others get a chance first. The order of the checks and steps loses no lease."""
    entry: QueueEntry
    while True:
        now = quorum.clock.now()
        entry = QueueEntry(hold, until_ns)
        try:
            quorum.queues.join(quorum, entry, now)
            if not quorum.queues.become_head(hold, now):
                if quorum.trust_local_holder:
                    yield entry
                else:
                    yield from _wait_beside(quorum, entry, ttl_ms, until_ns)
            # Read before the lease: a giver puts the lease on the entry first, sets `decided` afterwards, and hands no
            # lease to a decided entry.
            called = entry.decided
            if not entry.take_lease():
                if quorum.queues.heads.get(hold.key) is hold:
                    quorum.queues.drop(entry)
                    # A lease came together with the head, after the check.
                    if entry.take_lease():
                        yield from _give_back(quorum, hold)
                    return entry.backs_off
                if not called:
                    now = quorum.clock.now()
                    if quorum.queues.step_out(entry, now) is not None:
                        yield from _give_back(quorum, hold)
                        quorum.queues.leave(hold, now, False)
                    return False
                continue
        except BaseException:
            # The caller abandons the hold, and so releases its lease.
            try:
                quorum.queues.step_out(entry, now)
            except BaseException:
                quorum.queues.step_out(entry, now)
                raise
            raise
        yield from _keep_or_extend(quorum, hold, ttl_ms)
        return False


def _give_back(quorum: Quorum, hold: Hold) -> Steps:
    yield Send([quorum.ballot(hold.give_back())])
    hold.to_waiting()


def _wait_beside(quorum: Quorum, entry: QueueEntry, ttl_ms: int, until_ns: int) -> Steps:
    """Wait in the queue of a client whose users may delete keys; in a still queue, the first waiter watches the key."""
    hold = entry.hold
    entry.looks = True
    if quorum.queues.is_next(hold):
        entry.until_ns = min(quorum.clock.now() + FIRST_LOOK_NS, until_ns)
    while True:
        yield entry
        if entry.decided or _is_over(quorum, entry, until_ns):
            return
        head: Hold | None = quorum.queues.heads.get(hold.key)
        if head is not None and head.state == HELD and quorum.queues.is_next(hold):
            yield from _watch_beside(quorum, entry, head, ttl_ms, until_ns)
            if _is_over(quorum, entry, until_ns):
                return
        entry.until_ns = until_ns


def _wait_for_entry(quorum: Quorum, entry: QueueEntry, pause_ns: int, until_ns: int) -> Steps:
    entry.until_ns = min(quorum.clock.now() + pause_ns, until_ns)
    yield entry


def _is_over(quorum: Quorum, entry: QueueEntry, until_ns: int) -> bool:
    now = quorum.clock.now()
    return entry.decided or now >= until_ns or quorum.queues.become_head(entry.hold, now)


def _watch_beside(quorum: Quorum, entry: QueueEntry, head: Hold, ttl_ms: int, until_ns: int) -> Steps:
    """Wait in the queue and watch the key. If it is gone, the hold at the head has lost its lock.

    A look that is registered for pushes counts every change as "gone". So a second look, which is not, must confirm it.
    """
    key, since = entry.hold.key, head.lease.since_ns
    confirms = False
    pauses = 0
    while not entry.decided and head.holds_since(since):
        now = quorum.clock.now()
        look = new_watch(quorum, Look(key), min(now + quorum.wait_ns(ttl_ms), until_ns))
        entry.watch = look
        try:
            if not confirms:
                quorum.queues.watches.add(key, look)
            if not entry.decided:
                yield look
            if not (confirms or entry.decided or look.yes >= look.quorum):
                pauses = 0 if look.watchable() else pauses + 1
                if pauses:
                    yield from _wait_for_entry(quorum, entry, quorum.retry.pause_ns(pauses, quorum.random()), until_ns)
                else:
                    yield from _wait_for_change_beside(quorum, entry, look, until_ns)
        finally:
            entry.watch = None
            quorum.queues.watches.remove(key, look)
        gone = look.yes >= look.quorum
        now = quorum.clock.now()
        if entry.decided or now >= until_ns:
            return
        if gone and confirms:
            head.lose_what_it_holds_since(since, now)
            return
        confirms = gone and not confirms


def _wait_for_change_beside(quorum: Quorum, entry: QueueEntry, look: Watch, until_ns: int) -> Steps:
    watch_pushes(quorum, look, quorum.clock.now(), look.left_ns(), until_ns)
    # Checked after `watch_pushes`, which undoes an earlier call of this look.
    if not entry.decided:
        yield [look]


def _keep_or_extend(quorum: Quorum, hold: Hold, ttl_ms: int) -> Steps:
    """Keep a lease that was handed off if nine tenths of the wanted validity are left; else extend it.

    If less than 19/20 are left, an extension leaves for which no caller waits. So in most cases no holder waits for
    one. If an extension that is waited for fails, the lease is released, and the hold asks the masters again.
    """
    now = quorum.clock.now()
    hold.apply_refresh(now)
    wanted = quorum.validity_ns(ttl_ms)
    lease = hold.lease
    left = lease.deadline_ns - now
    if wanted * 9 // 10 <= left <= wanted and not quorum.doubts.cover(lease.asked_ns, hold.key):
        if left < wanted * 19 // 20 and lease.refresh is None:
            ballot = quorum.ballot(hold.extending_to(ttl_ms, now))
            hold.refresh(ballot, now + wanted)
            yield Send([ballot])
        hold.won_ns = now
        return
    try:
        yield from extend(quorum, hold, ttl_ms)
        hold.won_ns = quorum.clock.now()
    except LockError:
        yield from _give_back(quorum, hold)


# --- for a change of the key ------------------------------------------------------------------------------


def wait_for_change(
    quorum: Quorum, key: bytes, round_ns: int, wait_ns: int, pauses: int, until_ns: int
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters says that the key is gone, until its ttl should be over, or for a while.

    Return whether there was anything to wait for; `pauses` counts how many times in a row there was not.
    """
    now = quorum.clock.now()
    look = new_watch(quorum, Look(key), min(now + wait_ns, until_ns))
    try:
        quorum.queues.watches.add(key, look)
        yield look
        now = quorum.clock.now()
        if look.yes >= look.quorum:
            if pauses:
                yield Pause(min(now + quorum.retry.again_ns(pauses, round_ns, quorum.random()), until_ns))
            return False
        waited = yield from wait_for_pushes(quorum, look, look.left_ns(), pauses, until_ns)
    finally:
        quorum.queues.watches.remove(key, look)
    return waited


def wait_for_pushes(
    quorum: Quorum, look: Watch, left_ns: int, pauses: int, until_ns: int, sure: bool = True
) -> Generator[Effect, None, bool]:
    """Wait until a quorum of masters has pushed a change of a key that they were asked about, or for a while.

    Args:
        left_ns: after which time the masters should have pushed the change.
        sure: False if the masters may push nothing; then the wait is short.

    Returns:
        False if this was only a pause, or if a quorum said that the key is gone before any master could push a change.
    """
    now = quorum.clock.now()
    if not look.watchable():
        yield Pause(min(now + quorum.retry.pause_ns(pauses, quorum.random()), until_ns))
        return False
    kept = list(look.answers or ())
    watch_pushes(quorum, look, now, left_ns, until_ns, -1 if sure else pauses)
    yield [look]
    left = look.answers or {}
    return (sure and look.yes < look.quorum) or any([index not in left for index in kept])


def watch_pushes(quorum: Quorum, look: Watch, now_ns: int, left_ns: int, until_ns: int, pauses: int = -1) -> None:
    """Make a look wait for pushes until the masters should have sent them, or for `BACKSTOP_NS` at most.

    If `pauses` is not -1, they may push nothing, and the wait begins with a short pause. It grows up to `BACKSTOP_NS`:
    with some masters out of reach, all waiters may be in this state for the whole time that the lock is held.
    """
    jitter = quorum.retry.pause_ns(0, quorum.random())
    longest_ns = BACKSTOP_NS - jitter
    if pauses >= 0:
        longest_ns = quorum.retry.growing_ns(pauses, quorum.random(), BACKSTOP_NS / SECOND)
    look.reopen(min(now_ns + left_ns + jitter, now_ns + longest_ns, until_ns))
