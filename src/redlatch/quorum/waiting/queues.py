"""The queues of one client: one queue for each name, and at its head the hold that asks the masters or has the lock.

Rules:
  * All holds of this client but the head wait, so a thousand tasks on one name are one contender for the masters. The
    masters decide which hold has the lock: two heads, after an interrupt, cost a command and no safety.
  * A hold hands its lease to the first entry of the queue without asking a master. A waiter that leaves sets `left`
    first and looks for a lease afterwards; a giver puts the lease on the entry first and looks at `left` afterwards. So
    at least one of the two sees the other and has the lease released. A lease whose waiter has left is never handed to
    another one.
  * No waiter is forgotten. A hold that joins a queue looks for the head afterwards, and a hold that gives the head up
    looks into the queue afterwards. An entry is called in two steps, as a watch is (see `watches`). Only
    `_have_it_look` appends an undecided entry: its waiter wakes up only to look.

There is never a call between a check and the step that follows from it, as in `claim`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from redlatch.errors import LockBusy

from ...votes.units import MILLISECOND, SECOND
from ..claim import HANDED_OFF, HELD, RELEASING
from ..hold import Hold
from ..lease import Lease
from ..policy import Doubts, FirstMaster, Outage
from .unqueued_holds import UnqueuedHolds
from .watches import Watch, Watches

if TYPE_CHECKING:
    from ..quorum import Quorum

# The most later holders for which a fenced lease reserves numbers.
MAX_SUCCESSORS = 1024

# Idle heads are removed when there are more than this, plus twice the busy ones.
MOST_HEADS = 1024

MAX_DELETIONS = 64

UNKNOWN_NS = SECOND // 10

# After this time without a hand-off, the first waiter watches the holder's key.
STILL_NS = 5 * MILLISECOND


class QueueEntry:
    """One place in a queue.

    Attributes:
        lease: the lease that `giver` handed off with the call; None if the masters must be asked.
        backs_off: whether other processes get a chance first.
        looks: whether the waiter watches the holder's key while it is the first in the queue.
        watch: its look at that key, if one is under way. The thread that calls the entry decides this look, too.
    """

    __slots__ = ("backs_off", "decided", "giver", "hold", "lease", "left", "looks", "until_ns", "waiter", "watch")

    def __init__(self, hold: Hold, until_ns: int) -> None:
        self.hold = hold
        self.until_ns = until_ns
        self.decided = False
        self.waiter: Any = None
        self.left = False
        self.lease: Lease | None = None
        self.giver: Hold | None = None
        self.backs_off = False
        self.looks = False
        self.watch: Watch | None = None

    def take(self) -> Lease | None:
        """Take the lease. Of two threads, only one gets it."""
        lease = self.lease
        self.lease = None
        return lease

    def take_lease(self) -> bool:
        """Move the lease to the hold; return whether there was one. After an interrupt it may be in both."""
        lease, giver = self.lease, self.giver
        if lease is None or giver is None:
            return False
        self.hold.take_lease(lease, giver)
        if self.take() is None:
            self.hold.to_waiting()
            return False
        return True


class WaitQueue:
    """The entries that wait for one name, and the average time between two changes of the owner (`pace_ns`)."""

    __slots__ = ("entries", "moved_ns", "pace_ns")

    def __init__(self) -> None:
        self.entries: deque[QueueEntry] = deque()
        self.moved_ns = 0
        self.pace_ns = 0

    def move(self, now_ns: int) -> None:
        if self.moved_ns:
            self.pace_ns += (now_ns - self.moved_ns - self.pace_ns) // 8
        self.moved_ns = now_ns

    def turn_ns(self) -> int:
        return self.pace_ns * (len(self.entries) + 1)


class WaitQueues:
    """All queues of one client.

    Attributes:
        heads: the hold that asks the masters for a key or has it, by key.
        called: decided entries and watches; the driver wakes their waiters.
        crowded: keys that the masters refused when they were asked last; a hint.
    """

    def __init__(self) -> None:
        self.heads: dict[bytes, Hold] = {}
        self.by_key: dict[bytes, WaitQueue] = {}
        self.outages: dict[bytes, Outage] = {}
        self.unqueued = UnqueuedHolds()
        # A list, because its truth costs least.
        self.called: list[QueueEntry | Watch] = []
        self.crowded: set[bytes] = set()
        self.watches = Watches(self.called)
        self.first_master = FirstMaster()
        self.doubts = Doubts()
        self._most = MOST_HEADS
        self._deletions: deque[tuple[bytes, int]] = deque(maxlen=MAX_DELETIONS)

    # --- one queue ---------------------------------------------------------------------------------

    def become_head(self, hold: Hold, now_ns: int) -> bool:
        while True:
            head = self.heads.setdefault(hold.key, hold)
            if head is hold:
                if len(self.heads) > self._most:
                    self._sweep(now_ns)
                return True
            if self._keeps_waiting(head, now_ns):
                return False
            self._step_aside(head, now_ns)
            # If this fails, the head has handed its lease off meanwhile.
            if self.heads.get(hold.key) is head:
                break
        queue = self.by_key.get(hold.key)
        if queue is not None and _is_others(queue, hold):
            self._call_next(queue, now_ns, False)
            return False
        self.heads[hold.key] = hold
        return True

    def _keeps_waiting(self, head: Hold, now_ns: int) -> bool:
        """Return whether others wait for a head. Only the masters know whether a lease in doubt stands."""
        return head.busy(now_ns) and not (head.state == HELD and self.doubts.cover(head.lease.asked_ns, head.key))

    def _step_aside(self, head: Hold, now_ns: int) -> None:
        if head.held(now_ns):
            self.note_unqueued(head, now_ns)

    def note_unqueued(self, hold: Hold, now_ns: int) -> bool:
        self.unqueued.note([hold], now_ns)
        return True

    def _sweep(self, now_ns: int) -> None:
        for key, head in list(self.heads.items()):
            if not self._keeps_waiting(head, now_ns) and key not in self.by_key:
                self._step_aside(head, now_ns)
                if self.heads.get(key) is head:
                    self.heads.pop(key, None)
        self._most = MOST_HEADS + 2 * len(self.heads)

    def join(self, quorum: Quorum, entry: QueueEntry, now_ns: int) -> None:
        """Append an entry, or raise LockBusy. If this is interrupted, the caller calls `step_out`."""
        hold, give_up_ns = entry.hold, entry.until_ns
        while True:
            queue = self.by_key.get(hold.key)
            if queue is None:
                queue = self.by_key.setdefault(hold.key, WaitQueue())
            depth = len(queue.entries)
            if depth >= quorum.max_waiters:
                self._dissolve(hold.key, queue)
                raise _busy(quorum, hold, queue, f"max_waiters={quorum.max_waiters}")
            if quorum.refuse_late and now_ns + queue.turn_ns() > give_up_ns:
                self._dissolve(hold.key, queue)
                why = f"each takes {queue.pace_ns / SECOND:.6f} s: too long for the timeout"
                raise _busy(quorum, hold, queue, why)
            queue.entries.append(entry)
            # Otherwise another thread has removed the queue, and no thread will look into it.
            if self.by_key.get(hold.key) is queue:
                return

    def step_out(self, entry: QueueEntry, now_ns: int) -> Lease | None:
        """Leave the queue; return a lease that came too late, for the caller to release. This may be repeated."""
        entry.left = True
        self.drop(entry)
        lease = entry.lease
        if entry.take_lease():
            return lease
        if self.heads.get(entry.hold.key) is entry.hold:
            self.leave(entry.hold, now_ns, False)
        return None

    def drop(self, entry: QueueEntry) -> None:
        queue = self.by_key.get(entry.hold.key)
        if queue is not None:
            _discard(queue, entry)
            self._dissolve(entry.hold.key, queue)

    def hand_off(self, quorum: Quorum, hold: Hold, now_ns: int) -> bool:
        """Hand the lease of a hold that is being released to the next waiter; return whether one took it."""
        queue = self.by_key.get(hold.key)
        entry = None if queue is None else _successor(queue, quorum, hold, now_ns)
        if queue is None or entry is None:
            return False
        queue.move(now_ns)
        lease = hold.lease.handed_off()
        # There is no call from here to the first `append`, so no interrupt and no other thread can intervene: the lease
        # belongs to exactly one of the two holds. The first check fails if another thread has made the waiter the head,
        # to ask the masters; the second, if another thread has sent a release of this lock, after an interrupt.
        if hold.key not in self.heads or self.heads[hold.key] is not hold:
            return False
        if hold.state not in (HELD, RELEASING):
            return False
        hold.state = HANDED_OFF
        # The token may have been exposed since `may_hand_off_to`.
        if hold.token_exposed:
            hold.state = RELEASING
            return False
        self.heads[hold.key] = entry.hold
        # A loss that the giver notices from now on is a loss of the next holder.
        entry.giver = hold
        entry.lease = lease
        entry.decided = True
        watch = entry.watch
        # As in `Watches.call`, without a call.
        if watch is not None:
            watch.yes = watch.quorum
            if watch.decided:
                watch = None
            else:
                watch.decided = True
        kept = True
        try:
            self.called.append(entry)
        finally:
            # Even after an interrupt: otherwise the lease would stay on the masters until its ttl. If the waiter left
            # before it could find the lease, the giver takes it back. There is no call between this check and the next
            # step, so only one of them takes it.
            if entry.left and entry.lease is not None:
                entry.lease = None
                hold.state = RELEASING
                kept = False
                self.leave(entry.hold, now_ns, False)
            elif watch is not None:
                self.called.append(watch)
        _discard(queue, entry)
        return kept

    def leave(self, hold: Hold, now_ns: int, backs_off: bool) -> None:
        key = hold.key
        self.watches.notify(key)
        if self.heads.get(key) is not hold:
            return
        queue = self.by_key.get(key)
        if queue is not None and self._call_next(queue, now_ns, backs_off):
            return
        if self.outages:
            self.end_outage(key)
        self.heads.pop(key, None)
        # A waiter that joined before this step may have seen this hold at the head.
        queue = self.by_key.get(key)
        if queue is not None and not self._call_next(queue, now_ns, backs_off):
            self._dissolve(key, queue)

    def note_outage(self, hold: Hold, outage: Outage) -> Outage:
        """Record an outage; return the one that earlier heads have found, if the hold is the head."""
        return self.outages.setdefault(hold.key, outage) if self.heads.get(hold.key) is hold else outage

    def end_outage(self, key: bytes) -> None:
        self.outages.pop(key, None)

    def overtake(self, quorum: Quorum, hold: Hold, now_ns: int) -> None:
        """Record that a hold has won. If another one is the head, its key was deleted."""
        if not quorum.trust_local_holder and self.heads.get(hold.key) is not hold:
            self.note_deletion(hold.key, now_ns)

    def note_deletion(self, key: bytes, now_ns: int) -> None:
        """Record that a user deleted a key: the hold of this client that has it loses its lock."""
        self._deletions.append((key, now_ns))
        head = None
        # If another thread hands the lease off meanwhile, the next head loses it.
        while head is not self.heads.get(key):
            head = self.heads.get(key)
            if head is not None:
                head.lose(now_ns)

    def deleted(self, hold: Hold) -> bool:
        """Return whether a user deleted the key since the attempt began. `lose` only marks the hold at the head."""
        since_ns = hold.lease.since_ns
        if self._deletions:
            lost = list(self._deletions)
            # If the list is full, it may have lost a deletion of this key.
            if len(lost) == MAX_DELETIONS and lost[0][1] >= since_ns:
                return True
            for key, lost_ns in lost:
                if key == hold.key and lost_ns >= since_ns:
                    return True
        return hold.lost_ns >= since_ns

    def is_next(self, hold: Hold) -> bool:
        queue = self.by_key.get(hold.key)
        return queue is not None and not _is_others(queue, hold)

    def successors(self, quorum: Quorum, key: bytes) -> int:
        queue = self.by_key.get(key)
        if queue is None or not queue.entries or not quorum.tenure_ns:
            return 0
        return min(quorum.tenure_count, MAX_SUCCESSORS)

    def _call_next(self, queue: WaitQueue, now_ns: int, backs_off: bool) -> bool:
        while True:
            entry = _next(queue)
            if entry is None:
                return False
            queue.move(now_ns)
            if entry.decided:
                return True
            entry.backs_off = backs_off
            self.heads[entry.hold.key] = entry.hold
            entry.decided = True
            self.called.append(entry)
            if entry.watch is not None:
                self.watches.call(entry.watch)
            _discard(queue, entry)
            # The waiter may have left without calling the next one.
            if not entry.left or self.heads.get(entry.hold.key) is not entry.hold:
                return True

    def _dissolve(self, key: bytes, queue: WaitQueue) -> None:
        try:
            # No call may come between this check and the deletion: another thread could join the queue.
            if not queue.entries and self.by_key[key] is queue:
                del self.by_key[key]
        except KeyError:
            # Another thread was faster.
            pass

    def expire(self, now_ns: int) -> int:
        """Call the next waiter of each queue whose head is not busy; return when to look again."""
        earliest = 0
        for key, queue in list(self.by_key.items()):
            if not queue.entries:
                self._dissolve(key, queue)
                continue
            head = self.heads.get(key)
            if head is None or not self._keeps_waiting(head, now_ns):
                if head is not None:
                    self._step_aside(head, now_ns)
                # If this fails, the head has changed since we looked.
                if self.heads.get(key) is head:
                    self._call_next(queue, now_ns, False)
                head = None
            until = now_ns + UNKNOWN_NS if head is None or head.state != HELD else head.lease.deadline_ns
            if head is not None and self._have_it_look(queue, now_ns):
                until = min(until, now_ns + UNKNOWN_NS)
            earliest = min(earliest or until, until)
        return earliest

    def _have_it_look(self, queue: WaitQueue, now_ns: int) -> bool:
        """Wake the first waiter of a still queue to watch the holder's key; return whether to call this again."""
        entry = _next(queue)
        if entry is None or not entry.looks:
            return False
        if entry.watch is None and now_ns - queue.moved_ns >= STILL_NS:
            entry.until_ns = min(entry.until_ns, now_ns)
            self.called.append(entry)
        return True

    def crowd(self, key: bytes) -> None:
        if len(self.crowded) >= MOST_HEADS:
            self.crowded.clear()
        self.crowded.add(key)

    def holds(self) -> list[Hold]:
        return [*list(self.heads.values()), *self.unqueued.holds()]

    def held(self) -> list[Hold]:
        return [hold for hold in self.holds() if hold.state == HELD]

    def everybody(self) -> list[QueueEntry | Watch]:
        entries = [entry for queue in list(self.by_key.values()) for entry in list(queue.entries)]
        return [*entries, *self.watches.everybody()]


