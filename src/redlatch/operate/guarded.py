"""Check the guard's markers on masters, for `redlatch doctor`. It only reads them."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from redlatch.errors import MasterRefused
from redlatch.guard.handover import is_awaited, is_left, names_of
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import LEFT, OF_FOUNDING, PENDING, Marker, shown_list
from redlatch.guard.membership import CURE
from redlatch.locks.connecting import cure_of
from redlatch.masters.master import Master
from redlatch.operate.finding import FINE, UNSAFE, WARNING, Finding, Patient
from redlatch.operate.locks import TIMEOUT, described
from redlatch.wire.dial.connect import dial


def check_markers(patients: list[Patient], key: bytes, trusted: bool) -> Iterator[Finding]:
    markers: dict[str, Marker | None] = {}
    for patient in patients:
        if patient.error is None:
            name = patient.master.name
            try:
                markers[name] = _marker_of(patient.master, key)
            except (MasterRefused, OSError, redis.RedisError) as error:
                yield Finding(
                    UNSAFE, name, described(error), cure_of(error) or "Access rights in the docs has the rights"
                )
            except (ValueError, TypeError, RecursionError):
                text = f"it has a marker that is not ours: the guard's key {key!r} holds something else"
                yield Finding(UNSAFE, name, text, "find out who wrote it; then delete it")
    mine = names_of(tuple(patient.master.address for patient in patients))
    for name, marker in markers.items():
        if marker is not None:
            yield _of_marker(name, marker, mine, trusted)
        elif any(markers.values()):
            text = "the guard's marker is missing, but others have theirs: it may have forgotten locks, and has no vote"
            yield Finding(WARNING, name, text, "wait: it votes by itself after the longest ttl in use")
        else:
            yield Finding(FINE, name, "no client with a guard has used it lately with this prefix")


def _marker_of(master: Master, key: bytes) -> Marker | None:
    connection = dial(master, TIMEOUT, tracking=False, extension=GuardHandshake(key))
    connection.sock.close()
    return Marker.read(connection.traits.report.marker)


def _of_marker(name: str, marker: Marker, mine: tuple[str, ...], trusted: bool) -> Finding:
    if is_left(marker, mine):
        text = f"it was left for {shown_list(marker.successors if marker.stage == LEFT else marker.masters)}"
        return Finding(WARNING, name, text, "give all clients those masters")
    if is_awaited(marker, mine):
        old = marker.previous if marker.stage == PENDING else marker.masters
        text = f"it waits for the handover from {shown_list(old)}"
        return Finding(WARNING, name, text, "if that has stopped, run `redlatch masters move` once more")
    if marker.masters != mine:
        # The list also differs if a host has another name there, which is no danger.
        level = WARNING if len(marker.masters) == len(mine) else UNSAFE
        return Finding(level, name, f"{marker.shown_owner()} has it in the list {marker.shown_masters()}", CURE)
    if marker.trusted != trusted:
        text = f"{marker.shown_owner()} uses it with trust_persistence={marker.trusted}"
        return Finding(UNSAFE, name, text, "give all clients the same guard, and this command its options")
    if marker.stage in OF_FOUNDING:
        text = "its guard's marker is not final: a client was interrupted while it used new masters for the first time"
        return Finding(WARNING, name, text, "start a client, with all masters up")
    return Finding(FINE, name, f"its clients have this list of masters; the longest ttl in use is {marker.horizon} ms")
