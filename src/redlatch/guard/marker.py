"""Markers: what a client writes on each master, so that every client sees when the master forgets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from redlatch.votes.said import LONGEST, shown

# The marker's key, behind the client's prefix. A lock's name is never empty, so no lock has this key.
MARKER = b"\0guard"

# A marker expires when no client has asked for it for this time, or for twice the longest ttl if that is longer.
KEPT_MS = 3_600_000


@dataclass(frozen=True)
class Marker:
    """What is written on a master, as JSON.

    Args:
        run_id: names the server process and the history of its keys. A replica takes over the history of its master.
        since: when the marker was written, by the server's clock, in microseconds since 1970.
        wall: the same moment by the writing client's clock.
        new: whether the master had forgotten nothing at that time.
        max_ttl: milliseconds.
        trusted: whether a restarted master counts as having kept every key.
        master: its address, as the writing client knows it.
        masters: the addresses of all masters.
    """

    run_id: str
    since: int
    wall: int
    new: bool
    max_ttl: int
    trusted: bool
    master: str
    masters: tuple[str, ...]

    def text(self) -> bytes:
        """Return the text as it is written."""
        return json.dumps({"redlatch": 1} | vars(self), sort_keys=True, separators=(",", ":")).encode()

    def shown_master(self) -> str:
        """Return the master's address in printable form: any client may have written the marker."""
        return shown(self.master)

    def shown_masters(self) -> str:
        """Return the addresses of all masters in printable form."""
        return shown(", ".join(self.masters), 2 * LONGEST)

    def origin(self) -> tuple[str, int]:
        """Return the server process that the marker was first written on, and when; another marker differs in it."""
        return self.run_id.partition(" ")[0], self.since

    @classmethod
    def read(cls, text: bytes | None) -> Marker | None:
        """Return the marker that a text stands for; None if there is no text.

        Raises:
            ValueError, TypeError, RecursionError: the text is no marker of ours.
        """
        if text is None:
            return None
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("redlatch", None) != 1:
            raise ValueError("it is of another version")
        if {name: type(value) for name, value in fields.items()} != _FIELDS:
            raise ValueError("it has other fields")
        if not all([0 <= fields[name] < 1 << 62 for name in ("since", "wall", "max_ttl")]):
            raise ValueError("marker fields out of range")
        marker = cls(**fields | {"masters": tuple(map(str, fields["masters"]))})
        if marker.text() != text:  # a pulse compares the text
            raise ValueError("it is written in another way")
        return marker


_FIELDS = {
    **{"run_id": str, "since": int, "wall": int, "new": bool, "max_ttl": int, "trusted": bool},
    **{"master": str, "masters": list},
}


class MarkerWrite(NamedTuple):
    """A marker that the next handshake writes, if the master still has the marker that was read before.

    Args:
        old: the text that was read; empty if there was none.
        new: the text to write.
        made_us: when this was decided, by the master's clock. The master does not write the marker long after that,
            since more may have happened meanwhile (see `votes.scripts.MARK`).
    """

    old: bytes
    new: bytes
    made_us: int
