"""Who waits until when, without a timer for each. Compiled, too (see `redlatch._c`)."""

from __future__ import annotations

from collections import deque

from ..protocol.ballot import Ballot
from ..protocol.policy import MILLISECOND


class Deadlines:
    """The ballots that wait, by how long they wait: equal waits end in the order they began.

    So each queue is sorted by construction, what is decided leaves from its head, and adding is O(1),
    without a timer or a heap entry for each.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Ballot]] = {}

    def add(self, ballot: Ballot, now_ns: int) -> None:
        """Add a ballot that waits until its `until_ns`."""
        patience = (ballot.until_ns - now_ns) // MILLISECOND
        queue = self._queues.get(patience)
        if queue is None:
            queue = self._queues[patience] = deque()
        while queue and queue[0].decided:
            queue.popleft()
        queue.append(ballot)

    def earliest(self) -> int | None:
        """Return the earliest deadline of a ballot that is not decided; forget those that are."""
        for patience, queue in list(self._queues.items()):
            while queue and queue[0].decided:
                queue.popleft()
            if not queue:
                del self._queues[patience]
        return min((queue[0].until_ns for queue in self._queues.values()), default=None)

    def due(self, now_ns: int) -> list[Ballot]:
        """Remove and return the ballots whose time is over."""
        over = []
        for queue in self._queues.values():
            while queue and queue[0].until_ns <= now_ns:
                over.append(queue.popleft())
        return over

    def clear(self) -> list[Ballot]:
        """Remove and return every ballot."""
        ballots = [ballot for queue in self._queues.values() for ballot in queue]
        self._queues.clear()
        return ballots
