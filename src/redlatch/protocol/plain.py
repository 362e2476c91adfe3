"""The plain lock. Compiled as `redlatch._c.protocol.plain`, too (see `redlatch._c`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .contention import wait_for_change
from .kind import PLAIN_ONES, Kind
from .policy import Policy


class Plain(Kind):
    """One key, one holder: everything is as `Kind` has it.

    After an attempt that was refused one master is asked before the others, the same one by everybody: so of all who
    try again at once one wins, and the others have nothing to undo.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.passes = PLAIN_ONES
        self.leads = True
        self.settles = self.signs_off = False

    def wait(
        self,
        policy: Policy,
        lines: Any,
        hold: Any,
        ttl_ms: int,
        round_ns: int,
        patience_ns: int,
        pauses: int,
        until_ns: int,
    ) -> Generator[Any, None, bool]:
        return wait_for_change(policy, lines, hold.key, round_ns, patience_ns, pauses, until_ns)


# It has no state: one serves all.
PLAIN = Plain()
