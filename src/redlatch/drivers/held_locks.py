"""The locks that a client still holds when it is closed with ``release=True``.

First all leases of the client come into doubt (`Doubts`), and stay in it. From then on `check` and `remaining` of every
lock report the loss, no attempt wins, and no waiter of the client gets a lease. Only then may a release leave.
Otherwise another process could have a lock while its former holder relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from redlatch.quorum.hold import Hold
from redlatch.quorum.quorum import Quorum
from redlatch.votes.ballot import Ballot
from redlatch.votes.units import MILLISECOND, UNBOUNDED

logger = logging.getLogger("redlatch")

# The releases leave after this time even if the loss was not reported to every holder yet.
TOLD_NS = 100 * MILLISECOND


class HeldLocks:
    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.ended = False
        # The token that was released, and its ballot. The token tells a later lease of the same hold.
        self._released: dict[Hold, tuple[bytes, Ballot]] = {}

    def end(self) -> None:
        """Let no lease of the client count any more; harmless when repeated."""
        if not self.ended:
            # First: a caller that finds its lease in doubt then knows the reason.
            self._quorum.released_ns = self._quorum.clock.now()
            self._quorum.doubts.add(UNBOUNDED)
            self.ended = True
        for hold in self._quorum.queues.held():
            hold.lose(self._quorum.released_ns)

    def release(self, send: Callable[[list[Ballot]], object]) -> bool:
        """Send the releases of the locks that are held now; return whether there were any.

        Call it again when all calls have ended: an acquire that had its votes already may have kept its lock since.
        After an interrupt, the next call sends the releases again rather than never.
        """
        if not self.ended:
            return False
        new: dict[Hold, tuple[bytes, Ballot]] = {}
        for hold in self._quorum.queues.held():
            hold.lose(self._quorum.released_ns)
            lease, before = hold.lease, self._released.get(hold)
            release = hold.kind.releasing(hold.key, lease)
            if release is not None and (before is None or before[0] is not lease.token):
                new[hold] = lease.token, self._quorum.ballot(release)
        if new:
            send([ballot for _, ballot in new.values()])
            self._released.update(new)
        return bool(new)

    def report(self) -> None:
        ballots = [ballot for _, ballot in self._released.values()]
        kept = sum([not ballot.decided or ballot.unavailable() for ballot in ballots])
        if kept:
            logger.warning(
                "close(release=True): %d of %d locks may stay until their ttl is over: too few masters have answered",
                kept,
                len(ballots),
            )
