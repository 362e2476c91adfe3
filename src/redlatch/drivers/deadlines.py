"""The times until which ballots wait, without a timer for each. Compiled, too (see `redlatch._c`)."""

from __future__ import annotations

from ..votes.ballot import Ballot
from ..votes.units import MILLISECOND

# After this many new ballots, those that no task waits for are removed.
SWEEP = 256


class Deadlines:
    """The ballots that wait, by the length of the wait. Equal waits end in the order in which they began.

    So each queue is sorted by construction, and adding is O(1), without a timer or a heap entry for each. Ballots that
    are decided, or have lost their waiter, are removed from the heads of the queues now and then. They are removed from
    everywhere when the queues have become twice as long as after the last such removal.
    """

    def __init__(self) -> None:
        self._queues: dict[int, list[Ballot]] = {}
        self._patience = -1  # of the queue that was added to last
        self._queue: list[Ballot] = []  # that queue
        self._added = 0
        self._most = SWEEP

    def add(self, ballot: Ballot, now_ns: int) -> None:
        """Add a ballot that waits until its `until_ns`."""
        patience = max(0, (ballot.until_ns - now_ns) // MILLISECOND)  # its time may be over already
        if patience != self._patience:
            self._patience = patience
            self._queue = self._queues.setdefault(patience, [])
        self._queue.append(ballot)
        self._added += 1
        if self._added >= SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        """Remove ballots that no task waits for, and queues that are empty then."""
        self._added = 0
        self._patience, self._queue = -1, []
        left = 0
        for patience, queue in list(self._queues.items()):
            over = 0
            for ballot in queue:
                if not _is_over(ballot):
                    break
                over += 1
            del queue[:over]
            left += len(queue)
            if not queue:
                del self._queues[patience]
        if left > self._most:  # most of them are behind a ballot that waits for long
            for queue in self._queues.values():
                queue[:] = [ballot for ballot in queue if not _is_over(ballot)]
            self._most = SWEEP + 2 * sum([len(queue) for queue in self._queues.values()])

    def earliest(self) -> int | None:
        """Return the earliest deadline of a ballot that is not decided; forget those that are."""
        self._sweep()
        return min((queue[0].until_ns for queue in self._queues.values()), default=None)

    def due(self, now_ns: int) -> list[Ballot]:
        """Remove and return the ballots whose time is over."""
        over: list[Ballot] = []
        for queue in self._queues.values():
            late = 0
            while late < len(queue) and (queue[late].until_ns <= now_ns or queue[late].waits_for):
                late += 1
            over += [ballot for ballot in queue[:late] if not ballot.waits_for]
            del queue[:late]
        return over

    def clear(self) -> list[Ballot]:
        """Remove and return every ballot."""
        ballots = [ballot for queue in self._queues.values() for ballot in queue]
        self._queues.clear()
        self._patience, self._queue = -1, []
        return ballots


def _is_over(ballot: Ballot) -> bool:
    """Return whether no task waits for a ballot here: it is decided, cancelled, or has a timer of its own."""
    return bool(ballot.decided or ballot.waits_for or (ballot.waiter is not None and ballot.waiter.done))
