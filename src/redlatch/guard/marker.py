"""Markers: what a client writes on each master, so that every client sees when the master forgets."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import NamedTuple

from redlatch.guard.settings import LONGEST_MAX_TTL
from redlatch.votes.said import LONGEST, shown
from redlatch.votes.units import UNBOUNDED

# The marker's key, behind the client's prefix. A lock's name is never empty, so no lock has this key.
MARKER = b"\0guard"

# The stages of a marker. Only a final one lets a master vote. The first two belong to a founding, the others to a
# handover (see `founding` and `handover`).
DRAFT, PREPARED, FINAL, PENDING, LEFT = STAGES = "draft", "prepared", "final", "pending", "left"
OF_FOUNDING = DRAFT, PREPARED


@dataclass(frozen=True)
class Marker:
    """What is written on a master: a line of JSON, which is the marker's identity, and a line with the horizon.

    A client that uses a longer ttl raises the horizon (see `votes.scripts.PULSE`). The rest never changes: another
    identity is another marker.

    Args:
        run_id: names the server process and the history of its keys. A replica takes over the history of its master.
        since: when the marker was written, by the server's clock, in microseconds since 1970.
        wall: the same moment by the writing client's clock.
        out: for how many milliseconds since then the master has no vote; 0 for a new master, which had nothing to
            forget.
        attempt: the number of the founding or of the handover that the marker belongs to; 0 if it was written later.
        stage: one of STAGES.
        sure: whether `out` is the longest ttl that was in use on the masters, as enough of them have said. If not,
            `out` is `longest`.
        max_ttl: the longest ttl that clients may use, in milliseconds.
        trusted: whether a restarted master counts as having kept every key.
        strict: whether a single master that has forgotten locks is kept out.
        master: its address, as the writing client knows it.
        masters: the addresses of all masters.
        horizon: the longest ttl that is in use on the master, in milliseconds (G1).
        previous: the addresses of the masters that these replace, if they came by a handover.
        successors: the addresses of the masters that replace these; empty unless the stage is LEFT.
        owner: whose client has written it first, for messages: an application, or a host.
        raised: what `max_ttl` becomes when all masters have it here, in milliseconds (G5); 0 if nothing is to change.
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

    @property
    def longest(self) -> int:
        """The longest ttl that any client may use now or soon, in milliseconds."""
        return max(self.max_ttl, self.raised)

    def identity(self) -> bytes:
        """Return the first line of the text."""
        fields = {"redlatch": 1} | vars(self)
        del fields["horizon"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def text(self) -> bytes:
        """Return the text as it is written."""
        return b"%b\n%d" % (self.identity(), self.horizon)

    def is_raised_from(self, earlier: Marker) -> bool:
        """Return whether this is an earlier marker with longer ttls."""
        raised = replace(earlier, max_ttl=self.max_ttl, raised=self.raised, horizon=self.horizon)
        return self == raised and self.longest >= earlier.longest and self.identity() != earlier.identity()

    def shown_master(self) -> str:
        """Return the master's address in printable form: any client may have written the marker."""
        return shown(self.master)

    def shown_owner(self) -> str:
        """Return whose client has written it in printable form."""
        return shown(self.owner) or "others"

    def shown_masters(self) -> str:
        """Return the addresses of all masters in printable form."""
        return shown_list(self.masters)

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
    """Return the addresses of a marker in printable form."""
    return shown(", ".join(addresses), 2 * LONGEST)


_FIELDS = {
    **{"run_id": str, "since": int, "wall": int, "out": int, "attempt": int, "stage": str, "sure": bool},
    **{"max_ttl": int, "raised": int, "trusted": bool, "strict": bool, "master": str, "owner": str},
    **{"masters": list, "previous": list, "successors": list},
}
_LISTS = "masters", "previous", "successors"
_MICROSECONDS = "since", "wall"
_MILLISECONDS = "out", "max_ttl", "raised", "horizon"


class MarkerWrite(NamedTuple):
    """A marker that the next handshake writes, if the master still has the marker that was read before.

    Args:
        old: the text that was read; empty if there was none.
        new: the text to write.
        kept_ms: for how long the master keeps it if no client asks for it.
        made_us: when this was decided, by the master's clock. The master does not write the marker long after that,
            since more may have happened meanwhile (see `votes.scripts.MARK`).
    """

    old: bytes
    new: bytes
    kept_ms: int
    made_us: int
