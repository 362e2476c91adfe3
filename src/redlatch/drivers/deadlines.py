"""The times until which tasks wait, without a timer for each. Compiled, too (see `redlatch._c`)."""

from __future__ import annotations

from ..votes.units import MILLISECOND
from .light_future import LightFuture

# After this many new futures, those that are done are removed.
SWEEP = 256


class Deadlines:
    """The futures that tasks wait for, by the length of the wait. Equal waits end in the order in which they began.

    So each queue is sorted by construction, and adding is O(1), without a timer or a heap entry for each. Futures that
    are done are removed from the heads of the queues now and then. They are removed from everywhere when the queues
    have become twice as long as after the last such removal.
    """

    def __init__(self) -> None:
        self._queues: dict[int, list[LightFuture]] = {}
        # The ttl of the queue that was appended to last.
        self._wait_ms = -1
        # That queue.
        self._queue: list[LightFuture] = []
        self._added = 0
        self._most = SWEEP
        # Fields, because the compiled build knows their C types.
        self._tick_ns, self._often = MILLISECOND, SWEEP

    def add(self, future: LightFuture, now_ns: int) -> None:
        """Add a future that a task waits for until its `until_ns`."""
        wait_ms = 0 if future.until_ns < now_ns else (future.until_ns - now_ns) // self._tick_ns
        if wait_ms != self._wait_ms:
            self._wait_ms = wait_ms
            self._queue = self._queues.setdefault(wait_ms, [])
        self._queue.append(future)
        self._added += 1
        if self._added >= self._often:
            self._sweep()

    def _sweep(self) -> None:
        """Remove futures that are done, and queues that are empty then."""
        self._added = 0
        self._wait_ms, self._queue = -1, []
        left = 0
        for wait_ms, queue in list(self._queues.items()):
            over = 0
            for future in queue:
                if not future.done:
                    break
                over += 1
            del queue[:over]
            left += len(queue)
            if not queue:
                del self._queues[wait_ms]
        # Most of them are behind a long wait.
        if left > self._most:
            for queue in self._queues.values():
                queue[:] = [future for future in queue if not future.done]
            self._most = SWEEP + 2 * sum([len(queue) for queue in self._queues.values()])

    def earliest(self) -> int | None:
        """Return the earliest deadline of a future that is not done; remove futures that are done."""
        self._sweep()
        return min((queue[0].until_ns for queue in self._queues.values()), default=None)

    def due(self, now_ns: int) -> list[LightFuture]:
        """Remove and return the futures whose time is over."""
        over: list[LightFuture] = []
        for queue in self._queues.values():
            late = 0
            while late < len(queue) and queue[late].until_ns <= now_ns:
                late += 1
            over += queue[:late]
            del queue[:late]
        return over

    def clear(self) -> list[LightFuture]:
        """Remove and return every future."""
        futures = [future for queue in self._queues.values() for future in queue]
        self._queues.clear()
        self._wait_ms, self._queue = -1, []
        return futures
