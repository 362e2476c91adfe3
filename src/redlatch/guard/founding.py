"""How masters without a marker come to be new (F1, F2).

New means that all masters were read and none has a final marker, and that this client knew none. Then a founder writes
drafts, which expire soon and let no master vote:

  1. It writes its draft on every master. The draft has the number of the attempt. An attempt sends at most one draft to
     each master, since a late one could arrive on a master that has forgotten everything meanwhile.
  2. When all of its drafts were read, it reads all masters again. If all still have them, then no master had a final
     marker at the moment between, and so no lock stood.
  3. It replaces its own drafts, and only them, by final markers. A master whose draft is gone by then has no marker
     beside final ones, and is kept out as a forgetful one.

Of two founders the one that began earlier goes on: it replaces the drafts of the other, which waits for it.
`tests/model/founding.pml` checks these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import Marker

# A draft expires after this time, in milliseconds. So long others wait for a founder that has ended in the middle.
DRAFT_KEPT_MS = 3000

# The number of an attempt consists of its founder's rank, which stays, and the count of its attempts. The rank is the
# time of the first attempt in microseconds, and this many random values: no two founders have the same.
RANDOM_VALUES = 1 << 40
ATTEMPTS = 1 << 20


class Step(Enum):
    """What a founder does about one master when all were read."""

    WRITE_DRAFT = auto()
    WAIT = auto()  # until the other masters were read
    READ_AGAIN = auto()
    GIVE_WAY = auto()  # to a founder with a smaller rank
    WRITE_FINAL = auto()


@dataclass
class Founding:
    """The attempts of one client.

    Args:
        wall_us: returns microseconds since 1970.
        random: returns a number from 0 to 1.

    Attributes:
        number: of the present attempt, or 0.
        sent: the masters, by index, that were sent its draft.
        complete_ns: when all of its drafts had been read; 0 before.
    """

    wall_us: Callable[[], int]
    random: Callable[[], float]
    number: int = 0
    sent: set[int] = field(default_factory=set)
    complete_ns: int = 0

    def step(self, index: int, report: HandshakeReport, reports: Sequence[HandshakeReport]) -> Step:
        """Return what to do about a master.

        Args:
            reports: of all masters, none of which has a final marker.
        """
        if not self.number:
            self._begin()
        numbers = [draft_number(other) for other in reports]
        if any(number and number // ATTEMPTS < self.number // ATTEMPTS for number in numbers):
            return Step.GIVE_WAY
        if all(number == self.number for number in numbers):
            if not self.complete_ns:
                self.complete_ns = max(other.came_ns for other in reports)
            read_again = all(other.sent_ns >= self.complete_ns for other in reports)
            return Step.WRITE_FINAL if read_again else Step.READ_AGAIN
        if draft_number(report) == self.number:
            return Step.WAIT
        if index in self.sent:
            self._begin()
        self.sent.add(index)
        return Step.WRITE_DRAFT

    def _begin(self) -> None:
        """Begin another attempt."""
        rank = self.number // ATTEMPTS or max(1, self.wall_us()) * RANDOM_VALUES + int(self.random() * RANDOM_VALUES)
        self.number = max(self.number, rank * ATTEMPTS) + 1
        self.sent = set()
        self.complete_ns = 0


def draft_number(report: HandshakeReport) -> int:
    """Return the number of the draft on a master; 0 without one, and for a draft that another process has kept."""
    marker = read_quietly(report)
    return marker.draft if marker is not None and marker.run_id == report.run_id else 0


def has_final(report: HandshakeReport) -> bool:
    """Return whether a master has something else than a draft as its marker."""
    marker = read_quietly(report)
    return report.marker is not None and (marker is None or not marker.draft)


def read_quietly(report: HandshakeReport) -> Marker | None:
    """Return the marker of a report, or None if there is none that can be read: its own case says so."""
    try:
        return Marker.read(report.marker)
    except (ValueError, TypeError, RecursionError):
        return None
