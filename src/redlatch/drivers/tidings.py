"""What is told of the masters in the log: each change once, and not every try."""

from __future__ import annotations

import logging
from typing import Any

from ..config import Master
from ..protocol.policy import SECOND
from ..protocol.said import shown

logger = logging.getLogger("redlatch")

# Longer causes are cut in the log. A disagreement about the list of masters names two lists, so this is generous.
MOST_SHOWN = 2000


class Tidings:
    """What was told of one client's masters.

    Args:
        quorum: how many must agree.
        tracking: whether the masters are to say when a key that was looked at has changed.
    """

    def __init__(self, masters: list[Master], quorum: int, tracking: bool) -> None:
        self._masters = masters
        self._quorum = quorum
        self._tracking = tracking
        self._down: dict[int, type] = {}  # masters that were told of as being of no use, and the kind of reason
        self._told_of_polling = False
        self._told_of_eviction: set[int] = set()

    def is_of_no_use(self, index: int, cause: Exception, connected: int, so_far: bool) -> None:
        """Tell why a master has no vote; again where the reason becomes one of another kind.

        Args:
            connected: how many are.
            so_far: whether others are being tried for the first time.
        """
        if self._down.get(index) is not type(cause):
            self._down[index] = type(cause)
            address, state = self._masters[index].address, self._state(connected, so_far)
            logger.warning("master %s cannot be used: %s; %s", address, shown(cause, MOST_SHOWN), state)

    def is_of_use(self, index: int, connected: int) -> None:
        """Tell that a master is back, if it was told of before."""
        if self._down.pop(index, None) is not None:
            logger.warning("master %s is back: %s", self._masters[index].address, self._state(connected, False))

    def _state(self, connected: int, so_far: bool) -> str:
        now = f"{connected} of {len(self._masters)} are connected{' so far' if so_far else ''}"
        return f"{now}, {self._quorum} must agree"

    def is_connected(self, index: int, traits: Any, before: Any, guarded: bool) -> None:
        """Tell what a service owner should know of a server.

        Args:
            traits: of the server.
            before: those of the last connection; None at the first.
            guarded: whether a guard sees to who may vote.
        """
        address = self._masters[index].address
        if not guarded and before is not None and before.run_id != traits.run_id:
            logger.warning("master %s is another server process than before; it may have lost locks", address)
        if self._tracking and not traits.tracking and not self._told_of_polling:
            self._told_of_polling = True
            logger.warning(
                "master %s does not say when a key changes (CLIENT TRACKING in RESP3): "
                "where a quorum does not, those who wait for a lock poll",
                address,
            )
        if traits.evicts and index not in self._told_of_eviction:
            self._told_of_eviction.add(index)
            logger.warning(
                "master %s may evict keys before their time (maxmemory_policy %s), and with them locks: "
                "noeviction is needed",
                address,
                traits.evicts,
            )


def tell_set_back(masters: list[Master], index: int, by_ns: int) -> None:
    """Tell that a master's clock was set back."""
    address = masters[index].address
    logger.warning("the clock of master %s was set back by %.3f s: its keys stay longer", address, by_ns / SECOND)
