"""Log messages about the masters, one for each change and not for each try, and the errors of a refused list."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from typing import Any

from ..errors import ConfigurationError, MasterRefused
from ..masters.master import Master
from ..votes.redaction import shown
from ..votes.units import SECOND

logger = logging.getLogger("redlatch")

# Longer causes are cut in the log. A disagreement about the list of masters names two lists, so this is generous.
MOST_SHOWN = 2000


class MasterLog:
    def __init__(self, masters: list[Master], quorum: int, tracking: bool) -> None:
        self._masters = masters
        self._quorum = quorum
        self._tracking = tracking
        # Masters that were reported as unusable, with the type of the cause.
        self._down: dict[int, type] = {}
        self._reported_polling = False
        self._reported_eviction: set[int] = set()
        self._reported_scripts: set[int] = set()

    def report_unusable(self, index: int, cause: Exception, connected: int, so_far: bool) -> None:
        """Report why a master has no vote, and again when the type of the cause changes.

        Args:
            so_far: whether other masters are still being dialled for the first time.
        """
        if self._down.get(index) is not type(cause):
            self._down[index] = type(cause)
            what, state = self._named(index), self._state(connected, so_far)
            logger.warning("%s cannot be used: %s; %s", what, shown(cause, MOST_SHOWN), state)

    def report_back(self, index: int, connected: int) -> None:
        """Report that a master is back, if it was reported as unusable."""
        if self._down.pop(index, None) is not None:
            logger.warning("%s is back: %s", self._named(index), self._state(connected, False))

    def _named(self, index: int) -> str:
        """Return "master" and the address, or what a client calls its database."""
        master = self._masters[index]
        return f"{getattr(master, 'listed_as', 'master')} {master.address}"

    def _state(self, connected: int, so_far: bool) -> str:
        now = f"{connected} of {len(self._masters)} are connected{' so far' if so_far else ''}"
        return f"{now}, {self._quorum} must agree"

    def report_server(self, index: int, traits: Any, before: Any, guarded: bool) -> None:
        """Report what a service owner should know about a server that has just connected.

        Args:
            before: traits of the last connection; None at the first.
        """
        if traits.reports_itself:
            return
        address = self._masters[index].address
        if not guarded and before is not None and before.run_id != traits.run_id:
            logger.warning("master %s is another server process than before; it may have lost locks", address)
        if self._tracking and not traits.tracking and not self._reported_polling:
            self._reported_polling = True
            logger.warning(
                "master %s does not say when a key changes (CLIENT TRACKING in RESP3): "
                "where a quorum does not, those who wait for a lock poll",
                address,
            )
        if not traits.scripts and index not in self._reported_scripts:
            self._reported_scripts.add(index)
            logger.info("master %s is used without scripts: WATCH, MULTI and EXEC release and extend there", address)
        if traits.evicts and index not in self._reported_eviction:
            self._reported_eviction.add(index)
            logger.warning(
                "master %s may evict keys before their time (maxmemory_policy %s), and with them locks: "
                "noeviction is needed",
                address,
                traits.evicts,
            )


class NodeLog(MasterLog):
    """The log of a cluster's nodes; `present` has those that are in use now."""

    def __init__(self, nodes: list[Master], tracking: bool, present: Sized) -> None:
        super().__init__(nodes, 1, tracking)
        self._present = present

    def _state(self, connected: int, so_far: bool) -> str:
        return f"{connected} of {len(self._present)} nodes are connected{' so far' if so_far else ''}"


def report_set_back(masters: list[Master], index: int, by_ns: int) -> None:
    address = masters[index].address
    logger.warning("the clock of master %s was set back by %.3f s: its keys stay longer", address, by_ns / SECOND)


def twin_of(index: int, run_id: str, known: Mapping[int, str], masters: list[Master]) -> int | None:
    """Return the index of another master that is the same server, or None.

    Args:
        known: the run_id of each server that is known, by the index of its master.
    """
    me = masters[index]
    for other, theirs in known.items():
        if other != index and theirs == run_id and not (me.by_db and me.db != masters[other].db):
            return other
    return None


def refuse_twin(index: int, twin: int, masters: list[Master]) -> MasterRefused:
    """Return the refusal of a master whose address differs from that of another, but which is the same server."""
    return MasterRefused(
        f"{masters[index].address} is the same server as masters[{twin}] ({masters[twin].address}): "
        "they have one run_id; a quorum needs independent servers"
    )


def refuse_list(index: int, refusal: MasterRefused, masters: list[Master]) -> ConfigurationError:
    """Return the error of every call after a master was refused at the first try."""
    address = masters[index].address
    place = getattr(masters[index], "listed_as", None) or f"masters[{index}]"
    where = place if address in str(refusal) else f"{place} ({address})"
    return ConfigurationError(f"{where}: {refusal}")
