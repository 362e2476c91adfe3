"""The actions of the rows in the table of `admission`: a small function for each.

Each takes the guard's state and the case. It returns the admission, or None to let the connection wait.
`quarantine_jump` and `dismiss_leap` do not decide: the rows below theirs do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from redlatch.errors import MasterQuarantined, MasterRefused
from redlatch.guard.evidence import SECOND_LOOK_NS, Case
from redlatch.guard.marker import Marker
from redlatch.guard.state import GuardState
from redlatch.votes.units import MILLISECOND, SECOND

# How long a client waits before it looks again at a clock that has jumped, while nothing is known of the others.
LOOK_AGAIN_NS = 100 * MILLISECOND


class Admission(NamedTuple):
    """What happens to a connection: it may vote, or it is closed and the master is dialled again.

    Args:
        admitted: whether it may vote.
        wait_ns: how long to wait before dialling again.
        cause: why the master has no vote until then; None if that takes only a moment.
    """

    admitted: bool
    wait_ns: int = 0
    cause: MasterRefused | None = None


# --- actions that change nothing ----------------------------------------------------------------------------


def refuse(state: GuardState, case: Case) -> Admission:
    """Refuse a master that this client cannot use."""
    return Admission(False, SECOND, MasterRefused(case.refusal))


def refuse_unpersisted(state: GuardState, case: Case) -> Admission:
    """Refuse a master that should be trusted to remember, but writes no append-only file."""
    refusal = (
        f"{state.address(case.master)} keeps no append-only file (aof_enabled:0), and so cannot be trusted "
        "to remember: appendonly yes is needed there, or a guard without trust_persistence"
    )
    return refuse(state, case._replace(refusal=refusal))


def look_at_clock_later(state: GuardState, case: Case) -> Admission:
    """Look again in a second: the clock stands still, or was set back by just the time that has passed."""
    return Admission(False, SECOND, MasterQuarantined("its clock stands still"))


def look_at_clocks_again(state: GuardState, case: Case) -> Admission:
    """Look again when more is known of the other masters' clocks."""
    assert case.master.leap is not None
    return Admission(False, LOOK_AGAIN_NS, MasterQuarantined(case.master.leap.described()))


def wait_for_others(state: GuardState, case: Case) -> None:
    """Keep the connection, undecided, until the other masters were tried."""


def look_at_all_again(state: GuardState, case: Case) -> Admission:
    """Dial at once, so that all masters are asked at about the same time."""
    return Admission(False)


# --- markers ------------------------------------------------------------------------------------------------


def look_for_marker_again(state: GuardState, case: Case) -> Admission:
    """Look again soon, and remember since when the marker is missing."""
    case.master.missed_ns = case.master.missed_ns or case.report.came_ns
    return Admission(False, SECOND_LOOK_NS)


def mark_as_new(state: GuardState, case: Case) -> Admission:
    """Write the first marker: the master had nothing to forget."""
    case.master.why = ""
    case.master.write_marker(state.new_marker(case.master, case.report, True), case.report)
    return admission(state, case)


def mark_as_unsure(state: GuardState, case: Case) -> Admission:
    """Write the first marker as one that quarantines: a master that was not reached may have an older marker."""
    unseen = [state.address(other) for other in state.masters if not other.offset.at_ns]
    case.master.why = f"nobody can say whether it is new: {', '.join(unseen)} was never reached"
    case.master.write_marker(state.new_marker(case.master, case.report, False), case.report)
    return admission(state, case)


def replace_lost_marker(state: GuardState, case: Case) -> Admission:
    """Quarantine the master, and write a marker with the list of the other markers."""
    master, report = case.master, case.report
    _quarantine(state, case, "it has lost its marker, and maybe locks")
    marker, known = state.new_marker(master, report, False), master.marker or state.marker_seen_after(0)
    if known is not None:  # other clients may name the masters by other addresses
        mine = known.master if known is master.marker else state.unmatched_address(known) or marker.master
        marker = replace(marker, master=mine, masters=known.masters)
    master.write_marker(marker, report)
    return admission(state, case)


