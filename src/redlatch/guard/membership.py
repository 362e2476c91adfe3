"""Check that the clients of these masters agree on the list of masters and on the guard's options.

Quorums of two lists need not share a master, so two clients with different lists could hold one lock.
"""

from __future__ import annotations

from redlatch.guard.marker import LEFT, PENDING, Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.state import GuardState
from redlatch.votes.redaction import shown

CURE = "all clients must have the same list, or another prefix; for a new list see `redlatch masters move`"


def disagreement(state: GuardState, master: GuardedMaster, marker: Marker) -> str:
    return _other_options(state, master, marker) or _other_list(state, master, marker)


def _other_options(state: GuardState, master: GuardedMaster, marker: Marker) -> str:
    mine, settings = state.address(master), state.settings
    others = {"trust_persistence": marker.trusted, "strict": marker.strict}
    for option, value in others.items():
        if value != getattr(settings, option):
            return (
                f"{mine} is used with {option}={value} by others: all clients must give the same "
                f"guard{how_to_change(state)}"
            )
    # Each client of a single master decides about its own leases only.
    if marker.synced != state.synced and len(state.masters) > 1:
        with_it = "with" if marker.synced else "without"
        return f"{mine} is used {with_it} synced by others: all clients must give the same{how_to_change(state)}"
    return ""


def _other_list(state: GuardState, master: GuardedMaster, marker: Marker) -> str:
    mine = state.address(master)
    if marker.stage == PENDING:
        return f"{mine} is to join other masters ({marker.shown_masters()}) by a handover"
    if marker.stage == LEFT and marker.master != mine and mine not in marker.masters:
        return f"{mine} was one of other masters ({marker.shown_masters()})"
    if len(marker.masters) != len(state.addresses):
        return (
            f"{mine} is one of {len(marker.masters)} masters for {marker.shown_owner()} ({marker.shown_masters()}), "
            f"and of {len(state.addresses)} for {_me(state)}: {CURE}"
        )
    for other in state.others(master):
        theirs = other.marker
        if theirs is None or (theirs.masters == marker.masters and theirs.master != marker.master):
            continue
        return (
            f"{marker.shown_owner()} has {mine} as {marker.shown_master()} of {marker.shown_masters()}, and "
            f"{theirs.shown_owner()} has {state.address(other)} as {theirs.shown_master()} of "
            f"{theirs.shown_masters()}: {CURE}"
        )
    return ""


def stranger(state: GuardState, master: GuardedMaster) -> str:
    # Markers that spell the addresses in another way exclude no master.
    mine = state.address(master)
    if master.marker is not None:
        return ""
    for other in state.masters:
        marker = other.marker
        if marker is None or marker.master != state.address(other) or mine in marker.masters:
            continue
        return (
            f"{mine} is not one of the masters of {marker.shown_owner()} ({marker.shown_masters()}), but of those of "
            f"{_me(state)}: {CURE}"
        )
    return ""


def _me(state: GuardState) -> str:
    return shown(state.owner) or "this client"


def how_to_change(state: GuardState) -> str:
    key = state.key.decode(errors="replace").replace("\0", "\\x00")
    return f'; to change that, stop all clients, and on each master: DEL "{key}"'
