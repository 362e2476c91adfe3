"""The actions for a single master that may have forgotten locks (R1): it stays in use.

`Admission.forgot` makes the driver put all leases in doubt that stand on earlier connections (R2). Later leases stand
on a vote that came after the marker was read, so repeating it is harmless.
"""

from __future__ import annotations

from dataclasses import replace

from redlatch.guard.actions import Admission, accept_marker, admission, dismiss_leap
from redlatch.guard.evidence import Case
from redlatch.guard.state import GuardState


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
    # The master's keys expire too soon.
    dismiss_leap(state, case)
    return Admission(False, forgot=True)
