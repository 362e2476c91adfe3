"""The action for a master that forgot locks some time ago: it stays out for the rest of that time (G4, G5)."""

from __future__ import annotations

from dataclasses import replace

from redlatch.errors import MasterQuarantined
from redlatch.guard.actions import ASK_OTHERS_NS, SETTLE_NS, Admission, accept_marker, seen_marker
from redlatch.guard.evidence import Case
from redlatch.guard.state import GuardState
from redlatch.votes.units import SECOND


def quarantine_rest(state: GuardState, case: Case) -> Admission:
    master, marker, report = case.master, seen_marker(case), case.report
    _update_quarantine(state, case)
    over = master.until_ns <= report.came_ns
    master.unheard = not (marker.sure or (over and state.heard(master, _first_seen_ns(case))))
    if over and master.unheard:
        return _wait_for_word(state, case)
    if not (over or marker.sure) and state.may_be_sure():
        return _make_sure(state, case)
    return accept_marker(state, case)


def _update_quarantine(state: GuardState, case: Case) -> None:
    # Two clocks measure the time since a client saw that the master forgot (G4), the master's and ours. The smaller
    # result counts: one of them may have been set forward, but hardly both by as much.
    master, marker, report = case.master, seen_marker(case), case.report
    out_ms = marker.out if marker.sure and marker.out else max(marker.out, state.longest_ms)
    forgot = *marker.origin(), marker.sure, out_ms
    written_ns = report.came_ns - 1000 * max(0, min(report.server_us - marker.since, state.wall_us() - marker.wall))
    if master.quarantine == forgot:
        return
    until_ns = written_ns + state.out_ns(out_ms)
    # A shorter time counts if it concerns the known loss, or a later one.
    same = master.quarantine[:2] == forgot[:2] or marker.since > master.found_us
    if until_ns > master.until_ns or (same and marker.sure and marker.out):
        master.until_ns = until_ns
        master.why = master.why or "it may have forgotten locks"
    master.quarantine, master.found_us = forgot, max(master.found_us, marker.since)
    if marker.sure or not state.may_be_sure():
        master.settles_ns = 0


def _first_seen_ns(case: Case) -> int:
    master, marker = case.master, seen_marker(case)
    if master.unsure is None or master.unsure[0] != marker.origin():
        master.unsure = marker.origin(), case.report.came_ns
    return master.unsure[1]


def _wait_for_word(state: GuardState, case: Case) -> Admission:
    # The others may know a longer ttl (G5).
    state.note_marker(case.master, seen_marker(case), case.report)
    since_ns = case.report.came_ns - _first_seen_ns(case)
    cause = MasterQuarantined(
        "it may have forgotten locks, and too few other masters can be asked for how long these live"
    )
    wait_ns = min(SECOND, max(ASK_OTHERS_NS, since_ns))
    return Admission(False, wait_ns, cause, asks_others=True, settled=since_ns > SETTLE_NS)


def _make_sure(state: GuardState, case: Case) -> Admission:
    # With enough answers, the longest ttl in use stands in the marker (G4).
    master, marker, report = case.master, seen_marker(case), case.report
    found_ns = _first_seen_ns(case)
    horizon = state.horizon_for(master, found_ns, report.came_ns)
    # The marker counts from its writing, the horizon from when this client saw it.
    since_ms = -(-(report.server_us - marker.since) // 1000)
    if horizon is not None and 0 <= since_ms < max(marker.out, state.longest_ms) - horizon:
        sure = replace(marker, out=horizon + since_ms, sure=True, horizon=max(marker.horizon, horizon))
        # One write does both: a sure marker must have the longest ttl.
        master.write_marker(state.raised(master, sure, report.came_ns), report)
        return accept_marker(state, case)
    wait_ns = max(ASK_OTHERS_NS, report.came_ns - found_ns)
    rest = accept_marker(state, case)
    if horizon is None and rest.cause is not None:
        why = f"{master.why}, and too few other masters remember how long locks live, so it is for max_ttl"
        rest = rest._replace(cause=MasterQuarantined.kept_out(master.until_ns, why, report.came_ns))
    return rest._replace(wait_ns=min(wait_ns, rest.wait_ns), asks_others=horizon is None)
