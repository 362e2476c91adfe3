"""What `redlatch doctor` has read of masters, and what it has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redlatch.masters.master import Master

# How bad a finding is.
FINE, WARNING, UNSAFE = "fine", "warning", "unsafe"
ORDER = (UNSAFE, WARNING, FINE)


@dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
        level: FINE, WARNING or UNSAFE.
        master: its name; empty for all of them.
        text: what was found.
        cure: what to do; empty if it is fine.
    """

    level: str
    master: str
    text: str
    cure: str = ""


@dataclass
class Patient:
    """One master, and what was read of it.

    Attributes:
        traits: what the handshake of a client learns (see `wire.traits`).
        info: what INFO says.
        config: what CONFIG GET says; empty if that is not allowed.
        offset: how far its clock is ahead of this machine's, in seconds.
        rate: how much faster its clock runs than this machine's, as a share.
        error: why it could not be examined; None if it could.
        cure: what ends that error; empty if nothing special does.
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
