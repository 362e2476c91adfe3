"""The table that decides whether a master may vote."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redlatch.guard.actions import (
    Admission,
    accept_marker,
    accept_new_marker,
    await_handover,
    dismiss_leap,
    doubt_after_jump,
    finish_founding,
    found,
    join,
    leave,
    look_at_clock_later,
    look_at_clocks_again,
    look_for_marker_again,
    mark_again,
    quarantine_jump,
    quarantine_jump_for_all,
    refuse,
    refuse_unpersisted,
    rename_marker,
    replace_lost_marker,
    replace_older_marker,
    replace_outlived_marker,
    wait_for_missing,
    wait_for_others,
)
from redlatch.guard.clock import ClockState
from redlatch.guard.evidence import Case, MarkerState, ProcessState, examine
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.master import GuardedMaster
from redlatch.guard.remaining_quarantine import quarantine_rest
from redlatch.guard.state import GuardState

Action = Callable[[GuardState, Case], Admission | None]


class Row(NamedTuple):
    """A row of the table. The first matching row with `final` decides; those before it only act."""

    name: str
    marker: MarkerState
    process: ProcessState
    clock: ClockState
    action: Action
    final: bool = True

    def matches(self, case: Case) -> bool:
        return bool(case.marker & self.marker and case.process & self.process and case.clock & self.clock)


M, P, C = MarkerState, ProcessState, ClockState

# The columns are aligned by hand.
# fmt: off
# For any number of masters: those that cannot be used, and handovers.
UNUSABLE = (
    #   name                            marker         process        clock               action
    Row("another use of the key",       M.UNREADABLE,  P.ANY,         C.ANY,              refuse),
    Row("a clock that stands still",    M.ANY,         P.ANY,         C.STANDS_STILL,     look_at_clock_later),
    Row("another list, other options",  M.CONTRARY,    P.ANY,         C.ANY,              refuse),
    Row("left for other masters",       M.LEFT,        P.ANY,         C.ANY,              leave),
    Row("waiting for a handover",       M.AWAITED,     P.ANY,         C.ANY,              await_handover),
    Row("joining by a handover",        M.JOINING,     P.ANY,         C.ANY,              join),
)

# Several masters.
TABLE = (
    *UNUSABLE,
    # Masters without a marker.
    Row("new? others being dialled",    M.UNDECIDED,   P.ANY,         C.ANY,              wait_for_others),
    Row("new? others out of reach",     M.MAYBE_NEW,   P.ANY,         C.ANY,              wait_for_missing),
    Row("new",                          M.ALL_NEW,     P.ANY,         C.ANY,              found),
    Row("prepared, others final",       M.PREPARED,    P.ANY,         C.ANY,              finish_founding),
    Row("a marker on its way",          M.JUST_MISSED, P.ANY,         C.ANY,              look_for_marker_again),
    Row("a lost marker",                M.LOST,        P.ANY,         C.ANY,              replace_lost_marker),
    # Masters with a marker, whose clock has jumped forward.
    Row("a jump, others not heard",     M.PRESENT,     P.ANY,         C.FORWARD_UNHEARD,  look_at_clocks_again),
    Row("a jump, others agree with us", M.PRESENT,     P.ANY,         C.FORWARD,          quarantine_jump_for_all),
    Row("a jump, perhaps ours",         M.PRESENT,     P.ANY,         C.FORWARD_UNCLEAR,  quarantine_jump, final=False),
    Row("a jump of our own clock",      M.PRESENT,     P.ANY,         C.OURS_STOOD_STILL, dismiss_leap, final=False),
    # Masters with a marker.
    Row("trusted, without a file",      M.PRESENT,     P.UNPERSISTED, C.ANY,              refuse_unpersisted),
    Row("restarted",                    M.PRESENT,     P.RESTARTED,   C.ANY,              replace_outlived_marker),
    Row("an older marker is back",      M.OLDER,       P.REMEMBERS,   C.ANY,              replace_older_marker),
    Row("renamed",                      M.PRESENT,     P.KEPT_MEMORY, C.ANY,              rename_marker),
    Row("forgot a while ago",           M.FORGETFUL,   P.SAME,        C.ANY,              quarantine_rest),
    Row("as it was",                    M.INTACT,      P.SAME,        C.ANY,              accept_marker),
)

# A single master: it stays in use after it has forgotten locks (R1).
ALONE = (
    *UNUSABLE,
    Row("new",                          M.ALL_NEW,     P.ANY,         C.ANY,              found),
    Row("a lost marker",                M.LOST,        P.ANY,         C.ANY,              mark_again),
    Row("trusted, without a file",      M.PRESENT,     P.UNPERSISTED, C.ANY,              refuse_unpersisted),
    Row("restarted",                    M.PRESENT,     P.RESTARTED,   C.ANY,              mark_again),
    Row("a jump of a clock",            M.PRESENT,     P.ANY,         C.FORWARD_UNCLEAR,  doubt_after_jump),
    Row("an older marker is back",      M.OLDER,       P.REMEMBERS,   C.ANY,              mark_again),
    Row("renamed",                      M.PRESENT,     P.KEPT_MEMORY, C.ANY,              rename_marker),
    Row("marked again by another",      M.FORGETFUL,   P.SAME,        C.ANY,              accept_new_marker),
    Row("as it was",                    M.INTACT,      P.SAME,        C.ANY,              accept_marker),
)
# fmt: on


def rows_of(case: Case, table: tuple[Row, ...] = TABLE) -> list[Row]:
    rows = []
    for row in table:
        if row.matches(case):
            rows.append(row)
            if row.final:
                return rows
    raise AssertionError(f"no row decides {case.marker}, {case.process}, {case.clock}")


class Admissions(GuardState):
    def handshake(self, index: int) -> GuardHandshake:
        return self.masters[index].handshake()

    def monitor(self, index: int) -> GuardedMaster:
        return self.masters[index]

    def decide(self, index: int, report: HandshakeReport, others: list[HandshakeReport | None]) -> Admission | None:
        """Decide about a connection; None while that depends on masters that are being dialled.

        Args:
            others: the reports of all connections that wait for a decision, including this one; None for each master
                that cannot be reached. Those still being dialled are missing.
        """
        case = examine(self, index, report, others)
        decision: Admission | None = None
        for row in rows_of(case, ALONE if self.alone else TABLE):
            decision = row.action(self, case)
        return decision
