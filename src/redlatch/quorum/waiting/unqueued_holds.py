"""The holds of a client that may have a lease without being the head of their name's queue.

Most holders are heads (see `queues`), and a plain lock costs nothing here. But readers and the holders of a semaphore
share a name, the holds of a batch enter no queue, and a holder whose lease is in doubt makes room for another head. A
client that releases all its locks at once must find these holders, too.

Holds are only added, a whole batch as one group. A release does not remove its hold: holds that no longer count are
removed when there are many.
"""

from __future__ import annotations

import threading
from collections import deque

from ..claim import ASKING, WAITING
from ..hold import Hold

# Holds that no longer count are removed when there are more than this, plus twice those that count.
MOST_UNQUEUED = 1024


class UnqueuedHolds:
    """The holds beside the heads. Any thread may call the methods."""

    __slots__ = ("_groups", "_most", "_size", "_sweeping")

    def __init__(self) -> None:
        self._groups: deque[list[Hold]] = deque()
        # About how many holds there are. Of two threads that add at once, one may not be counted.
        self._size = 0
        self._most = MOST_UNQUEUED
        self._sweeping = threading.Lock()

    def note(self, holds: list[Hold], now_ns: int) -> None:
        """Add holds that have a lease, or ask for one.

        Args:
            holds: the holds, some of which may be here already. The caller does not change this list any more.
            now_ns: the time now.
        """
        self._groups.append(holds)
        self._size = self._size + len(holds)
        if self._size > self._most and self._sweeping.acquire(False):
            try:
                self._sweep(now_ns)
            finally:
                self._sweeping.release()

    def holds(self) -> list[Hold]:
        """Return the holds that were added; some of them may have no lease any more."""
        found: dict[Hold, None] = {}
        for group in list(self._groups):
            for hold in group:
                found[hold] = None
        return list(found)

    def _sweep(self, now_ns: int) -> None:
        """Remove the holds that neither have a lease nor ask for one.

        Another thread may acquire through such a hold meanwhile. It adds the hold again, behind those that are removed.
        """
        looked: list[list[Hold]] = list(self._groups)
        counting: dict[Hold, None] = {}
        for group in looked:
            for hold in group:
                if hold.held(now_ns) or hold.state in (WAITING, ASKING):
                    counting[hold] = None
        # Added before the others are removed, so that `holds` always finds them.
        self._groups.append(list(counting))
        for _ in looked:
            self._groups.popleft()
        self._size = len(counting)
        self._most = MOST_UNQUEUED + 2 * len(counting)