def _next(queue: WaitQueue) -> QueueEntry | None:
    """Return the first entry that was neither left nor called."""
    while True:
        try:
            entry = queue.entries[0]
        except IndexError:
            return None
        if not (entry.left or entry.decided):
            return entry
        _discard(queue, entry)


def _successor(queue: WaitQueue, quorum: Quorum, hold: Hold, now_ns: int) -> QueueEntry | None:
    lease = hold.lease
    # An extension under way may reach the masters after an extension of the next holder.
    if hold.extending is not None or quorum.doubts.cover(lease.asked_ns, hold.key):
        return None
    if now_ns - lease.since_ns >= quorum.tenure_ns or lease.hand_offs >= quorum.tenure_count:
        return None
    entry = _next(queue)
    return entry if entry is not None and hold.may_hand_off_to(entry.hold) else None


def _discard(queue: WaitQueue, entry: QueueEntry) -> None:
    try:
        queue.entries.remove(entry)
    except ValueError:
        # It is removed already.
        pass


def _is_others(queue: WaitQueue, hold: Hold) -> bool:
    try:
        entry = queue.entries[0]
    except IndexError:
        return False
    return entry.hold is not hold


def _busy(quorum: Quorum, hold: Hold, queue: WaitQueue, why: str) -> LockBusy:
    depth = len(queue.entries)
    text = f"{hold.name!r}: {depth} waiters queued in this client ({why})"
    retry_after = queue.turn_ns() / SECOND or quorum.retry.longest
    return LockBusy(text, name=hold.name, depth=depth, retry_after=retry_after)
