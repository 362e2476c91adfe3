"""The ledger: memory that the callers of a hot name share, and write to while they hold the lock.

All processes of a contender share it. Its operations are not atomic: the lock must keep them in order. An owner sees an
overlap if it finds another owner inside, or if it is no longer noted as inside when it leaves. Two owners that count at
once lose a count, and that count is missing at the end.
"""

from __future__ import annotations

import mmap
from time import perf_counter_ns

# The cells: the owner that is inside, the last owner, the time of its release, and the number of entries so far.
INSIDE, LAST, RELEASED_NS, ENTRIES = range(4)

SIZE = 4 * 8

# The number of turns after which an owner lets the other callers run while it is inside, so that an overlap could show.
LOOK_ROUND = 128


class Ledger:
    """The shared cells.

    Args:
        file: the descriptor of a file of SIZE bytes.
    """

    def __init__(self, file: int) -> None:
        self.cells = memoryview(mmap.mmap(file, SIZE)).cast("Q")

    def clear(self) -> None:
        """Set all cells to 0."""
        for cell in range(len(self.cells)):
            self.cells[cell] = 0


class Caller:
    """One caller of the hot name, and its observations.

    Args:
        ledger: the ledger of all callers.
        number: the number of this caller, from 1 and unique.
        end_ns: the end of the run; later events are not measured.

    Attributes:
        entries: how often the caller was inside.
        turns: how often it was inside within the run.
        handoffs_ns: the times from another caller's release to its own acquire, for each owner change within the run.
        held_ns: the time that it was inside within the run.
        overlaps: how often it saw another caller inside.
        running: whether the run goes on.
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
        """Note that this caller has acquired the lock."""
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
        """Return whether this caller must let the others run while it is inside."""
        return self.entries % LOOK_ROUND == 0

    def leave(self) -> None:
        """Note that this caller is about to release the lock."""
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
        """Return whether the run goes on and no other caller has had the lock since."""
        return self._cells[LAST] == self._number and perf_counter_ns() < self._end_ns
