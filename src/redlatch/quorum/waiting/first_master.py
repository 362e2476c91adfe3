"""The first master: the one that all clients ask first for a contended key.

If several clients ask all masters at once, their votes may split and no client wins. If all ask the same master first,
one of them wins it, and the others have nothing to undo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from ...votes.units import SECOND

if TYPE_CHECKING:
    from ..quorum import Quorum


class FirstMaster:
    """Chooses the master that is asked first. `round_ns` is of the last lost attempt that asked all at once."""

    __slots__ = ("_deprioritised", "round_ns")

    def __init__(self) -> None:
        self.round_ns = 0
        # Until when a master is not asked first, by its index.
        self._deprioritised: dict[int, int] = {}

    def first_of(self, quorum: Quorum, key: bytes, now_ns: int) -> int:
        """Return the index of the master that all clients ask first for a key; -1 if there is none."""
        if quorum.size == 1:
            return -1
        start = crc32(key)
        for step in range(quorum.size):
            index = quorum.order[(start + step) % quorum.size]
            if self._deprioritised.get(index, 0) <= now_ns:
                return index
        return -1

    def deprioritise(self, index: int, now_ns: int) -> None:
        """Ask another master first for a second: this one did not answer."""
        self._deprioritised[index] = now_ns + SECOND
