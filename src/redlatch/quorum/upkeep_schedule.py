"""When something is due for the held locks of a client: a renewal, or the report of a loss.

The terms of a client (see `upkeep`) stand in one heap, by the time at which something is due. Locks that are due at
about the same time are renewed together, with one batch of commands for each master.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from redlatch.errors import LockError, LockLost
from redlatch.quorum.claim import FREE, HELD
from redlatch.quorum.outcome import FORGOTTEN
from redlatch.quorum.policy import Policy
from redlatch.quorum.upkeep import TOGETHER_NS, Term, Upkeep
from redlatch.votes.units import MILLISECOND, SECOND

# The driver looks for new locks to care for at least this often.
LONGEST_NS = 250 * MILLISECOND

# The same while an acquire is under way whose lock is to be cared for.
AWAITED_NS = 50 * MILLISECOND

# Stale entries are removed when the heap has more entries than this, plus two for each entry that counts.
SLACK = 64


class UpkeepSchedule:
    """The locks of one client that are cared for, by the time at which something is due.

    Leases that are in doubt (`Doubts`) are verified at once. Any thread may add to the two queues; only one thread, the
    one that attends, takes from them and changes the terms and the heap.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fresh: deque[Term] = deque()
        # The renewals that have ended: the terms, the errors by place, and the error of all others.
        self._ended: deque[tuple[list[Term], dict[int, LockError], LockError | None]] = deque()
        # Locks whose acquire was under way when a caller asked for the event of their loss.
        self._awaited: list[Upkeep] = []
        # `Doubts.until_ns` when it was last read.
        self._doubted_ns = 0
        self._heap: list[tuple[int, int, Term]] = []
        self._count = 0
        # The number of entries at which stale ones are removed.
        self._most = SLACK

    def add(self, term: Term) -> None:
        """Add a term that has begun or whose deadline has changed. Any thread may call this."""
        self._fresh.append(term)

    def await_hold(self, upkeep: Upkeep) -> None:
        """Begin the care for a lock as soon as the acquire that is under way has won it; for asyncio."""
        if upkeep not in self._awaited:
            self._awaited.append(upkeep)

    def conclude(self, renewed: list[Term], errors: dict[int, LockError], failure: LockError | None) -> None:
        """Take the results of renewals; the attending thread processes them when it looks next.

        Args:
            renewed: the terms that `due` returned.
            errors: the errors of single renewals, by place in `renewed`.
            failure: the error of all other renewals, or None.
        """
        self._ended.append((renewed, errors, failure))

    def next_ns(self, now_ns: int) -> int:
        """Return when to look again, at most 0.25 s from now; 0 if no lock is cared for."""
        self._take_all(now_ns)
        while self._heap and not _counts(self._heap[0]):
            heapq.heappop(self._heap)
        longest_ns = AWAITED_NS if self._awaited else LONGEST_NS
        if self._heap:
            return min(self._heap[0][0], now_ns + longest_ns)
        return now_ns + longest_ns if self._awaited else 0

    def due(self, now_ns: int) -> tuple[list[Term], list[tuple[Any, Term]]]:
        """Process the due entries; return the terms to renew now, and the locks to report as lost with their terms.

        Only this reports a loss. So each loss is reported once.
        """
        self._take_all(now_ns)
        due: list[Term] = []
        # These go back into the heap at the end: the loop would take those due within TOGETHER_NS again and again.
        taken: list[Term] = []
        lost: list[tuple[Any, Term]] = []
        try:
            while self._heap and self._heap[0][0] <= now_ns + (TOGETHER_NS if taken else 0):
                entry = self._heap[0]
                if _counts(entry):
                    taken.append(entry[2])
                heapq.heappop(self._heap)
            for term in taken:
                lock = term.upkeep.lock()
                if lock is None:
                    continue
                term.hold.apply_refresh(now_ns)
                if term.over(now_ns):
                    term.reason = term.upkeep.why_over(now_ns)
                    term.upkeep.kept = None
                    lost.append((lock, term))
                elif term.is_due(now_ns):
                    due.append(term)
        except BaseException:  # an interrupt; the next call reports these losses
            for _, term in lost:
                term.reason = None
            raise
        finally:
            # The lock of a term may be collected, and then nobody cares for it.
            for term in taken:
                if term.live() and term.upkeep.lock() is not None:
                    self._push(term)
        return [term for term in due if term.may_renew(self._policy, now_ns)], lost

    def _take_all(self, now_ns: int) -> None:
        """Process what other threads have left: ended renewals, new terms and new doubts."""
        while self._ended:
            self._conclude(*self._ended[0], now_ns)
            self._ended.popleft()
        for upkeep in self._awaited:
            if upkeep.hold.state == HELD and not upkeep.live():
                self._fresh.append(upkeep.begin(now_ns))
        if self._awaited:
            self._awaited = [upkeep for upkeep in self._awaited if upkeep.hold.state not in (FREE, HELD)]
        if self._policy.doubts.until_ns != self._doubted_ns:
            self._doubted_ns = self._policy.doubts.until_ns
            for term in [entry[2] for entry in self._heap if _counts(entry)]:
                self._enter(term, term.renew_ns, now_ns)
        while self._fresh:
            term = self._fresh[0]
            self._enter(term, term.usual_ns(), now_ns)
            self._fresh.popleft()

    def _conclude(
        self, renewed: list[Term], errors: dict[int, LockError], failure: LockError | None, now_ns: int
    ) -> None:
        """Process the results of renewals. The lock that a renewal found lost is due at once: its lease is over."""
        for place, term in enumerate(renewed):
            term.renewing = False
            error = errors.get(place, failure)
            # A LockLost says that the lease is over. It adds nothing to the reason of the loss.
            if not isinstance(error, LockLost):
                term.failure = error
            elif error.reason == FORGOTTEN:
                term.forgotten = True
            if error is not None:
                # Try again soon, but not all locks at the same time.
                soon_ns = min(term.upkeep.ttl_ms * MILLISECOND // 3, SECOND)
                self._enter(term, now_ns + int(soon_ns * (0.1 + 0.1 * self._policy.random())), now_ns)
            else:
                # `_enter` sets this again if the lease came into doubt after the renewal began.
                term.doubted = False
                self._enter(term, term.usual_ns(), now_ns)

    def _enter(self, term: Term, renew_ns: int, now_ns: int) -> None:
        """Put a term into the heap; verify its lease at once if it has just come into doubt."""
        if not term.live():
            return
        doubted = self._policy.doubts.cover(term.hold.lease.asked_ns)
        fresh_doubt = doubted and not term.doubted
        term.doubted = doubted
        term.plan(now_ns if fresh_doubt else renew_ns)
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
