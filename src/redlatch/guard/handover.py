"""Handover: clients move from one list of masters to another, without two holders of a lock (M1 to M5).

A mover (see `operate.mover`) takes these steps:

  1. It marks each new master as *pending*. No client may vote there.
  2. It marks each old master as *left* for the new ones, the first one before the others. From then on no vote of an
     old master counts, as soon as a client looks: at its next pulse, so within a second of use.
  3. It waits until every lock that stands on old votes has expired: for the longest ttl in use, if N - q + 1 masters
     that have forgotten nothing know theirs, otherwise for the longest ttl allowed. Then it reads all old masters
     again. If the marker of one has changed, it begins again with the second step.
  4. It marks each new master as *final*.

A master in both lists is left until it is final. All markers of a handover have its number. Any client of the new list
may do the last step for a master, once another is final. A master that has forgotten that it was left is marked again
by a client of the old list; this marker is unsure, and so is the final one.

A client of the old list that has seen one left master acquires no more locks there, but still releases those that it
holds. With `Client(old, next=new)` it goes over when one of the new masters is final.
`tests/model/handover.pml` checks these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import FINAL, LEFT, PENDING, Marker, shown_list
from redlatch.votes.redaction import shown

# A hundred years.
LEFT_KEPT_MS = 3_155_760_000_000

# For a handover that was interrupted.
PENDING_KEPT_MS = 86_400_000


class Successor(NamedTuple):
    """The list that a client changes to after a handover."""

    masters: list[Any]
    guard: Callable[[Callable[[int, int], None]], Any]
    key: bytes
    previous: tuple[str, ...]
    names: tuple[str, ...]


def names_of(addresses: tuple[str, ...]) -> tuple[str, ...]:
    # The order in which markers have them.
    return tuple(sorted(addresses))


def is_awaited(marker: Marker, mine: tuple[str, ...]) -> bool:
    return (marker.stage == PENDING and marker.masters == mine) or (marker.stage == LEFT and marker.successors == mine)


def is_left(marker: Marker, mine: tuple[str, ...]) -> bool:
    return (marker.stage == LEFT and marker.successors != mine) or (marker.stage == FINAL and marker.previous == mine)


def has_moved(marker: Marker | None, previous: tuple[str, ...], masters: tuple[str, ...]) -> bool:
    return marker is not None and (marker.stage, marker.previous, marker.masters) == (FINAL, previous, masters)


def pending_marker(old: Marker, report: HandshakeReport, master: str, masters: tuple[str, ...], number: int) -> Marker:
    """Return the marker of a new master, with the options of the old list."""
    made = replace(old, run_id=report.run_id, since=report.server_us, out=0, sure=True, attempt=number, successors=())
    return replace(made, stage=PENDING, master=master, masters=names_of(masters), previous=old.masters)


def left_marker(old: Marker, report: HandshakeReport, successors: tuple[str, ...], number: int) -> Marker:
    """Return the marker of an old master. It keeps the other fields, which show later whether the master forgets."""
    if old.run_id != report.run_id:
        old = forgetful_copy(old, report, old.master, old.wall)
    return replace(old, stage=LEFT, attempt=number, successors=names_of(successors))


def forgetful_copy(marker: Marker, report: HandshakeReport, master: str, wall_us: int) -> Marker:
    """Return a marker for a master that may have forgotten its own. It stays unsure when it becomes final."""
    made = replace(marker, run_id=report.run_id, since=report.server_us, wall=wall_us)
    return replace(made, master=master, out=marker.longest, sure=False)


def final_marker(marker: Marker, master: str) -> Marker:
    if marker.stage == PENDING:
        return replace(marker, stage=FINAL)
    lists = {"masters": marker.successors, "previous": marker.masters, "successors": ()}
    return replace(marker, stage=FINAL, master=master, **lists)  # type: ignore[arg-type]


def why_left(address: str, marker: Marker) -> str:
    new = marker.successors if marker.stage == LEFT else marker.masters
    return (
        f"{shown(address)} was left for {shown_list(new)}: give this client those masters, or before the next handover "
        "both lists, as Client(old, next=new)"
    )


def why_awaited(address: str, marker: Marker) -> str:
    old = marker.previous if marker.stage == PENDING else marker.masters
    return (
        f"{shown(address)} waits for the handover from {shown_list(old)}; if that has stopped, run `redlatch masters "
        "move` once more"
    )
