"""The readings of masters by `redlatch doctor`, and its findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redlatch.masters.master import Master

# The levels of findings.
FINE, WARNING, UNSAFE = "fine", "warning", "unsafe"
ORDER = (UNSAFE, WARNING, FINE)


@dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
        master: its name; empty for all of them.
        cure: what to do; empty if it is fine.
    """

    level: str
    master: str
    text: str
    cure: str = ""


@dataclass
class Patient:
    """One master, and what was read from it.

    Attributes:
        traits: from the handshake of a client (see `wire.server_traits`).
        info: the reply to INFO.
        config: the reply to CONFIG GET; empty if that is not allowed.
        offset: seconds by which its clock is ahead of this machine's.
        rate: how much faster its clock runs than this machine's, as a share.
        error: why it could not be examined; None if it could.
    """

    master: Master
    traits: Any = None
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    pings: list[float] = field(default_factory=list)
    offset: float = 0.0
    rate: float = 0.0
    encrypted: bool = False
    error: Exception | None = None
    cure: str = ""
