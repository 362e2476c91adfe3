"""Markers: a key on each master by which every client notices that the master has forgotten."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import NamedTuple

from redlatch.guard.settings import LONGEST_MAX_TTL
from redlatch.votes.redaction import LONGEST, shown
from redlatch.votes.units import UNBOUNDED

# Behind the client's prefix. A lock's name is never empty, so no lock has this key.
MARKER = b"\0guard"

# Only a final marker lets a master vote. The first two stages belong to a founding, the others to a handover.
DRAFT, PREPARED, FINAL, PENDING, LEFT = STAGES = "draft", "prepared", "final", "pending", "left"
OF_FOUNDING = DRAFT, PREPARED


@dataclass(frozen=True)
class Marker:
    """The text on a master: a line of JSON, which is the marker's identity, and a line with the horizon.

    A client that uses a longer ttl raises the horizon (see `votes.scripts.PULSE`). The rest never changes: another
    identity is another marker. Times without a unit in their name are in milliseconds.

    Args:
        run_id: names the server process and the history of its keys. A replica takes over the history of its master.
        since: when the marker was written, by the server's clock, in microseconds since 1970.
        wall: the same moment by the writing client's clock.
        out: the time since then without a vote; 0 for a new master, which had nothing to forget.
        attempt: the number of the founding or of the handover that the marker belongs to; 0 if it was written later.
        sure: True if enough masters confirmed that `out` is the longest ttl in use; otherwise `out` is `longest`.
        max_ttl: the longest ttl that clients may use.
        master: its address, as the writing client knows it.
        horizon: the longest ttl that is in use on the master (G1).
        previous, successors: the masters that these replaced by a handover, and those that replace these, if LEFT.
        owner: the application or host that has written it first, for messages.
        synced: whether clients have each vote on all replicas before it counts.
        raised: the value of `max_ttl` once all masters have it here (G5); 0 if nothing is to change.
    """

    run_id: str
    since: int
    wall: int
    out: int
    attempt: int
    stage: str
    sure: bool
    max_ttl: int
    trusted: bool
    strict: bool
    master: str
    masters: tuple[str, ...]
    horizon: int
    previous: tuple[str, ...] = ()
    successors: tuple[str, ...] = ()
    owner: str = ""
    raised: int = 0
    synced: bool = False

    @property
    def longest(self) -> int:
        return max(self.max_ttl, self.raised)

    def identity(self) -> bytes:
        fields = {"redlatch": 1} | vars(self)
        del fields["horizon"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def text(self) -> bytes:
        return b"%b\n%d" % (self.identity(), self.horizon)

    def is_raised_from(self, earlier: Marker) -> bool:
        raised = replace(earlier, max_ttl=self.max_ttl, raised=self.raised, horizon=self.horizon)
        return self == raised and self.longest >= earlier.longest and self.identity() != earlier.identity()

    def shown_master(self) -> str:
        # Any client may have written the marker.
        return shown(self.master)

    def shown_owner(self) -> str:
        return shown(self.owner) or "others"

    def shown_masters(self) -> str:
        return shown_list(self.masters)

    def origin(self) -> tuple[str, int]:
        """Return the server process that the marker was first written on, and when: unique to a marker."""
        return self.run_id.partition(" ")[0], self.since

    @classmethod
    def read(cls, text: bytes | None) -> Marker | None:
        """Parse a text; ValueError, TypeError or RecursionError if it is no marker of ours."""
        if text is None:
            return None
        identity, _, horizon = text.partition(b"\n")
        fields = json.loads(identity)
        if not isinstance(fields, dict) or fields.pop("redlatch", None) != 1:
            raise ValueError("it is of another version")
        if {name: type(value) for name, value in fields.items()} != _FIELDS:
            raise ValueError("it has other fields")
        fields["horizon"] = int(horizon)
        longest = dict.fromkeys(_MICROSECONDS, UNBOUNDED - 1) | dict.fromkeys(_MILLISECONDS, 1000 * LONGEST_MAX_TTL)
        longest["attempt"] = UNBOUNDED**2
        if not all([0 <= fields[name] <= most for name, most in longest.items()]):
            raise ValueError("marker fields out of range")
        if fields["stage"] not in STAGES:
            raise ValueError("it has an unknown stage")
        marker = cls(**fields | {name: tuple(map(str, fields[name])) for name in _LISTS})
        # A pulse compares the text.
        if marker.text() != text:
            raise ValueError("it is written in another way")
        return marker


def shown_list(addresses: tuple[str, ...]) -> str:
    return shown(", ".join(addresses), 2 * LONGEST)


_FIELDS = {
    **{"run_id": str, "since": int, "wall": int, "out": int, "attempt": int, "stage": str, "sure": bool},
    **{"max_ttl": int, "raised": int, "trusted": bool, "strict": bool, "synced": bool},
    **{"master": str, "owner": str},
    **{"masters": list, "previous": list, "successors": list},
}
_LISTS = "masters", "previous", "successors"
_MICROSECONDS = "since", "wall"
_MILLISECONDS = "out", "max_ttl", "raised", "horizon"


class MarkerWrite(NamedTuple):
    """A marker that the next handshake writes, if the master still has the text `old` (empty for none).

    A write that comes much later than `made_us`, by the master's clock, is rejected: more may have happened meanwhile.
    """

    old: bytes
    new: bytes
    kept_ms: int
    made_us: int
