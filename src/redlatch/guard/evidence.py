"""Read a handshake's report: the state of the master's marker, of its process and of its clock."""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple

from redlatch.guard.clock import ClockState, judge_leap
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.membership import disagreement, how_to_change, stranger
from redlatch.guard.state import GuardState
from redlatch.votes.said import shown
from redlatch.votes.units import MILLISECOND, SECOND

# How long a client waits before it looks again for a marker that is missing unlike others: another client may be
# writing it. It also waits for this time after a write that did not succeed, then twice as long, up to a second.
SECOND_LOOK_NS = 200 * MILLISECOND

# Reports that are further apart do not show that all masters are new: much may have happened in between.
SAME_TIME_NS = SECOND


class MarkerState(Flag):
    """What is known of a master's marker."""

    UNJUDGED = auto()  # something else decides
    UNREADABLE = auto()  # the key has another value
    CONTRARY = auto()  # it contradicts our list or options, or the other markers
    INTACT = auto()  # since it was written, the master has forgotten nothing
    FORGETFUL = auto()  # when it was written, the master may have forgotten locks

    # The master has no marker.
    UNDECIDED = auto()  # no other master has one so far, but some are still being dialled
    OUTDATED = auto()  # no other master had one, but the reports are too far apart in time
    ALL_NEW = auto()  # no other master has one, and all were reached
    MAYBE_NEW = auto()  # no other master has one, but some were not reached
    JUST_MISSED = auto()  # others have theirs; another client may be writing this one
    LOST = auto()  # others have theirs, or this client knew the marker

    PRESENT = INTACT | FORGETFUL
    ANY = UNJUDGED | UNREADABLE | CONTRARY | PRESENT | UNDECIDED | OUTDATED | ALL_NEW | MAYBE_NEW | JUST_MISSED | LOST


class ProcessState(Flag):
    """What is known of a master's process, compared with the process that its marker names."""

    UNJUDGED = auto()  # something else decides
    SAME = auto()
    KEPT_MEMORY = auto()  # another process, or another history of keys, which has kept all keys
    RESTARTED = auto()  # another process, which may have forgotten keys
    UNPERSISTED = auto()  # trust_persistence was given, but the process has no append-only file

    ANY = UNJUDGED | SAME | KEPT_MEMORY | RESTARTED | UNPERSISTED


class Case(NamedTuple):
    """One master's report, and what it says.

    Args:
        seen: the marker that was read, or None.
        refusal: why the master cannot be used, if its marker says so.
    """

    master: GuardedMaster
    report: HandshakeReport
    seen: Marker | None = None
    refusal: str = ""
    marker: MarkerState = MarkerState.UNJUDGED
    process: ProcessState = ProcessState.UNJUDGED
    clock: ClockState = ClockState.UNJUDGED


def examine(state: GuardState, index: int, report: HandshakeReport, others: list[HandshakeReport | None]) -> Case:
    """Note what a report shows of a master's clock, and return its case; the arguments are those of `decide`."""
    master = state.masters[index]
    try:
        seen = Marker.read(report.marker)
    except (ValueError, TypeError, RecursionError) as error:
        refusal = f"{state.address(master)} has a marker that is not ours ({shown(error)}){how_to_change(state)}"
        return Case(master, report, None, refusal, MarkerState.UNREADABLE)
    case = Case(master, report, seen)
    if master.note_clock(report):
        return case._replace(clock=ClockState.STANDS_STILL)
    refusal = stranger(state, master) if seen is None else disagreement(state, master, seen)
    if refusal:
        return case._replace(refusal=refusal, marker=MarkerState.CONTRARY)
    if seen is None:
        return case._replace(marker=missing_marker(state, master, report, others))
    master.missed_ns = 0
    return case._replace(
        marker=present_marker(state, master, seen, report),
        process=process_of(state, seen, report),
        clock=clock_of(state, master, report),
    )


def missing_marker(
    state: GuardState, master: GuardedMaster, report: HandshakeReport, others: list[HandshakeReport | None]
) -> MarkerState:
    """Tell what it means that a master has no marker."""
    now_ns = report.came_ns
    expired_ns = state.expired_before(now_ns)
    reached = [other for other in others if other is not None]
    if state.marker_seen_after(expired_ns) is None and not any([other.marker for other in reached]):
        if len(others) < len(state.addresses):
            return MarkerState.UNDECIDED
        times = [other.came_ns for other in reached]
        if max(times) - min(times) > SAME_TIME_NS:
            return MarkerState.OUTDATED
        return MarkerState.MAYBE_NEW if None in others else MarkerState.ALL_NEW
    known = master.marker is not None and master.seen_ns > expired_ns
    missed_ns = master.missed_ns or now_ns
    # A second look comes after a half to the whole of its pause.
    if not known and now_ns - missed_ns < SECOND_LOOK_NS // 2:
        return MarkerState.JUST_MISSED
    return MarkerState.LOST


def present_marker(state: GuardState, master: GuardedMaster, marker: Marker, report: HandshakeReport) -> MarkerState:
    """Return whether the master may have forgotten locks when its marker was written."""
    trusted = state.settings.trust_persistence
    if not marker.new or (_was_replaced(state, master, marker, report) and not trusted):
        return MarkerState.FORGETFUL
    return MarkerState.INTACT


def _was_replaced(state: GuardState, master: GuardedMaster, marker: Marker, report: HandshakeReport) -> bool:
    """Return whether the master had another marker before, which cannot have expired by itself."""
    known, recently = master.marker, master.seen_ns > state.expired_before(report.came_ns)
    return known is not None and recently and known.origin() != marker.origin()


def process_of(state: GuardState, marker: Marker, report: HandshakeReport) -> ProcessState:
    """Return whether the master's process remembers what the marker's process knew."""
    trusted = state.settings.trust_persistence
    if trusted and not report.persists:
        return ProcessState.UNPERSISTED
    if marker.run_id == report.run_id:
        return ProcessState.SAME
    return ProcessState.KEPT_MEMORY if trusted or _only_renamed(marker, report) else ProcessState.RESTARTED


def _only_renamed(marker: Marker, report: HandshakeReport) -> bool:
    """Return whether only the history of keys has a new name: a master takes one with its first replica."""
    now = report.run_id.partition(" ")[0]
    return marker.origin()[0] == now and not report.promoted and marker.max_ttl <= report.backlog_ms


def clock_of(state: GuardState, master: GuardedMaster, report: HandshakeReport) -> ClockState:
    """Return whether the master's clock has jumped forward, as far as that is not decided yet."""
    leap = master.leap
    if leap is None or leap.judged:
        return ClockState.STEADY
    others = [other.leap for other in state.others(master) if other.offset.at_ns > leap.at_ns]
    return judge_leap(leap, others, len(state.addresses), report.came_ns)
