"""The holder of a lock, as `Lock.holder` and the errors of a busy lock show it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock.

    Attributes:
        owner: the `owner` of the holder's client: by default its host and process, as "host:pid". Empty if the token
            has no such label, as with other kinds of clients.
        ttl_left: the seconds until the lock expires, unless it is extended or released before; infinite if its keys
            have no ttl, so that they are not of redlatch.
        held_for: the seconds since the holder's client acquired the lock, by the wall clocks of both machines, and up
            to two seconds too long. None if the token has no label.
        fence: the highest fencing number given to a holder, if the lock was acquired with ``fence=True``; otherwise
            None.
    """

    owner: str
    ttl_left: float
    held_for: float | None = None
    fence: int | None = None

    def __str__(self) -> str:
        return f"{self.owner or 'another client'} has held it{self._since}"

    @property
    def _since(self) -> str:
        return "" if self.held_for is None else f" for {self.held_for:.0f} s"


def held_by(holder: Holder) -> str:
    """Return a text such as "held by web-1:4711 for 12 s, 8.2 s left"."""
    left = holder.ttl_left
    shown = "" if math.isinf(left) else f", {left:.0f} s left" if left >= 10 else f", {left:.1f} s left"
    return f"held by {holder.owner or 'another client'}{holder._since}{shown}"
