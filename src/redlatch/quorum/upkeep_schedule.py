"""When something is due for the held locks of a client: a renewal, or the report of a loss.

The terms of a client (see `upkeep`) stand in one heap, by the time at which something is due. Locks that are due at
about the same time are renewed together, with one batch of commands for each master.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from redlatch.errors import LockError, LockLost
from redlatch.quorum.outcome import FORGOTTEN
from redlatch.quorum.policy import Policy
from redlatch.quorum.upkeep import TOGETHER_NS, Term
from redlatch.votes.units import MILLISECOND, SECOND

# The driver looks for new locks to care for at least this often.
LONGEST_NS = 250 * MILLISECOND

# Stale entries are removed when the heap has more entries than this, plus two for each entry that counts.
SLACK = 64


class UpkeepSchedule:
    """The locks of one client that are cared for, by the time at which something is due.

    Leases that are in doubt (`Doubts`) are verified at once.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Any thread may append to this.
        self._fresh: deque[Term] = deque()
        # `Doubts.until_ns` when it was last read.
        self._doubted_ns = 0
        self._heap: list[tuple[int, int, Term]] = []
        self._count = 0
        # The number of entries at which stale ones are removed.
        self._most = SLACK

    def add(self, term: Term) -> None:
        """Add a term that has begun or whose deadline has changed. Any thread may call this."""
        self._fresh.append(term)

    def next_ns(self, now_ns: int) -> int:
        """Return when to look again, at most 0.25 s from now; 0 if no lock is cared for."""
        self._take_fresh(now_ns)
        while self._heap and not _counts(self._heap[0]):
            heapq.heappop(self._heap)
        return min(self._heap[0][0], now_ns + LONGEST_NS) if self._heap else 0

    def due(self, now_ns: int) -> tuple[list[Term], list[tuple[Any, Term]]]:
        """Process the due entries; return the terms to renew now, and the locks to report as lost with their terms.

        Only one thread may call this, and only this reports a loss. So each loss is reported once.
        """
        self._take_fresh(now_ns)
        due: list[Term] = []
        # These go back into the heap at the end: the loop would take those due within TOGETHER_NS again and again.
        kept: list[Term] = []
        lost: list[tuple[Any, Term]] = []
        while self._heap and self._heap[0][0] <= now_ns + (TOGETHER_NS if due else 0):
            entry = heapq.heappop(self._heap)
            term = entry[2]
            lock = term.upkeep.lock()
            if lock is None or not _counts(entry):
                continue
            term.hold.apply_refresh(now_ns)
            if term.over(now_ns):
                term.reason = term.upkeep.why_over(now_ns)
                term.upkeep.kept = None
                lost.append((lock, term))
            elif term.is_due(now_ns):
                due.append(term)
            else:
                kept.append(term)
        for term in due + kept:
            self._push(term)
        due = [term for term in due if term.may_renew(self._policy, now_ns)]
        for term in due:
            term.renewing = True
        return due, lost

    def conclude(
        self, renewed: list[Term], errors: dict[int, LockError], failure: LockError | None, now_ns: int
    ) -> None:
        """Store the results of renewals, and plan what comes next. Any thread may call this.

        The lock that a renewal finds lost is due at once: the renewal has ended its lease.

        Args:
            renewed: the terms that `due` returned.
            errors: the errors of single renewals, by place in `renewed`.
            failure: the error of all other renewals, or None.
        """
        for place, term in enumerate(renewed):
            term.renewing = False
            if not term.live():
                continue
            error = errors.get(place, failure)
            # A LockLost says that the lease is over. It adds nothing to the reason of the loss.
            if not isinstance(error, LockLost):
                term.failure = error
            elif error.reason == FORGOTTEN:
                term.forgotten = True
            if error is not None:
                # Try again soon, but not all locks at the same time.
                soon_ns = min(term.upkeep.ttl_ms * MILLISECOND // 3, SECOND)
                term.plan(now_ns + int(soon_ns * (0.1 + 0.1 * self._policy.random())))
            else:
                # `_take_fresh` sets this again if the lease came into doubt after the renewal began.
                term.doubted = False
                term.plan_next()
            self._fresh.append(term)

    def _take_fresh(self, now_ns: int) -> None:
        """Move new terms to the heap; after a new doubt, check all terms in the heap, too."""
        if self._policy.doubts.until_ns != self._doubted_ns:
            self._doubted_ns = self._policy.doubts.until_ns
            self._fresh.extend([entry[2] for entry in self._heap if _counts(entry)])
        while self._fresh:
            term = self._fresh.popleft()
            if not term.live():
                continue
            doubted = self._policy.doubts.cover(term.hold.lease.asked_ns)
            if doubted != term.doubted:
                term.doubted = doubted
                term.plan(now_ns if doubted else term.renew_ns)
            self._push(term)

    def _push(self, term: Term) -> None:
        self._count += 1
        term.number = self._count
        heapq.heappush(self._heap, (term.due_ns, self._count, term))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._most = SLACK + 2 * len(self._heap)


def _counts(entry: tuple[int, int, Term]) -> bool:
    """Return whether an entry is the newest one of its term, and the lease is still held."""
    _, number, term = entry
    return number == term.number and term.live()
