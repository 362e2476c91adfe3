"""What the demo's processes tell each other: one plan down the stdin of a buyer process, events up its stdout.

A plan travels by stdin and not by argument, because the URLs of servers may contain passwords.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import redlatch


class Face(StrEnum):
    """How a process runs its buyers; both faces compete for the same lock."""

    THREADS = "threads"
    ASYNCIO = "asyncio"


class Kind(StrEnum):
    """What an event says."""

    READY = "ready"  # every buyer stands at the door; `text` is the implementation of the lock
    BOUGHT = "bought"  # stock and ledger are written, the lock is still held
    EMPTY = "empty"  # nothing left in stock for this buyer
    DOOMED = "doomed"  # this process holds the lock, has written nothing and waits to be killed
    LOST = "lost"  # a lease ran out under a buyer that was too slow; it wrote nothing and tries again
    UNANSWERED = "unanswered"  # no quorum of masters answered a buyer in time; it tries again
    FAILED = "failed"  # `text` says why the process gives up
    DONE = "done"  # all buyers of the process have bought or found the shop empty


@dataclass(frozen=True)
class Plan:
    """What one buyer process has to do.

    Attributes:
        folder: where the shop keeps its files.
        face: threads or asyncio.
        buyers: the numbers of its buyers.
        urls: the lock masters; empty for a sale without a lock.
        name: the name of the lock.
        ttl: seconds of a lease.
        patience: seconds after which a buyer gives up waiting for the lock.
        longest_pause: seconds at most between two attempts of a waiting buyer.
        doomed_at: whoever first finds this many items left waits to be killed; 0 for nobody.
        guarded: whether masters are kept out that may have forgotten a lease.
    """

    folder: str
    face: Face
    buyers: tuple[int, ...]
    urls: tuple[str, ...]
    name: str
    ttl: float
    patience: float
    longest_pause: float
    doomed_at: int
    guarded: bool

    @property
    def options(self) -> dict[str, Any]:
        """The options of the buyers' clients."""
        guard = redlatch.Guard(max_ttl=self.ttl) if self.guarded else None
        return {"ttl": self.ttl, "retry": redlatch.Retry(longest=self.longest_pause), "guard": guard}

    def to_line(self) -> bytes:
        """Write the plan as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Plan:
        """Read the plan that `to_line` wrote."""
        fields: dict[str, Any] = json.loads(line)
        fields.update(face=Face(fields["face"]), buyers=tuple(fields["buyers"]), urls=tuple(fields["urls"]))
        return cls(**fields)


@dataclass(frozen=True)
class Event:
    """What happened in a buyer process; `wait` is the seconds that an acquire took, where the event follows one."""

    kind: Kind
    wait: float | None = None
    text: str = ""

    def send(self) -> None:
        """Write the event to stdout in one call: a line is shorter than PIPE_BUF, so threads cannot mix theirs."""
        line = json.dumps({"kind": self.kind, "wait": self.wait, "text": self.text[:2000]})
        os.write(1, line.encode() + b"\n")

    @classmethod
    def from_line(cls, line: bytes) -> Event:
        """Read the event that `send` wrote."""
        fields: dict[str, Any] = json.loads(line)
        return cls(Kind(fields["kind"]), fields["wait"], fields["text"])
