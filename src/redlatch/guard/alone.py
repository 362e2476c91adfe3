"""The actions for a single master that may have forgotten locks (R1): it is used on, and its clients learn of it.

A quarantine would bind only clients that knew the master before. One that starts afterwards is served at once, so a
quarantine would cost an outage and exclude no second holder.

`Admission.forgot` has the client's driver put all leases in doubt that stand on earlier connections (R2). A lease that
was asked for later stands on a vote that came after the marker was read. Each decision that finds the master forgetful
may say so again: the same leases are in doubt then.
"""

from __future__ import annotations

from dataclasses import replace

from redlatch.guard.actions import Admission, accept_marker, admission, dismiss_leap
from redlatch.guard.evidence import Case
from redlatch.guard.state import GuardState


def mark_again(state: GuardState, case: Case) -> Admission:
    """Mark a master that may have forgotten locks as new, and put the locks of this client in doubt."""
    master, report = case.master, case.report
    marker = state.new_marker(master, report)
    if case.seen is not None:
        horizon = max(marker.horizon, case.seen.horizon)
        marker = replace(marker, horizon=horizon, previous=case.seen.previous, attempt=case.seen.attempt)
    master.write_marker(marker, report)
    return admission(state, case)._replace(forgot=True)


def accept_new_marker(state: GuardState, case: Case) -> Admission:
    """Accept the marker of another client that saw the master forget, and put the locks of this client in doubt."""
    return accept_marker(state, case)._replace(forgot=True)


def doubt_after_jump(state: GuardState, case: Case) -> Admission:
    """Put the locks of this client in doubt after the master's clock was set forward: its keys expire too soon."""
    dismiss_leap(state, case)
    return Admission(False, forgot=True)
