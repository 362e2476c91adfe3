"""Derive the states of a master's marker, process and clock from a report."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag, auto
from typing import NamedTuple

from redlatch.guard.clock import ClockState, judge_leap
from redlatch.guard.founding import is_in_use, read_quietly
from redlatch.guard.handover import is_awaited, is_left
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import FINAL, LEFT, OF_FOUNDING, PREPARED, Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.membership import disagreement, how_to_change, stranger
from redlatch.guard.state import GuardState
from redlatch.votes.redaction import shown
from redlatch.votes.units import MILLISECOND, SECOND

# Another client may be writing the marker that only this master lacks. Also the first pause after a failed write; it
# doubles each time, up to a second.
SECOND_LOOK_NS = 200 * MILLISECOND

# A client relies for this time on one master's marker that a handover is under way.
AWAITED_NS = 2 * SECOND


class MarkerState(Flag):
    # The rows of `admission` name the states that have no comment here.

    # Something else decides.
    UNJUDGED = auto()
    UNREADABLE = auto()
    CONTRARY = auto()
    LEFT = auto()
    # It will join the list by a handover, when another one has joined.
    AWAITED = auto()
    # Another one has joined, so it joins now.
    JOINING = auto()
    # The master has forgotten nothing since it was written.
    INTACT = auto()
    # The master may have forgotten locks when it was written.
    FORGETFUL = auto()
    OLDER = auto()

    # From here on the master has no final marker.

    # No other master has one so far, but some are still being dialled; or it has that of another list.
    UNDECIDED = auto()
    ALL_NEW = auto()
    PREPARED = auto()
    MAYBE_NEW = auto()
    JUST_MISSED = auto()
    # Others have theirs, or this client knew the marker.
    LOST = auto()

    PRESENT = INTACT | FORGETFUL | OLDER
    MISSING = UNDECIDED | ALL_NEW | PREPARED | MAYBE_NEW | JUST_MISSED | LOST
    MOVED = LEFT | AWAITED | JOINING
    ANY = UNJUDGED | UNREADABLE | CONTRARY | PRESENT | MISSING | MOVED


class ProcessState(Flag):
    UNJUDGED = auto()
    SAME = auto()
    # All keys are kept, under another name of the process or of its history.
    KEPT_MEMORY = auto()
    RESTARTED = auto()
    # There is no append-only file, though trust_persistence was given.
    UNPERSISTED = auto()

    REMEMBERS = SAME | KEPT_MEMORY
    ANY = UNJUDGED | SAME | KEPT_MEMORY | RESTARTED | UNPERSISTED


class Case(NamedTuple):
    """One master's report, and the states that it shows; `refusal` says why the master cannot be used."""

    master: GuardedMaster
    report: HandshakeReport
    seen: Marker | None = None
    refusal: str = ""
    reports: tuple[HandshakeReport, ...] = ()
    marker: MarkerState = MarkerState.UNJUDGED
    process: ProcessState = ProcessState.UNJUDGED
    clock: ClockState = ClockState.UNJUDGED


def examine(state: GuardState, index: int, report: HandshakeReport, others: list[HandshakeReport | None]) -> Case:
    """Return the case of a report, and record the readings of the clock and the marker."""
    master = state.masters[index]
    try:
        seen = Marker.read(report.marker)
    except (ValueError, TypeError, RecursionError) as error:
        refusal = f"{state.address(master)} has a marker that is not ours ({shown(error)}){how_to_change(state)}"
        return Case(master, report, refusal=refusal, marker=MarkerState.UNREADABLE)
    case = Case(master, report, seen)
    if master.note_clock(report):
        return case._replace(clock=ClockState.STANDS_STILL)
    reached = [other for other in others if other is not None]
    moved = handover_state(state, master, seen, report, reached)
    if moved is not MarkerState.UNJUDGED:
        return case._replace(marker=moved)
    if refusal := _refusal(state, master, seen):
        another = seen is not None and seen.stage == FINAL and seen.masters != state.names
        # No master with another marker is known so far.
        alone = all([marker == seen for marker in final_markers(state, reached)])
        undecided = another and alone and max(1, len(others)) < len(state.addresses)
        return case._replace(refusal=refusal, marker=MarkerState.UNDECIDED if undecided else MarkerState.CONTRARY)
    if seen is not None and seen.stage not in OF_FOUNDING:
        state.note_limits(master, seen, report.came_ns)
    else:
        return case._replace(marker=missing_marker(state, master, report, others), reports=tuple(reached))
    master.missed_ns = 0
    return case._replace(
        marker=present_marker(state, master, seen, report),
        process=process_of(state, seen, report),
        clock=clock_of(state, master, seen, report),
    )


