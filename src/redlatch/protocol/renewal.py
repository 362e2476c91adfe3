"""What is done for held locks until they are released: they are renewed, and their loss is told.

All locks of a client stand in one heap by when something is due next. What is due at one time is renewed together, one
batch of commands for each master. A renewal is an extension as any other (`quorum.extend`): it counts if a quorum has
answered before the old deadline, it never brings back a key that is gone, and it is tried again until the old deadline.
"""

from __future__ import annotations

import heapq
import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from redlatch.errors import LockError, LockLost
from redlatch.protocol.hold import HELD, Hold
from redlatch.protocol.outcome import FORGOTTEN, RAN_OUT
from redlatch.protocol.policy import MILLISECOND, SECOND, Policy

# What falls due within so long is renewed together.
TOGETHER_NS = 50 * MILLISECOND

# For so long at most nobody looks whether locks have come to be cared for.
LONGEST_NS = 250 * MILLISECOND

# A renewal is postponed by this time while another extension is under way.
POSTPONED_NS = 5 * MILLISECOND

# The heap may have so many entries, and two for each lock that is cared for, before it is cleared of the others.
SLACK = 64

logger = logging.getLogger("redlatch")


class Care:
    """What is done for one lock, from when it was won until it is released.

    A release does not call `end`. The step that begins the release takes the hold out of HELD, and from then on the
    care is not live. So a release that was refused, or never began, ends nothing.

    Args:
        lock: told of its loss by `mark_lost` and `tell_lost`; not kept alive.
        renews: whether it is renewed when a third of its ttl is over.
        max_hold_ns: for how long it is renewed; None is without end.
        on_lost: called with the lock and the reason; None leaves that to the client's.
        cancels: whether its loss cancels the body of its ``async with``.

    Attributes:
        event: set when it is lost; None where nobody asked for it.
        failure: why its last renewal failed; None if that succeeded, or was not needed yet.
        kept: the lock, kept alive to report its loss; None before `let_run_out`.
        reason: why it was lost; None while it is not.
        why: the reason to report when it runs out; None for the usual one.
        number: of its entry in the heap; others are of no use any more.
        renewing: whether a renewal is under way. What it asks for was right when it began: no second one waits for it.
        doubted: whether a vote that it stands on is void: then it is verified, by being extended to what is left.
    """

    __slots__ = (
        "began_ns",
        "cancels",
        "doubted",
        "due_ns",
        "event",
        "failure",
        "hold",
        "kept",
        "lock",
        "max_hold_ns",
        "number",
        "on_lost",
        "reason",
        "renew_ns",
        "renewing",
        "renews",
        "scope",
        "token",
        "ttl_ms",
        "why",
    )

    def __init__(
        self,
        lock: Any,
        hold: Hold,
        ttl_ms: int,
        renews: bool = False,
        max_hold_ns: int | None = None,
        on_lost: Callable[[Any, str], object] | None = None,
        cancels: bool = False,
    ) -> None:
        self.lock = weakref.ref(lock)
        self.hold = hold
        self.ttl_ms = ttl_ms
        self.renews = renews
        self.max_hold_ns = max_hold_ns
        self.on_lost = on_lost
        self.cancels = cancels
        self.event: Any = None
        self.reason: str | None = None
        self.why: str | None = None
        self.failure: LockError | None = None
        self.scope: Any = None
        self.kept: Any = None
        self.doubted = self.renewing = False
        self.token: bytes | None = None  # of the lease that is cared for; None when there is none
        self.began_ns = self.renew_ns = self.due_ns = self.number = 0

    def begin(self, now_ns: int) -> None:
        """Care for the lease that was just won, or extended."""
        if self.token is not self.hold.token or self.reason is not None:
            self.began_ns = now_ns
            self.token = self.hold.token
            self.reason = None
            self.failure = None
            if self.event is not None and self.event.is_set():  # it told of an earlier loss
                self.event = None
        self.plan(self.hold.deadline_ns - self.ttl_ms * MILLISECOND * 2 // 3)

    def plan(self, renew_ns: int) -> None:
        """Note when it is renewed next."""
        self.renew_ns = renew_ns
        self.due_ns = min(renew_ns, self.hold.deadline_ns) if self.renews or self.doubted else self.hold.deadline_ns

    def end(self) -> None:
        """Forget the lease: it is lost, or the lock was acquired again.

        A new acquire must call this, because a lease that was handed off and came back has the same token.
        """
        self.token = None
        self.kept = None

    def let_run_out(self, lock: Any, why: str) -> None:
        """Stop renewing a lock that has no holder any more, and keep its object alive until the loss is reported."""
        self.renews = False
        self.why = why
        self.kept = lock

    def live(self) -> bool:
        """Tell whether the lease is still held and no release of it has begun."""
        return self.token is not None and self.token is self.hold.token and self.hold.state == HELD

    def why_over(self, now_ns: int) -> str:
        """Return why its validity is over."""
        if self.why is not None:
            return self.why
        drift_ns = self.ttl_ms * MILLISECOND // 20  # of the last renewal's ttl, and more
        if self.renews and self.max_hold_ns is not None and now_ns >= self.began_ns + self.max_hold_ns - drift_ns:
            return f"it was held for its max_hold of {self.max_hold_ns / SECOND:g} s, and not renewed any more"
        return RAN_OUT + ("" if self.failure is None else f"; its last renewal failed: {self.failure}")

    def ttl_left_ms(self, policy: Policy, now_ns: int) -> int:
        """Return for how long it may be renewed now: its ttl, or what is left of the longest time it may be held.

        Of one that is not renewed but verified, what is left of its ttl.
        """
        if not self.renews:
            return policy.ttl_ms_for(self.hold.deadline_ns - now_ns)
        if self.max_hold_ns is None:
            return self.ttl_ms
        return min(self.ttl_ms, (self.began_ns + self.max_hold_ns - now_ns) // MILLISECOND)


class Agenda:
    """The locks of one client that are cared for, by when something is due.

    What is in doubt (`Policy.doubts`) is verified at once.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fresh: deque[Care] = deque()  # from any thread
        self._doubted_ns = 0  # what was in doubt when this was last looked at
        self._heap: list[tuple[int, int, Care]] = []
        self._count = 0
        self._most = SLACK  # entries, before those of no use are thrown out

    def add(self, care: Care) -> None:
        """Take a lock in whose care has begun, or whose deadline has changed; from any thread."""
        self._fresh.append(care)

    def next_ns(self, now_ns: int) -> int:
        """Return when to look again, a quarter of a second from now at the latest; 0 while there is nothing."""
        self._take_fresh(now_ns)
        while self._heap and not _counts(self._heap[0]):
            heapq.heappop(self._heap)
        return min(self._heap[0][0], now_ns + LONGEST_NS) if self._heap else 0

    def due(self, now_ns: int) -> tuple[list[Care], list[tuple[Any, str]]]:
        """Take what is due off the heap.

        Returns:
            What is to be renewed now; and the locks that are lost, each with the reason, to be told.
        """
        self._take_fresh(now_ns)
        renewed: list[Care] = []
        kept: list[Care] = []  # put back at the end: what is due within TOGETHER_NS would come again and again
        lost: list[tuple[Any, str]] = []
        while self._heap and self._heap[0][0] <= now_ns + (TOGETHER_NS if renewed else 0):
            entry = heapq.heappop(self._heap)
            care = entry[2]
            lock = care.lock()
            if lock is None or not _counts(entry):
                continue
            care.hold.adopt(now_ns)
            if now_ns >= care.hold.deadline_ns:
                care.end()
                lost.append((lock, care.why_over(now_ns)))
            elif care.renewing:  # how it ends is seen to
                care.plan(care.hold.deadline_ns)
                kept.append(care)
            elif care.hold.being_extended(now_ns):  # a renewal after it could shorten the deadline
                care.plan(max(care.renew_ns, now_ns + POSTPONED_NS))
                kept.append(care)
            elif (care.renews or care.doubted) and care.renew_ns <= now_ns + TOGETHER_NS:
                renewed.append(care)
            else:
                care.plan(care.renew_ns)
                kept.append(care)
        for care in renewed:  # its loss is told in time, whatever becomes of the renewal
            care.plan(care.hold.deadline_ns)
        for care in renewed + kept:
            self._push(care)
        renewed = [care for care in renewed if _may_renew(self._policy, care, now_ns)]
        for care in renewed:
            care.renewing = True
        return renewed, lost

    def settle(
        self, renewed: list[Care], errors: dict[int, LockError], failure: LockError | None, now_ns: int
    ) -> list[tuple[Any, str]]:
        """Take note of how renewals ended.

        Args:
            errors: why some failed, by place in `renewed`.
            failure: why all the others did, or None.

        Returns:
            The locks that are lost, each with the reason, to be told.
        """
        lost = []
        for place, care in enumerate(renewed):
            care.renewing = False
            lock, error = care.lock(), errors.get(place, failure)
            if lock is None or not care.live():
                continue
            forgotten = isinstance(error, LockLost) and error.reason == FORGOTTEN
            if not isinstance(error, LockLost):  # a LockLost adds nothing to the reason of the loss
                care.failure = error
            if forgotten or now_ns >= care.hold.deadline_ns:
                care.end()
                lost.append((lock, FORGOTTEN if forgotten else care.why_over(now_ns)))
                continue
            if error is None:
                care.doubted = False  # if it is again, since the renewal began, that is seen
                care.begin(now_ns)
            else:  # again soon, and not all at the same time
                care.plan(
                    now_ns + int(min(care.ttl_ms * MILLISECOND // 3, SECOND) * (0.1 + 0.1 * self._policy.random()))
                )
            self._fresh.append(care)
        return lost

    def _take_fresh(self, now_ns: int) -> None:
        """Take in what has come, and what stands in the heap where something has come to be in doubt."""
        if self._policy.doubted_ns != self._doubted_ns:
            self._doubted_ns = self._policy.doubted_ns
            self._fresh.extend([entry[2] for entry in self._heap if _counts(entry)])
        while self._fresh:
            care = self._fresh.popleft()
            if not care.live():
                continue
            doubted = self._policy.doubts(care.hold.lease.asked_ns)
            if doubted != care.doubted:
                care.doubted = doubted
                care.plan(now_ns if doubted else care.renew_ns)
            self._push(care)

    def _push(self, care: Care) -> None:
        self._count += 1
        care.number = self._count
        heapq.heappush(self._heap, (care.due_ns, self._count, care))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._most = SLACK + 2 * len(self._heap)


def _counts(entry: tuple[int, int, Care]) -> bool:
    """Tell whether an entry is the last one of a lock that is still held."""
    _, number, care = entry
    return number == care.number and care.live()


def _may_renew(policy: Policy, care: Care, now_ns: int) -> bool:
    """Tell whether a renewal would make it live longer, or verify it; else it runs out."""
    ttl_ms = care.ttl_left_ms(policy, now_ns)
    if care.doubted:
        return ttl_ms > 0
    return ttl_ms > 0 and now_ns + policy.validity_ns(ttl_ms) > care.hold.deadline_ns


def renewal_failed(error: Exception) -> LockError:
    """Return why a renewal failed; a mistake is logged, and then tried again as any failure, until the loss is told."""
    if isinstance(error, LockError):
        return error
    logger.error("a renewal failed", exc_info=error)
    return LockError(f"the renewal failed: {type(error).__name__}")


def tell_all(lost: list[tuple[Any, str]]) -> None:
    """Report lost locks, each with its reason. All are marked before the first `on_lost` is called.

    Raises:
        BaseException: the first one, such as SystemExit, that an `on_lost` raised; after all losses were reported.
    """
    for lock, reason in lost:
        lock.mark_lost(reason)
    failure: BaseException | None = None
    for lock, reason in lost:
        try:
            lock.tell_lost(reason)
        except BaseException as error:  # SystemExit, say
            failure = failure or error
    if failure is not None:
        raise failure
