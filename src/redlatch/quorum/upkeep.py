"""The care for held locks until they are released: renewals, and reports of losses.

All locks of a client that are cared for stand in one heap, by the time at which something is due. Locks that are due at
about the same time are renewed together, with one batch of commands for each master. A renewal is an ordinary extension
(`extend`): it counts if a quorum has answered before the old deadline, and it never brings back a key that is gone. A
renewal that fails is tried again until the old deadline.
"""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from redlatch.errors import LockError, LockLost
from redlatch.quorum.claim import HELD
from redlatch.quorum.hold import Hold
from redlatch.quorum.outcome import FORGOTTEN, RAN_OUT
from redlatch.quorum.policy import Policy
from redlatch.votes.units import MILLISECOND, SECOND

# Renewals that fall due within this time leave together.
TOGETHER_NS = 50 * MILLISECOND

# The driver looks for new locks to care for at least this often.
LONGEST_NS = 250 * MILLISECOND

# A renewal is postponed by this time while another extension is under way.
POSTPONED_NS = 5 * MILLISECOND

# Stale entries are removed when the heap has more entries than this, plus two for each entry that counts.
SLACK = 64


class Upkeep:
    """The care for one lock, from the acquire to the release.

    A release does not call `end`. The first step of the release takes the hold out of HELD, and from then on the care
    is not live. So a release that was refused or never began ends no upkeep.

    Args:
        lock: the lock object. `mark_lost` and `report_loss` of it are called for a loss. It is not kept alive.
        hold: its hold.
        ttl_ms: its time to live.
        renews: whether the lock is renewed whenever a third of its ttl is over.
        max_hold_ns: for how long the lock is renewed; None is for ever.
        on_lost: called with the lock and the reason of its loss; None means the `on_lost` of the client.
        cancels: whether the loss cancels the body of the ``async with``.

    Attributes:
        began_ns: when the upkeep for the present lease began.
        doubted: whether a vote for the lease is in doubt. The lease is then verified: it is extended by the time that
            is left.
        due_ns: when something is due next.
        event: the event that is set by a loss; None if no caller asked for it.
        failure: why the last renewal failed; None if it succeeded, or none was needed yet.
        kept: the lock object, which `let_run_out` keeps alive to report its loss; or None.
        number: the number of the entry in the heap that counts. Other entries are stale.
        reason: why the lock was lost, or None.
        renew_ns: when the next renewal is due.
        renewing: whether a renewal is under way. It asked for the right ttl when it began, so no second one waits for
            it.
        scope: cancels the body of the ``async with``, or None.
        token: the token of the lease that is cared for, or None.
        why: the reason to report when the lock runs out; None for the usual one.
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
        self.token: bytes | None = None
        self.began_ns = self.renew_ns = self.due_ns = self.number = 0

    def begin(self, now_ns: int) -> None:
        """Begin or continue the upkeep for a lease that was just won or extended."""
        if self.token is not self.hold.token or self.reason is not None:
            self.began_ns = now_ns
            self.token = self.hold.token
            self.reason = None
            self.failure = None
            # The event belongs to an earlier loss.
            if self.event is not None and self.event.is_set():
                self.event = None
        self.plan(self.hold.deadline_ns - self.ttl_ms * MILLISECOND * 2 // 3)

    def plan(self, renew_ns: int) -> None:
        """Set the time of the next renewal, and when something is due next."""
        self.renew_ns = renew_ns
        self.due_ns = min(renew_ns, self.hold.deadline_ns) if self.renews or self.doubted else self.hold.deadline_ns

    def end(self) -> None:
        """Forget the lease, because it is lost or the lock was acquired again.

        A new acquire must call this, because a lease that was handed off and came back has the same token.
        """
        self.token = None
        self.kept = None

    def let_run_out(self, lock: Any, why: str) -> None:
        """Stop the renewal of a lock whose holder is gone, and keep its object alive until the loss is reported."""
        self.renews = False
        self.why = why
        self.kept = lock

    def live(self) -> bool:
        """Return whether the lease is held and no release of it has begun."""
        return self.token is not None and self.token is self.hold.token and self.hold.state == HELD

    def over(self, now_ns: int) -> bool:
        """Return whether the lease is lost: its deadline has passed, and no release of it has begun."""
        # The lease is read once, because another thread may release the lock or replace the lease meanwhile.
        lease = self.hold.lease
        return now_ns >= lease.deadline_ns and self.live() and self.hold.lease is lease

    def why_over(self, now_ns: int) -> str:
        """Return the reason to report if the validity is over."""
        if self.why is not None:
            return self.why
        # This is more than the drift of the last renewal.
        drift_ns = self.ttl_ms * MILLISECOND // 20
        if self.renews and self.max_hold_ns is not None and now_ns >= self.began_ns + self.max_hold_ns - drift_ns:
            return f"it was held for its max_hold of {self.max_hold_ns / SECOND:g} s, and not renewed any more"
        return RAN_OUT + ("" if self.failure is None else f"; its last renewal failed: {self.failure}")

    def ttl_left_ms(self, policy: Policy, now_ns: int) -> int:
        """Return the ttl of a renewal that begins now: the ttl of the lock, or less if `max_hold_ns` ends earlier.

        If the lock is only verified, it is the time that is left of its ttl.
        """
        if not self.renews:
            return policy.ttl_ms_for(self.hold.deadline_ns - now_ns)
        if self.max_hold_ns is None:
            return self.ttl_ms
        return min(self.ttl_ms, (self.began_ns + self.max_hold_ns - now_ns) // MILLISECOND)


class UpkeepSchedule:
    """The locks of one client that are cared for, by the time at which something is due.

    Leases that are in doubt (`Doubts`) are verified at once.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Any thread may append to this.
        self._fresh: deque[Upkeep] = deque()
        # `Doubts.until_ns` when it was last read.
        self._doubted_ns = 0
        self._heap: list[tuple[int, int, Upkeep]] = []
        self._count = 0
        # The number of entries at which stale ones are removed.
        self._most = SLACK

    def add(self, upkeep: Upkeep) -> None:
        """Add a care that has begun or whose deadline has changed. Any thread may call this."""
        self._fresh.append(upkeep)

    def next_ns(self, now_ns: int) -> int:
        """Return when to look again, at most 0.25 s from now; 0 if no lock is cared for."""
        self._take_fresh(now_ns)
        while self._heap and not _counts(self._heap[0]):
            heapq.heappop(self._heap)
        return min(self._heap[0][0], now_ns + LONGEST_NS) if self._heap else 0

    def due(self, now_ns: int) -> tuple[list[Upkeep], list[tuple[Any, str]]]:
        """Process the due entries; return the cares to renew now, and the locks to report as lost with the reasons."""
        self._take_fresh(now_ns)
        renewed: list[Upkeep] = []
        # These go back into the heap at the end: the loop would take those due within TOGETHER_NS again and again.
        kept: list[Upkeep] = []
        lost: list[tuple[Any, str]] = []
        while self._heap and self._heap[0][0] <= now_ns + (TOGETHER_NS if renewed else 0):
            entry = heapq.heappop(self._heap)
            upkeep = entry[2]
            lock = upkeep.lock()
            if lock is None or not _counts(entry):
                continue
            upkeep.hold.apply_renewal(now_ns)
            if upkeep.over(now_ns):
                upkeep.end()
                lost.append((lock, upkeep.why_over(now_ns)))
            elif upkeep.renewing:
                # `conclude` plans the next renewal.
                upkeep.plan(upkeep.hold.deadline_ns)
                kept.append(upkeep)
            elif upkeep.hold.being_extended(now_ns):
                # A renewal after this extension could shorten the deadline.
                upkeep.plan(max(upkeep.renew_ns, now_ns + POSTPONED_NS))
                kept.append(upkeep)
            elif (upkeep.renews or upkeep.doubted) and upkeep.renew_ns <= now_ns + TOGETHER_NS:
                renewed.append(upkeep)
            else:
                upkeep.plan(upkeep.renew_ns)
                kept.append(upkeep)
        # A loss is reported in time even if the renewal hangs.
        for upkeep in renewed:
            upkeep.plan(upkeep.hold.deadline_ns)
        for upkeep in renewed + kept:
            self._push(upkeep)
        renewed = [upkeep for upkeep in renewed if _may_renew(self._policy, upkeep, now_ns)]
        for upkeep in renewed:
            upkeep.renewing = True
        return renewed, lost

    def conclude(
        self, renewed: list[Upkeep], errors: dict[int, LockError], failure: LockError | None, now_ns: int
    ) -> list[tuple[Any, str]]:
        """Process the results of renewals.

        Args:
            renewed: the cares that `due` returned.
            errors: the errors of single renewals, by place in `renewed`.
            failure: the error of all other renewals, or None.

        Returns:
            The locks to report as lost, each with the reason.
        """
        lost = []
        for place, upkeep in enumerate(renewed):
            upkeep.renewing = False
            lock, error = upkeep.lock(), errors.get(place, failure)
            if lock is None or not upkeep.live():
                continue
            forgotten = isinstance(error, LockLost) and error.reason == FORGOTTEN
            # A LockLost adds nothing to the reason of the loss.
            if not isinstance(error, LockLost):
                upkeep.failure = error
            if forgotten or upkeep.over(now_ns):
                upkeep.end()
                lost.append((lock, FORGOTTEN if forgotten else upkeep.why_over(now_ns)))
                continue
            if error is None:
                # `_take_fresh` sets this again if the lease came into doubt after the renewal began.
                upkeep.doubted = False
                upkeep.begin(now_ns)
            else:
                # Try again soon, but not all locks at the same time.
                upkeep.plan(
                    now_ns + int(min(upkeep.ttl_ms * MILLISECOND // 3, SECOND) * (0.1 + 0.1 * self._policy.random()))
                )
            self._fresh.append(upkeep)
        return lost

    def _take_fresh(self, now_ns: int) -> None:
        """Move new cares to the heap; after a new doubt, check all cares in the heap, too."""
        if self._policy.doubts.until_ns != self._doubted_ns:
            self._doubted_ns = self._policy.doubts.until_ns
            self._fresh.extend([entry[2] for entry in self._heap if _counts(entry)])
        while self._fresh:
            upkeep = self._fresh.popleft()
            if not upkeep.live():
                continue
            doubted = self._policy.doubts.cover(upkeep.hold.lease.asked_ns)
            if doubted != upkeep.doubted:
                upkeep.doubted = doubted
                upkeep.plan(now_ns if doubted else upkeep.renew_ns)
            self._push(upkeep)

    def _push(self, upkeep: Upkeep) -> None:
        self._count += 1
        upkeep.number = self._count
        heapq.heappush(self._heap, (upkeep.due_ns, self._count, upkeep))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._most = SLACK + 2 * len(self._heap)


def _counts(entry: tuple[int, int, Upkeep]) -> bool:
    """Return whether an entry is the newest one of its upkeep, and the lease is still held."""
    _, number, upkeep = entry
    return number == upkeep.number and upkeep.live()


def _may_renew(policy: Policy, upkeep: Upkeep, now_ns: int) -> bool:
    """Return whether a renewal would move the deadline or verify the lease; otherwise the lock runs out."""
    ttl_ms = upkeep.ttl_left_ms(policy, now_ns)
    if upkeep.doubted:
        return ttl_ms > 0
    return ttl_ms > 0 and now_ns + policy.validity_ns(ttl_ms) > upkeep.hold.deadline_ns
