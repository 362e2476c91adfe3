"""Founding: masters without a marker become new ones (F1, F2).

Masters are new if all were read, none has a final marker, and this client knew none. Founding them is a two-phase
commit, whose markers have three stages. Only a final one lets a master vote.

  1. A founder writes its draft on every master, with the number of the attempt. An attempt sends at most one draft to
     each master, since a late one could arrive on a master that has forgotten everything meanwhile. A draft expires
     soon, so an attempt that is refused leaves nothing.
  2. When all masters had drafts of one attempt, each draft is replaced by a prepared marker, which lasts. That the
     master still had its draft shows that at one moment all masters had drafts, no master had a final marker, and no
     lock stood.
  3. When all masters are prepared by one attempt, their markers become final.

Each write compares the whole marker, and any client may do steps 2 and 3, so a founder may end at any time. A master
that is prepared beside a final marker of the same attempt has forgotten nothing, and becomes final too. One that is not
prepared is kept out.

The earlier of two founders replaces the drafts of the other, which waits for it. A prepared marker is replaced only if
its attempt cannot succeed any more: a master that was read later has no marker of it.
`tests/model/founding.pml` checks these rules.
Source of the two phases: Gray, "Notes on Data Base Operating Systems", 1978.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import OF_FOUNDING, PREPARED, Marker

# A draft expires after this time. Others wait as long for a founder that has ended in step 1.
DRAFT_KEPT_MS = 3000

# An attempt's number is its founder's rank and a count. The rank is the time of the first attempt in microseconds with
# a random value, so that no two founders have the same.
RANDOM_VALUES = 1 << 40
ATTEMPTS = 1 << 20


class Step(Enum):
    WRITE_DRAFT = auto()
    WAIT = auto()
    READ_AGAIN = auto()
    # The other founder has a smaller rank.
    GIVE_WAY = auto()
    PREPARE = auto()
    FINISH = auto()


@dataclass
class Founding:
    """The attempts of one client.

    Attributes:
        sent: the indexes of the masters that were sent the draft of attempt `number`.
        doubted: the attempts that have prepared some masters while others had no marker of them, read at `doubted_ns`.
    """

    wall_us: Callable[[], int]
    random: Callable[[], float]
    number: int = 0
    sent: set[int] = field(default_factory=set)
    doubted: frozenset[int] = frozenset()
    doubted_ns: int = 0

    def step(self, index: int, report: HandshakeReport, reports: Sequence[HandshakeReport]) -> Step:
        if not self.number:
            self._begin()
        numbers = {attempt_of(other) for other in reports}
        prepared = frozenset(attempt_of(other) for other in reports if is_prepared(other))
        if len(numbers) == 1 and 0 not in numbers:
            return _second_phase(report, reports)
        if prepared and not self._are_given_up(prepared, reports):
            return Step.READ_AGAIN
        unprepared = numbers - prepared - {0}
        if any(number // ATTEMPTS < self.number // ATTEMPTS for number in unprepared):
            return Step.GIVE_WAY
        if attempt_of(report) == self.number in unprepared:
            return Step.WAIT
        if index in self.sent:
            self._begin()
        self.sent.add(index)
        return Step.WRITE_DRAFT

    def _are_given_up(self, attempts: frozenset[int], reports: Sequence[HandshakeReport]) -> bool:
        # They had prepared masters before all of these reports, and are incomplete.
        if self.doubted != attempts:
            self.doubted, self.doubted_ns = attempts, max(report.came_ns for report in reports)
        return all(report.sent_ns >= self.doubted_ns for report in reports)

    def _begin(self) -> None:
        rank = self.number // ATTEMPTS or max(1, self.wall_us()) * RANDOM_VALUES + int(self.random() * RANDOM_VALUES)
        self.number = max(self.number, rank * ATTEMPTS) + 1
        self.sent = set()


def _second_phase(report: HandshakeReport, reports: Sequence[HandshakeReport]) -> Step:
    if all(is_prepared(other) for other in reports):
        return Step.FINISH
    return Step.WAIT if is_prepared(report) else Step.PREPARE


def attempt_of(report: HandshakeReport) -> int:
    """Return the attempt whose draft or prepared marker the process has; or 0."""
    marker = read_quietly(report)
    begun = marker is not None and marker.stage in OF_FOUNDING and marker.run_id == report.run_id
    return marker.attempt if marker is not None and begun else 0


def is_prepared(report: HandshakeReport) -> bool:
    marker = read_quietly(report)
    return marker is not None and marker.stage == PREPARED and marker.run_id == report.run_id


def is_in_use(report: HandshakeReport) -> bool:
    # Even another text, which is no marker.
    marker = read_quietly(report)
    return report.marker is not None and (marker is None or marker.stage not in OF_FOUNDING)


def read_quietly(report: HandshakeReport) -> Marker | None:
    try:
        return Marker.read(report.marker)
    except (ValueError, TypeError, RecursionError):
        return None
