"""The actions of the rows in the table of `admission`.

An action returns the admission, or None to let the connection wait. `quarantine_jump` and `dismiss_leap` do not decide:
the rows below theirs do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from redlatch.errors import MasterQuarantined, MasterRefused
from redlatch.guard.evidence import SECOND_LOOK_NS, Case
from redlatch.guard.founding import DRAFT_KEPT_MS, Step
from redlatch.guard.handover import LEFT_KEPT_MS, final_marker, forgetful_copy, why_awaited, why_left
from redlatch.guard.marker import FINAL, LEFT, PREPARED, Marker
from redlatch.guard.state import GuardState
from redlatch.votes.units import MILLISECOND, SECOND, quorum_of

# Before another look at a clock that has jumped, while the other clocks are unknown.
LOOK_AGAIN_NS = 100 * MILLISECOND

# The first pause for the answers of the other masters. It doubles, up to a second.
ASK_OTHERS_NS = 30 * MILLISECOND

# Soon the other masters show how long a quarantine lasts; it is not reported before.
SETTLE_NS = 1200 * MILLISECOND

# All clients notice within this time that a master is back: they look once a second.
FOUND_AGAIN_NS = 1500 * MILLISECOND


class Admission(NamedTuple):
    """Decision about a connection: it may vote, or it is closed and the master is dialled again after `wait_ns`.

    Args:
        cause: why the master has no vote until then; None if that takes only a moment.
        asks_others: whether all other masters must be sent a pulse, because their horizons decide.
        settled: whether `cause` is final, so that it should be reported.
        forgot: whether the only master may have forgotten locks that were granted on earlier connections.
        votes: if False, an admitted master only takes releases.
        kept: whether the master has forgotten nothing since this client last read its marker.
    """

    admitted: bool
    wait_ns: int = 0
    cause: MasterRefused | None = None
    asks_others: bool = False
    settled: bool = True
    forgot: bool = False
    votes: bool = True
    kept: bool = False


# --- actions that change nothing ----------------------------------------------------------------------------


def refuse(state: GuardState, case: Case) -> Admission:
    # A refused client makes no other call; only pulses to the others reveal that one of them has joined this list.
    return Admission(False, SECOND, MasterRefused(case.refusal), asks_others=True)


def refuse_unpersisted(state: GuardState, case: Case) -> Admission:
    refusal = (
        f"{state.address(case.master)} keeps no append-only file (aof_enabled:0), and so cannot be trusted "
        "to remember: appendonly yes is needed there, or a guard without trust_persistence"
    )
    return refuse(state, case._replace(refusal=refusal))


def look_at_clock_later(state: GuardState, case: Case) -> Admission:
    # Or it was set back by exactly the time that has passed.
    return Admission(False, SECOND, MasterQuarantined("its clock stands still"))


def look_at_clocks_again(state: GuardState, case: Case) -> Admission:
    assert case.master.leap is not None
    return Admission(False, LOOK_AGAIN_NS, MasterQuarantined(case.master.leap.described()))


def wait_for_others(state: GuardState, case: Case) -> None:
    # None keeps the connection undecided while other masters are dialled.
    return None


def wait_for_missing(state: GuardState, case: Case) -> Admission:
    # Only when all masters can be read they may be new (F1). After the longest ttl the master counts as one that has
    # forgotten, so that it does not wait indefinitely.
    master, report = case.master, case.report
    master.empty_ns = master.empty_ns or report.came_ns
    if report.came_ns - master.empty_ns < state.out_ns(state.longest_ms):
        heard = [other.offset.at_ns >= report.came_ns - SECOND for other in state.masters]
        missing = [address for address, there in zip(state.addresses, heard, strict=True) if not there]
        why = f"nobody can say whether it is new: no answer yet from {' and '.join(missing) or 'all others'}"
        return Admission(False, LOOK_AGAIN_NS, MasterQuarantined(why))
    master.why = "nobody could say whether it is new"
    master.write_marker(state.new_marker(master, report, state.longest_ms), report)
    return admission(state, case)


# --- markers ------------------------------------------------------------------------------------------------


def look_for_marker_again(state: GuardState, case: Case) -> Admission:
    case.master.missed_ns = case.master.missed_ns or case.report.came_ns
    return Admission(False, SECOND_LOOK_NS)


def found(state: GuardState, case: Case) -> Admission | None:
    master, report, founding = case.master, case.report, state.founding
    step = founding.step(master.index, report, case.reports)
    if step is Step.WAIT:
        return None
    if step is Step.WRITE_DRAFT:
        draft = state.new_marker(master, report, attempt=founding.number)
        master.write_marker(draft, report, DRAFT_KEPT_MS)
    elif step is Step.PREPARE:
        master.write_marker(replace(seen_marker(case), stage=PREPARED), report)
    elif step is Step.FINISH:
        return finish_founding(state, case)
    elif step is Step.GIVE_WAY:
        # The other client ends in a moment, or its drafts expire.
        cause = MasterQuarantined("it is new, and another client begins to use it")
        return Admission(False, LOOK_AGAIN_NS, cause, settled=False)
    return Admission(False)


def finish_founding(state: GuardState, case: Case) -> Admission:
    case.master.why = ""
    case.master.write_marker(replace(seen_marker(case), stage=FINAL), case.report)
    return Admission(False)


def replace_lost_marker(state: GuardState, case: Case) -> Admission:
    master, report = case.master, case.report
    _quarantine(state, case, "it has lost its marker, and maybe locks")
    marker = state.new_marker(master, report, state.longest_ms)
    known = master.marker or state.known_marker()
    # Other clients may name the masters by other addresses.
    if known is not None:
        mine = known.master if known is master.marker else state.unmatched_address(known) or marker.master
        marker = replace(marker, master=mine, masters=known.masters, previous=known.previous, attempt=known.attempt)
    master.write_marker(marker, report)
    return admission(state, case)


def accept_marker(state: GuardState, case: Case) -> Admission:
    # An earlier quarantine still counts.
    master, marker = case.master, seen_marker(case)
    if master.marker is None or not marker.is_raised_from(master.marker):
        master.replaced = False
    if marker.identity() == master.written:
        master.writes = 0
    state.note_marker(master, marker, case.report)
    master.heals_ns = _heals_ns(state, case)
    raised = state.raised(master, marker, case.report.came_ns)
    if raised != marker and master.write is None:
        master.write_marker(raised, case.report)
    elif state.raises_all() and case.report.came_ns - master.noted_ns < SETTLE_NS:
        # The last master waits until all had the ttl at one moment.
        return Admission(False, ASK_OTHERS_NS, asks_others=True)
    admitted = admission(state, case)
    if admitted.admitted:
        admitted = admitted._replace(kept=master.replaced)
        master.replaced = False
    return admitted


def _heals_ns(state: GuardState, case: Case) -> int:
    """Return until when locks may be held that lack the vote of a master that is back; or 0.

    Once all clients have found the master, a lock that is acquired or extended is also set here (`quorum.repair`).
    """
    master, marker, report = case.master, seen_marker(case), case.report
    if quorum_of(len(state.masters)) == len(state.masters):
        # A lock needs the votes of all.
        return 0
    back_ns = max(master.until_ns, master.jumped_until_ns)
    # A process that has kept its data may have missed commands while it was down.
    if report.up_us is not None and report.server_us - report.up_us > marker.since + 1_000_000:
        back_ns = max(back_ns, report.came_ns - 1000 * report.up_us)
    return back_ns + FOUND_AGAIN_NS + state.out_ns(marker.horizon) if back_ns else 0


def rename_marker(state: GuardState, case: Case) -> Admission:
    # The process has kept its memory.
    case.master.write_marker(replace(seen_marker(case), run_id=case.report.run_id), case.report)
    return admission(state, case)


def replace_older_marker(state: GuardState, case: Case) -> Admission:
    # The databases were swapped twice, or an older append-only file was loaded.
    _quarantine(state, case, "it has an older marker again, and maybe older locks")
    _write_doubt(state, case)
    return admission(state, case)


def replace_outlived_marker(state: GuardState, case: Case) -> Admission:
    _quarantine(state, case, "it was restarted, or is another server now")
    _write_doubt(state, case)
    return admission(state, case)


# --- handovers ----------------------------------------------------------------------------------------------


def leave(state: GuardState, case: Case) -> Admission:
    master, report, left = case.master, case.report, state.left
    assert left is not None
    if case.seen is None and left.stage == LEFT:
        copy = forgetful_copy(left, report, state.address(master), state.wall())
        master.write_marker(copy, report, LEFT_KEPT_MS)
        return Admission(False, SECOND_LOOK_NS)
    known, seen = master.marker, case.seen
    kept = known is not None and seen is not None and seen.origin() == known.origin() and seen.run_id == report.run_id
    cause = MasterRefused(why_left(state.address(master), left))
    return Admission(True, cause=cause, votes=False, kept=kept)


def await_handover(state: GuardState, case: Case) -> Admission:
    assert state.awaited is not None
    cause = MasterQuarantined(why_awaited(state.address(case.master), state.awaited[0]))
    return Admission(False, LOOK_AGAIN_NS, cause)


def join(state: GuardState, case: Case) -> Admission:
    case.master.write_marker(final_marker(seen_marker(case), state.address(case.master)), case.report)
    return Admission(False)


# --- clocks -------------------------------------------------------------------------------------------------


def dismiss_leap(state: GuardState, case: Case) -> None:
    assert case.master.leap is not None
    case.master.leap = case.master.leap._replace(judged=True)


def quarantine_jump(state: GuardState, case: Case) -> None:
    # The master's keys expire too soon.
    leap = case.master.leap
    assert leap is not None
    case.master.leap = leap._replace(judged=True)
    case.master.why = leap.described()
    case.master.jumped_until_ns = case.report.came_ns + state.out_ns(state.longest_ms)


def quarantine_jump_for_all(state: GuardState, case: Case) -> Admission:
    leap = case.master.leap
    assert leap is not None
    # Judged once the marker is replaced: this write may fail.
    case.master.leap = leap._replace(doubted=seen_marker(case).identity())
    _quarantine(state, case, leap.described())
    _write_doubt(state, case)
    return admission(state, case)


# --- a single master: it stays in use (R1) ------------------------------------------------------------------
#
# `Admission.forgot` makes the driver put all leases in doubt that stand on earlier connections (R2). Later leases stand
# on a vote that came after the marker was read, so repeating it is harmless.


def mark_again(state: GuardState, case: Case) -> Admission:
    master, report = case.master, case.report
    marker = state.new_marker(master, report)
    if case.seen is not None:
        horizon = max(marker.horizon, case.seen.horizon)
        marker = replace(marker, horizon=horizon, previous=case.seen.previous, attempt=case.seen.attempt)
    master.write_marker(marker, report)
    return admission(state, case)._replace(forgot=True)


def accept_new_marker(state: GuardState, case: Case) -> Admission:
    # Another client saw the master forget.
    return accept_marker(state, case)._replace(forgot=True)


def doubt_after_jump(state: GuardState, case: Case) -> Admission:
    dismiss_leap(state, case)
    return Admission(False, forgot=True)


# --- what they share ----------------------------------------------------------------------------------------


def seen_marker(case: Case) -> Marker:
    assert case.seen is not None
    return case.seen


def _quarantine(state: GuardState, case: Case, why: str) -> None:
    master, report = case.master, case.report
    doubt = report.run_id, None if case.seen is None else case.seen.identity()
    if master.quarantine != doubt:
        master.quarantine, master.why, master.found_us = doubt, why, report.server_us
        master.settles_ns = report.came_ns + SETTLE_NS if state.may_be_sure() else 0
        master.until_ns = report.came_ns + state.out_ns(state.longest_ms)


def _write_doubt(state: GuardState, case: Case) -> None:
    report = case.report
    marker = replace(seen_marker(case), out=state.longest_ms, sure=False)
    marker = replace(marker, run_id=report.run_id, since=report.server_us, wall=state.wall())
    case.master.write_marker(marker, report)


def admission(state: GuardState, case: Case) -> Admission:
    master, now_ns = case.master, case.report.came_ns
    cause = None
    until_ns = max(master.until_ns, master.jumped_until_ns)
    left_ns = until_ns - now_ns
    master.note_out(left_ns > 0)
    if left_ns > 0:
        cause = MasterQuarantined.kept_out(until_ns, master.why, now_ns)
    settled = master.settles_ns <= now_ns
    if master.write is not None:
        pause_ns = min(SECOND, SECOND_LOOK_NS << min(master.writes, 8)) if master.writes else 0
        master.writes += 1
        return Admission(False, pause_ns, cause, settled=settled)
    master.writes = 0
    if cause is not None:
        return Admission(False, min(left_ns, SECOND), cause, settled=settled)
    master.why = ""
    return Admission(True)
