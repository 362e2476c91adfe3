"""The times until which tasks wait, without a timer for each. Compiled, too (see `redlatch._c`)."""

from __future__ import annotations

from ..votes.ballot import Wait
from ..votes.units import MILLISECOND

# After this many new waits, those that are over are removed.
SWEEP = 256


class Deadlines:
    """The waits of tasks, by their length. Equal waits end in the order in which they began.

    So each queue is sorted by construction, and adding is O(1), without a timer or a heap entry for each. Waits that
    are decided, or have lost their waiter, are removed from the heads of the queues now and then. They are removed from
    everywhere when the queues have become twice as long as after the last such removal.
    """

    def __init__(self) -> None:
        self._queues: dict[int, list[Wait]] = {}
        self._patience = -1  # of the queue that was added to last
        self._queue: list[Wait] = []  # that queue
        self._added = 0
        self._most = SWEEP

    def add(self, wait: Wait, now_ns: int) -> None:
        """Add a wait until its `until_ns`."""
        patience = max(0, (wait.until_ns - now_ns) // MILLISECOND)  # its time may be over already
        if patience != self._patience:
            self._patience = patience
            self._queue = self._queues.setdefault(patience, [])
        self._queue.append(wait)
        self._added += 1
        if self._added >= SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        """Remove waits that have no task any more, and queues that are empty then."""
        self._added = 0
        self._patience, self._queue = -1, []
        left = 0
        for patience, queue in list(self._queues.items()):
            over = 0
            for wait in queue:
                if not _is_over(wait):
                    break
                over += 1
            del queue[:over]
            left += len(queue)
            if not queue:
                del self._queues[patience]
        if left > self._most:  # most of them are behind a long wait
            for queue in self._queues.values():
                queue[:] = [wait for wait in queue if not _is_over(wait)]
            self._most = SWEEP + 2 * sum([len(queue) for queue in self._queues.values()])

    def earliest(self) -> int | None:
        """Return the earliest deadline of a wait that is not decided; forget those that are."""
        self._sweep()
        return min((queue[0].until_ns for queue in self._queues.values()), default=None)

    def due(self, now_ns: int) -> list[Wait]:
        """Remove and return the waits whose time is over."""
        over: list[Wait] = []
        for queue in self._queues.values():
            late = 0
            while late < len(queue) and (queue[late].until_ns <= now_ns or queue[late].anew):
                late += 1
            over += [wait for wait in queue[:late] if not wait.anew]
            del queue[:late]
        return over

    def clear(self) -> list[Wait]:
        """Remove and return every wait."""
        waits = [wait for queue in self._queues.values() for wait in queue]
        self._queues.clear()
        self._patience, self._queue = -1, []
        return waits


def _is_over(wait: Wait) -> bool:
    """Return whether no task waits here: it is decided, cancelled, or has a timer of its own."""
    return bool(wait.decided or wait.anew or (wait.waiter is not None and wait.waiter.done))
