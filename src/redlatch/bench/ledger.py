"""Who is inside: what the callers of a hot name, in however many processes, write while they hold its lock.

It is memory that all processes of a contender share. Nothing in it is atomic, because the lock is what keeps it in
order: an owner that finds another inside, or is no longer inside itself when it leaves, has seen an overlap, and two
owners that count at once lose a count, which is missing in the end.
"""

from __future__ import annotations

import mmap
from time import perf_counter_ns

# The cells: who is inside, who was the last owner, when that one released, and how many were inside so far.
INSIDE, LAST, RELEASED_NS, ENTRIES = range(4)
SIZE = 4 * 8
LOOK_ROUND = 128  # turns after which an owner lets the others run while it is inside, so that they could show


class Ledger:
    """The shared cells.

    Args:
        file: the descriptor of a file of SIZE bytes.
    """

    def __init__(self, file: int) -> None:
        self.cells = memoryview(mmap.mmap(file, SIZE)).cast("Q")

    def clear(self) -> None:
        """Begin anew."""
        for cell in range(len(self.cells)):
            self.cells[cell] = 0


class Caller:
    """One of those who want the hot name, and what it has seen.

    Args:
        ledger: shared by all callers.
        number: from 1, another for each caller.
        end_ns: when the run is over; what comes later is not measured.

    Attributes:
        entries: how often it was inside.
        turns: how often within the run.
        handoffs_ns: from the release of another one to its own acquire, for each change of owner within the run.
        held_ns: for how long it was inside within the run.
        overlaps: how often it saw another one inside.
        running: whether the run is not over.
        waiting: whether it waits for the lock.
    """

    def __init__(self, ledger: Ledger, number: int, end_ns: int) -> None:
        self._cells = ledger.cells
        self._number = number
        self._end_ns = end_ns
        self._entered_ns = 0
        self.entries = self.turns = self.held_ns = self.overlaps = 0
        self.handoffs_ns: list[int] = []
        self.running, self.waiting = True, False

    def enter(self) -> None:
        """Note that the lock is ours."""
        now, cells = perf_counter_ns(), self._cells
        if cells[INSIDE]:
            self.overlaps += 1
        cells[INSIDE] = self._number
        self.waiting = False
        last = cells[LAST]
        if last != self._number:
            if last and now < self._end_ns:
                self.handoffs_ns.append(now - cells[RELEASED_NS])
            cells[LAST] = self._number
        self._entered_ns = now

    def looks_round(self) -> bool:
        """Whether the others are to run while we are inside."""
        return self.entries % LOOK_ROUND == 0

    def leave(self) -> None:
        """Note that the lock is about to be released."""
        cells = self._cells
        if cells[INSIDE] != self._number:
            self.overlaps += 1
        self.entries += 1
        cells[ENTRIES] += 1
        cells[INSIDE] = 0
        cells[RELEASED_NS] = now = perf_counter_ns()
        if now < self._end_ns:
            self.turns += 1
            self.held_ns += now - self._entered_ns
        else:
            self.running = False

    def was_last(self) -> bool:
        """Whether nobody else has had the lock since, while the run is on."""
        return self._cells[LAST] == self._number and perf_counter_ns() < self._end_ns
