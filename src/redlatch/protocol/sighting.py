"""What the guard is shown, and what it keeps in mind: markers, sightings, clocks. See `guard`, which decides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from redlatch.errors import MasterRefused
from redlatch.protocol.policy import MILLISECOND, SECOND
from redlatch.protocol.said import LONGEST, shown

# A marker that no client has asked for goes after so long, or twice the longest ttl, whichever is more.
KEPT_MS = 3_600_000

# A clock is believed to have jumped when it is off by more than this, beyond what its rate explains: a server may
# tell its time in whole milliseconds, and rates are not that even.
JUMP_NS = 10 * MILLISECOND

# A clock that in this time, or longer, goes on by less than a tenth of it stands still. (Servers guess a little between
# two looks at it.)
STILL_NS = 100 * MILLISECOND

# A master without replicas forgets after this time that it was a replica itself (the default of repl-backlog-ttl).
BACKLOG_MS = 3_600_000

# How much faster or slower than ours a clock may go, whatever the drift factor says.
LEAST_RATE, MOST_RATE = 0.001, 0.01


@dataclass(frozen=True)
class Marker:
    """What is written on a master, as JSON.

    Args:
        run_id: of the server process, and of the history of its keys: as a replica it gets another one's.
        since: when it was written, by the server's clock, in microseconds since 1970.
        wall: the same, by the clock of who wrote it.
        new: whether nothing had been forgotten then.
        max_ttl: milliseconds.
        trusted: whether a master that was restarted is believed to have kept every key.
        master: its address, as he knew it who wrote this.
        masters: those of all.
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
        """Return it as it is written."""
        return json.dumps({"redlatch": 1} | vars(self), sort_keys=True, separators=(",", ":")).encode()

    def shown_master(self) -> str:
        """Return the master's address, made printable: anyone may have written the marker."""
        return shown(self.master)

    def shown_masters(self) -> str:
        """Return the addresses of all masters, made printable."""
        return shown(", ".join(self.masters), 2 * LONGEST)

    def origin(self) -> tuple[str, int]:
        """Return which server process it was written on first, and when: what another one has otherwise."""
        return self.run_id.partition(" ")[0], self.since

    @classmethod
    def read(cls, text: bytes | None) -> Marker | None:
        """Return what was written; None is nothing.

        Raises:
            ValueError: it is no marker of ours.
        """
        if text is None:
            return None
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("redlatch", None) != 1:
            raise ValueError("it is of another version")
        if {name: type(value) for name, value in fields.items()} != _FIELDS:
            raise ValueError("it has other fields")
        if not all([0 <= fields[name] < 1 << 62 for name in ("since", "wall", "max_ttl")]):
            raise ValueError("it has numbers that cannot be")
        marker = cls(**fields | {"masters": tuple(map(str, fields["masters"]))})
        if marker.text() != text:  # a pulse compares the text
            raise ValueError("it is written in another way")
        return marker


_FIELDS = {
    **{"run_id": str, "since": int, "wall": int, "new": bool, "max_ttl": int, "trusted": bool},
    **{"master": str, "masters": list},
}


class Errand(NamedTuple):
    """What a handshake does about the marker: it reads it, after it has replaced `old` by `new` if that is given.

    Not if it comes long after `made_us` by the master's clock: what was found then may be true no more.
    """

    key: bytes
    old: bytes = b""
    new: bytes = b""
    made_us: int = 0
    kept_ms: int = KEPT_MS

    def reading(self) -> Errand:
        """Return one that writes nothing."""
        return self._replace(old=b"", new=b"")


class Sighting(NamedTuple):
    """What a handshake has seen of a master.

    Args:
        marker: its text, or None.
        server_us: the server's clock, in microseconds since 1970, between `sent_ns` and `came_ns` of ours.
        persists: whether it has an append-only file.
        promoted: whether it was a replica before, as far as it remembers.
        backlog_ms: how long a master without replicas remembers that (repl-backlog-ttl).
    """

    run_id: str
    marker: bytes | None
    server_us: int
    sent_ns: int
    came_ns: int
    persists: bool
    promoted: bool = False
    backlog_ms: int = BACKLOG_MS


class Ruling(NamedTuple):
    """What becomes of a connection: it may vote, or another one is made.

    Args:
        admitted: whether it may vote.
        wait_ns: when another one is made.
        cause: why the master has no vote until then; None where that is only a moment.
    """

    admitted: bool
    wait_ns: int = 0
    cause: MasterRefused | None = None


def refuse(why: str) -> Ruling:
    """Return what becomes of a master that may not be used at all."""
    return Ruling(False, SECOND, MasterRefused(why))


class Leap(NamedTuple):
    """A clock that went forward by so much, and before when that was not seen."""

    by_ns: int
    at_ns: int
    judged: bool = False


class Offset:
    """By how much a master's clock is ahead of ours, as narrow as is known: what NTP calls the offset, as an interval.

    Args:
        drift_factor: by which share of the time it may go wrong.

    Attributes:
        at_ns: when it was seen last, by ours.
    """

    def __init__(self, drift_factor: float) -> None:
        self._rate = min(max(drift_factor, LEAST_RATE), MOST_RATE)
        self._low = self._high = 0
        self.at_ns = 0
        self._shown_us = 0

    def note(self, sent_ns: int, came_ns: int, server_us: int) -> int:
        """Take note of what it showed between two moments; return by how many ns it has jumped, 0 if it has not."""
        low = server_us * 1000 - came_ns
        high = server_us * 1000 - sent_ns + MILLISECOND  # it may count in whole ones
        jump = 0
        if self.at_ns:
            slack = int((came_ns - self.at_ns) * self._rate)
            self._low, self._high = self._low - slack, self._high + slack
            if low > self._high + JUMP_NS:
                jump = low - self._high
            elif high < self._low - JUMP_NS:
                jump = high - self._low
            elif max(low, self._low) < min(high, self._high):
                low, high = max(low, self._low), min(high, self._high)
        self._low, self._high, self.at_ns, self._shown_us = low, high, came_ns, server_us
        return jump

    def stands_still(self, sent_ns: int, server_us: int) -> bool:
        """Tell whether it shows about the same as a while ago; to be asked before `note`."""
        passed_ns, gone_ns = sent_ns - self.at_ns, (server_us - self._shown_us) * 1000
        return bool(self.at_ns) and passed_ns > STILL_NS and -JUMP_NS < gone_ns < passed_ns // 10
