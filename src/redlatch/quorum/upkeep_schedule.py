"""The schedule for the held locks of a client: renewals, and reports of losses.

The terms of a client are in one heap, by due time. Locks that are due at about the same time are renewed together.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from typing import Any

from redlatch.errors import LockError, LockLost
from redlatch.loss import FORGOTTEN, KEPT_OUT, Loss
from redlatch.quorum.key_watch import AGAIN_NS, FIRST_NS, KeyWatches, beyond_proof
from redlatch.quorum.outcome import why_lost
from redlatch.quorum.quorum import Quorum
from redlatch.quorum.upkeep import TOGETHER_NS, Term
from redlatch.votes.units import MILLISECOND, SECOND

logger = logging.getLogger("redlatch")

LONGEST_NS = 250 * MILLISECOND

# Stale entries are removed when there are more entries than this, plus two for each that counts.
SLACK = 64


LostLock = tuple[Any, Term, Loss]


class UpkeepSchedule:
    """The locks of one client that have an upkeep, by the time at which something is due.

    Any thread may add to `_fresh` and `_ended`; only the one that attends takes from them and changes the terms and the
    heap. Each method may be interrupted: the next call of `due` does what was left.

    Attributes:
        lost: the losses that are to be reported. The events of the locks are set already.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.keys = KeyWatches(quorum.queues.watches)
        self.longest_ns = LONGEST_NS
        self._heartbeat_ns = 0
        self._looked_ns = 0
        self.lost: deque[LostLock] = deque()
        self._fresh: deque[Term] = deque()
        # Renewals that have ended: the terms, their errors by place, and the error of all others.
        self._ended: deque[tuple[list[Term], dict[int, LockError], LockError | None]] = deque()
        self._doubted_ns = 0
        self._heap: list[tuple[int, int, Term]] = []
        # Terms that `due` has taken out of the heap and not put back yet.
        self._taken: deque[Term] = deque()
        self._count = 0
        self._most = SLACK

    def expect_to_run(self, heartbeat_ns: int) -> None:
        """End the renewal of all leases when `due` comes later than this after the last time; 0 never does."""
        self._heartbeat_ns = heartbeat_ns
        self.longest_ns = min(LONGEST_NS, heartbeat_ns // 2) if heartbeat_ns else LONGEST_NS

    def add(self, term: Term) -> None:
        """Add a term that has begun or whose deadline has changed. Any thread may call this."""
        self._fresh.append(term)

    def conclude(self, renewed: list[Term], errors: dict[int, LockError], failure: LockError | None) -> None:
        self._ended.append((renewed, errors, failure))

    def next_ns(self, now_ns: int) -> int:
        """Return when to look again; 0 if no lock has an upkeep."""
        self._take_all(now_ns)
        while self._heap and not _counts(self._heap[0]):
            heapq.heappop(self._heap)
        longest_ns = now_ns + self.longest_ns
        if self._heap:
            return min(self._heap[0][0], longest_ns)
        # An interrupt may leave a loss that was not reported.
        return longest_ns if self.lost or self._taken else 0

    def settled(self) -> bool:
        """Return whether each lock was released, or its loss is recorded. Any thread may call this."""
        terms = [*list(self._fresh), *list(self._taken), *[entry[2] for entry in list(self._heap)]]
        return not any([term.cared_for() for term in terms])

    def due(self, now_ns: int) -> list[Term]:
        """Return the terms to renew now, and add the locks that were lost to `lost`."""
        self._take_all(now_ns)
        if self._heartbeat_ns:
            self._end_stalled(now_ns)
        taken = self._taken
        # All are taken before the first goes back: the loop would find those due within TOGETHER_NS again and again.
        while self._heap and self._heap[0][0] <= now_ns + (TOGETHER_NS if taken else 0):
            entry = self._heap[0]
            if _counts(entry):
                taken.append(entry[2])
            heapq.heappop(self._heap)
        due: list[Term] = []
        while taken:
            if self._look_at(taken[0], now_ns):
                due.append(taken[0])
            taken.popleft()
        return due

    def _look_at(self, term: Term, now_ns: int) -> bool:
        lock = term.upkeep.lock()
        if lock is None or not term.live():
            return False
        term.hold.apply_refresh(now_ns)
        if term.over(now_ns) or self._quorum.released_ns:
            reason = why_lost(self._quorum, term.hold, True, term.upkeep, now_ns)
            term.hold.count_end(self._quorum, now_ns, reason)
            # The holder may release the lock as soon as it knows.
            term.hold.lost_because = term.token, reason
            lock._mark_lost(term)
            self.lost.append((lock, term, reason))
            # After an interrupt before this, the next look does all of it again.
            term.reason = reason
            term.upkeep.kept = None
            # Another thread may have made the event before it could see the reason.
            lock._mark_lost(term)
            return False
        self.keys.plan(term, now_ns)
        due = term.is_due(self._quorum, now_ns)
        self._push(term)
        return due

    def _end_stalled(self, now_ns: int) -> None:
        looked_ns, self._looked_ns = self._looked_ns, now_ns
        if now_ns - looked_ns <= self._heartbeat_ns:
            return
        longest_ns = 0
        for term in [*self._taken, *[entry[2] for entry in self._heap if _counts(entry)]]:
            stalled_ns = now_ns - max(looked_ns, term.began_ns)
            if stalled_ns > self._heartbeat_ns and term.renews:
                term.stalled_ns = stalled_ns
                longest_ns = max(longest_ns, stalled_ns)
                self._enter(term, term.renew_ns, now_ns)
        if longest_ns:
            logger.warning(
                "held locks are not renewed any more: this process, or its event loop, had not run for %.1f s "
                "(heartbeat=%g)",
                longest_ns / SECOND,
                self._heartbeat_ns / SECOND,
            )

    def _take_all(self, now_ns: int) -> None:
        while self._ended:
            self._conclude(*self._ended[0], now_ns)
            self._ended.popleft()
        doubted_ns = self._quorum.doubts.until_ns
        if doubted_ns != self._doubted_ns:
            for term in [*self._taken, *[entry[2] for entry in self._heap if _counts(entry)]]:
                self._enter(term, term.renew_ns, now_ns)
            self._doubted_ns = doubted_ns
        while self._fresh:
            term = self._fresh[0]
            if term.upkeep.asked and term.live():
                if term.watch is None:
                    self.keys.begin(term, now_ns)
                else:
                    # An extension may have ended the tracking of the key.
                    term.watch.ask_by(now_ns + FIRST_NS)
            # The verification of a lease in doubt stays due.
            renew_ns = min(term.usual_ns(), term.renew_ns) if term.doubted else term.usual_ns()
            self._enter(term, renew_ns, now_ns)
            self._fresh.popleft()
        for term in self.keys.take_news(now_ns):
            self._enter(term, term.renew_ns, now_ns)

    def _conclude(
        self, renewed: list[Term], errors: dict[int, LockError], failure: LockError | None, now_ns: int
    ) -> None:
        """Process the results of renewals. A lock that was found lost is due at once."""
        for place, term in enumerate(renewed):
            term.renewing = False
            error = errors.get(place, failure)
            # A LockLost adds nothing to the reason of the loss.
            if not isinstance(error, LockLost):
                term.failure = error
            elif error.reason is FORGOTTEN:
                term.gone = FORGOTTEN
            if error is not None:
                if term.doubted and term.live() and beyond_proof(self._quorum, term.hold, error.causes.items()):
                    term.lose(KEPT_OUT, now_ns)
                if term.watch is not None:
                    term.watch.ask_by(now_ns + AGAIN_NS)
                self._enter(term, now_ns + term.soon_ns(self._quorum.random()), now_ns)
            else:
                if term.watch is not None:
                    term.watch.ask_by(now_ns)
                # `_enter` sets this again if the lease came into doubt after the renewal began.
                term.doubted = False
                self._enter(term, term.usual_ns(), now_ns)

    def _enter(self, term: Term, renew_ns: int, now_ns: int) -> None:
        """Put a term into the heap; verify its lease at once if it has just come into doubt."""
        if not term.live():
            return
        doubted = self._quorum.doubts.cover(term.hold.lease.asked_ns, term.hold.key)
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