def accept_marker(state: GuardState, case: Case) -> Admission:
    """Accept the marker as it is; a quarantine that began earlier still counts."""
    case.master.marker, case.master.seen_ns = case.seen, case.report.came_ns
    return admission(state, case)


def quarantine_rest(state: GuardState, case: Case) -> Admission:
    """Quarantine the master for the rest of the time since a client saw that it forgot.

    Two clocks measure that time, the master's and ours, and the smaller result counts: one of them may have been set
    forward, but hardly both by as much.
    """
    master, marker, report = case.master, _seen(case), case.report
    forgot = marker.run_id, marker.since
    if master.quarantine != forgot:
        waited_us = min(report.server_us - marker.since, state.wall_us() - marker.wall)
        left_ns = state.quarantine_ns - max(0, waited_us) * 1000
        master.quarantine = forgot
        if left_ns > 0 and master.until_ns < report.came_ns + left_ns:
            master.until_ns = report.came_ns + left_ns
            master.why = master.why or "it may have forgotten locks"
    return accept_marker(state, case)


def rename_marker(state: GuardState, case: Case) -> Admission:
    """Write the process's new name into the marker, and nothing else: it has kept its memory."""
    case.master.write_marker(replace(_seen(case), run_id=case.report.run_id), case.report)
    return admission(state, case)


def replace_outlived_marker(state: GuardState, case: Case) -> Admission:
    """Quarantine a master whose process is another one than its marker says."""
    _quarantine(state, case, "it was restarted, or is another server now")
    _write_doubt(state, case)
    return admission(state, case)


# --- clocks -------------------------------------------------------------------------------------------------


def dismiss_leap(state: GuardState, case: Case) -> None:
    """Ignore the jump: our own clock stood still."""
    assert case.master.leap is not None
    case.master.leap = case.master.leap._replace(judged=True)


def quarantine_jump(state: GuardState, case: Case) -> None:
    """Quarantine a master whose clock was set forward: its keys expire too soon."""
    leap = case.master.leap
    assert leap is not None
    case.master.leap = leap._replace(judged=True)
    until_ns = case.report.came_ns + state.quarantine_ns
    case.master.quarantine_until(until_ns, leap.described(), (leap,))


def quarantine_jump_for_all(state: GuardState, case: Case) -> Admission:
    """Quarantine the master, and write a new marker, so that all clients do."""
    quarantine_jump(state, case)
    _write_doubt(state, case)
    return admission(state, case)


# --- what they share ----------------------------------------------------------------------------------------


def _seen(case: Case) -> Marker:
    assert case.seen is not None
    return case.seen


def _quarantine(state: GuardState, case: Case, why: str) -> None:
    report = case.report
    case.master.quarantine_until(report.came_ns + state.quarantine_ns, why, (report.run_id, report.marker))


def _write_doubt(state: GuardState, case: Case) -> None:
    """Write a new marker, so that all clients quarantine this master."""
    report = case.report
    marker = replace(_seen(case), run_id=report.run_id, since=report.server_us, wall=state.wall(), new=False)
    case.master.write_marker(marker, report)


def admission(state: GuardState, case: Case) -> Admission:
    """Admit the master, unless it is quarantined or a marker is due."""
    master, now_ns = case.master, case.report.came_ns
    cause = None
    left_ns = master.until_ns - now_ns
    if left_ns > 0:
        cause = MasterQuarantined(f"kept out for {left_ns / SECOND:.1f} s more: {master.why}")
    if master.write is not None:
        pause_ns = min(SECOND, SECOND_LOOK_NS << min(master.writes, 8)) if master.writes else 0
        master.writes += 1
        return Admission(False, pause_ns, cause)
    master.writes = 0
    if cause is not None:
        return Admission(False, left_ns, cause)
    master.why = ""
    return Admission(True)