def _refusal(state: GuardState, master: GuardedMaster, seen: Marker | None) -> str:
    refusal = stranger(state, master) if seen is None else disagreement(state, master, seen)
    master.contrary = refusal if seen is not None else ""
    if refusal or not (seen is None or seen.stage in OF_FOUNDING):
        return refusal
    # A client that agrees with no marker writes none: it may be the one that is wrong.
    contrary = [other.contrary for other in state.masters if other.contrary]
    return contrary[0] if contrary and state.known_marker() is None else ""


def handover_state(
    state: GuardState,
    master: GuardedMaster,
    seen: Marker | None,
    report: HandshakeReport,
    reached: list[HandshakeReport],
) -> MarkerState:
    if is_outdated(state, seen, final_markers(state, reached)):
        return _outdated_marker(state, seen, report, reached)
    if seen is not None and is_awaited(seen, state.names):
        state.awaited = seen, report.came_ns
    if state.awaited is not None:
        awaited, at_ns = state.awaited
        if report.came_ns - at_ns < AWAITED_NS and (seen is None or seen is awaited):
            return _awaited_marker(state, master, awaited, seen, report, reached)
    return _left_marker(state, master, seen)


def _outdated_marker(
    state: GuardState, seen: Marker | None, report: HandshakeReport, reached: list[HandshakeReport]
) -> MarkerState:
    # A connection may have waited for a decision since before the end of the handover.
    before = [master.marker for master in state.masters if master.seen_ns <= report.sent_ns]
    before += [read_quietly(other) for other in reached if other.came_ns <= report.sent_ns]
    return MarkerState.LOST if is_outdated(state, seen, before) else MarkerState.JUST_MISSED


def _awaited_marker(
    state: GuardState,
    master: GuardedMaster,
    awaited: Marker,
    seen: Marker | None,
    report: HandshakeReport,
    reached: list[HandshakeReport],
) -> MarkerState:
    if not has_ended(state, awaited.attempt, state.names, reached):
        return MarkerState.AWAITED
    if seen is None:
        return MarkerState.UNJUDGED
    kept = seen.run_id == report.run_id and not master.knew_marker(report.came_ns)
    return MarkerState.JOINING if kept else MarkerState.LOST


def _left_marker(state: GuardState, master: GuardedMaster, seen: Marker | None) -> MarkerState:
    if seen is not None and is_left(seen, state.names):
        if seen.stage == LEFT and disagreement(state, master, seen):
            return MarkerState.UNJUDGED
        state.left = seen
    if state.left is None:
        return MarkerState.UNJUDGED
    if seen is not None and seen.stage == FINAL and seen.attempt > state.left.attempt:
        # Another handover has come back to this list.
        state.left = None
        return MarkerState.UNJUDGED
    return MarkerState.LEFT


