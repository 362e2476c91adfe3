"""The holds of a client that may have a lease without being the head of their name's queue.

Readers and the holders of a semaphore share a name, the holds of a batch enter no queue, and a holder whose lease is in
doubt makes room for another head. A client that closes must find these holders, too.
"""

from __future__ import annotations

import threading
from collections import deque

from ..claim import ASKING, WAITING
from ..hold import Hold

# A release does not remove its hold: holds that no longer count are removed when there are more than this, plus twice
# those that count.
MOST_UNQUEUED = 1024


class UnqueuedHolds:
    """The holds beside the heads. Any thread may call the methods."""

    __slots__ = ("_groups", "_most", "_size", "_sweeping")

    def __init__(self) -> None:
        self._groups: deque[list[Hold]] = deque()
        # About how many: of two threads that add at once, one may not be counted.
        self._size = 0
        self._most = MOST_UNQUEUED
        self._sweeping = threading.Lock()

    def note(self, holds: list[Hold], now_ns: int) -> None:
        """Add holds that have a lease, or ask for one. The caller does not change this list any more."""
        self._groups.append(holds)
        self._size = self._size + len(holds)
        if self._size > self._most and self._sweeping.acquire(False):
            try:
                self._sweep(now_ns)
            finally:
                self._sweeping.release()

    def holds(self) -> list[Hold]:
        found: dict[Hold, None] = {}
        for group in list(self._groups):
            for hold in group:
                found[hold] = None
        return list(found)

    def _sweep(self, now_ns: int) -> None:
        """Remove the holds that neither have a lease nor ask for one.

        A thread that acquires through such a hold meanwhile adds it again, behind those that are removed.
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