def missing_marker(
    state: GuardState, master: GuardedMaster, report: HandshakeReport, others: list[HandshakeReport | None]
) -> MarkerState:
    now_ns = report.came_ns
    reached = [other for other in others if other is not None]
    if not any([other.knew_marker(now_ns) for other in state.masters] + [is_in_use(other) for other in reached]):
        if len(others) < len(state.addresses):
            return MarkerState.UNDECIDED
        return MarkerState.MAYBE_NEW if None in others else MarkerState.ALL_NEW
    known = master.knew_marker(now_ns)
    prepared = read_quietly(report)
    if not known and prepared is not None and prepared.stage == PREPARED:
        if has_ended(state, prepared.attempt, prepared.masters, reached):
            return MarkerState.PREPARED
    missed_ns = master.missed_ns or now_ns
    # A second look comes after half of its pause at the earliest.
    if not known and now_ns - missed_ns < SECOND_LOOK_NS // 2:
        return MarkerState.JUST_MISSED
    return MarkerState.LOST


def has_ended(state: GuardState, number: int, masters: tuple[str, ...], reached: list[HandshakeReport]) -> bool:
    return any([(marker.attempt, marker.masters) == (number, masters) for marker in final_markers(state, reached)])


def final_markers(state: GuardState, reached: list[HandshakeReport]) -> list[Marker]:
    markers = [master.marker for master in state.masters] + [read_quietly(report) for report in reached]
    return [marker for marker in markers if marker is not None and marker.stage == FINAL]


def is_outdated(state: GuardState, seen: Marker | None, others: Sequence[Marker | None]) -> bool:
    """Return True if a final marker of this list has replaced the marker's list.

    Then the master has forgotten the handover, and a client of the old list has marked it again.
    """
    if seen is None or seen.stage != FINAL or seen.masters == state.names:
        return False
    mine = [marker for marker in others if marker and marker.stage == FINAL and marker.masters == state.names]
    return any([marker.previous == seen.masters and marker.attempt > seen.attempt for marker in mine])


def present_marker(state: GuardState, master: GuardedMaster, marker: Marker, report: HandshakeReport) -> MarkerState:
    known = master.marker
    if known is not None and master.knew_marker(report.came_ns) and _replaced(state, known, marker):
        older = marker.since < known.since and marker.wall < known.wall and marker.identity() != master.written
        return MarkerState.OLDER if older or marker.origin() in master.earlier else MarkerState.FORGETFUL
    return MarkerState.FORGETFUL if marker.out else MarkerState.INTACT


def _replaced(state: GuardState, known: Marker, marker: Marker) -> bool:
    # A process that is trusted, or was promoted with all votes, takes over its predecessor's marker.
    if marker.previous and marker.attempt > known.attempt:
        # Another handover has come back to this list, after all earlier locks had expired.
        return False
    if state.settings.trust_persistence or state.synced:
        return known.since != marker.since
    return known.origin() != marker.origin()


def process_of(state: GuardState, marker: Marker, report: HandshakeReport) -> ProcessState:
    trusted = state.settings.trust_persistence
    if trusted and not report.persists:
        return ProcessState.UNPERSISTED
    if marker.run_id == report.run_id:
        return ProcessState.SAME
    # A replica that was promoted may lag behind its master, whatever it persists, unless it had each vote first.
    promoted = state.synced and report.promoted
    kept = (trusted and not report.promoted) or promoted or _only_renamed(marker, report)
    return ProcessState.KEPT_MEMORY if kept else ProcessState.RESTARTED


def _only_renamed(marker: Marker, report: HandshakeReport) -> bool:
    # A master takes a new name for the history of its keys with its first replica.
    now = report.run_id.partition(" ")[0]
    return marker.origin()[0] == now and not report.promoted and marker.longest <= report.backlog_ms


def clock_of(state: GuardState, master: GuardedMaster, marker: Marker, report: HandshakeReport) -> ClockState:
    leap = master.leap
    if leap is None or leap.judged or (leap.doubted and leap.doubted != marker.identity()):
        return ClockState.STEADY
    if leap.doubted:
        return ClockState.FORWARD
    others = [other.leap for other in state.others(master) if other.offset.at_ns > leap.at_ns]
    return judge_leap(leap, others, len(state.addresses), report.came_ns)
