"""The outcomes that other threads deliver to a driver, and the parts that drivers dial with.

A dialling thread delivers a connection, or why there is none, and a listener a switch of masters. A thread that
connects the client delivers None: begin to dial. So only one thread at a time changes the connections.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import redis.exceptions as redis_errors
from hiredis import HiredisError

from ..errors import MasterQuarantined
from ..masters.master import Found, Master
from ..masters.server import address_of
from ..votes.units import SECOND, Clock
from ..wire.dial.connect import Connection, longer
from ..wire.dial.switches import Switch, SwitchListener
from ..wire.dial.topology import Topology

# Seconds for one connect and for one handshake.
DIAL_TIMEOUT = 2.0

# Seconds that a first use waits for the rest of the masters after a quorum is connected, so that it finds a wrong list.
GRACE = 0.25

Outcome = Connection | Exception
Arrival = Outcome | Switch | Topology | None
Deliver = Callable[[int, Arrival], None]
MakeDialler = Callable[[list[Master], float, Deliver, Deliver, bool], Any]
# The `Admissions` of servers, or the `ShardAdmissions` of a cluster.
MakeGuard = Callable[[Callable[[int, int], None]], Any]
MakeFleet = Callable[[list[str], int, Clock, bool, int], Any]


class Backoff:
    """The pauses before masters are dialled again.

    A master that cannot write, or answers with nonsense, would otherwise be dialled after every command.
    """

    def __init__(self) -> None:
        self._adopted_ns: dict[int, int] = {}
        self._pauses: dict[int, float] = {}

    def note_adopted(self, index: int, now_ns: int) -> None:
        self._adopted_ns[index] = now_ns

    def pause_after(self, index: int, cause: BaseException | None, now_ns: int) -> float:
        """Return seconds; 0.0 unless a reply of the master has ended the connection within a second."""
        soon = now_ns - self._adopted_ns.get(index, 0) < SECOND
        by_reply = type(cause) is ConnectionError or isinstance(cause, (redis_errors.RedisError, HiredisError))
        # The guard decides about a master that may have forgotten locks, and needs its next handshake at once.
        if not (soon and by_reply) or isinstance(cause, MasterQuarantined):
            self._pauses.pop(index, None)
            return 0.0
        self._pauses[index] = pause = longer(self._pauses.get(index, 0.0))
        return pause


def reject(outcome: Arrival) -> None:
    """Close a connection that came too late; harmless when repeated."""
    if isinstance(outcome, Connection):
        outcome.sock.close()


def weakly(driver: Any) -> Deliver:
    """Return a `deliver` that does not keep a client alive."""
    reference = weakref.ref(driver)

    def deliver(index: int, outcome: Arrival) -> None:
        driver = reference()
        if driver is not None:
            driver.deliver(index, outcome)
        else:
            reject(outcome)

    return deliver


class Switches:
    """The masters that Sentinel finds: to which server each connection leads, and which were replaced.

    A switch may overtake a connection that is on its way to the driver, or the other way round. So each connection
    knows the number of the question that found its address (`Found`): only a later question can replace it.
    """

    def __init__(self, masters: list[Master], deliver: Deliver) -> None:
        # The nodes of a cluster come later.
        self._masters = masters
        self._adopted: dict[int, Found | None] = {}
        self._listeners = {
            index: SwitchListener(group, _for_master(index, deliver))
            for index, group in enumerate([master.group for master in masters])
            if group is not None
        }

    def listen(self, index: int) -> None:
        """Listen to the sentinels of a master; raise RuntimeError if no thread can start."""
        if index in self._listeners:
            self._listeners[index].start()

    def adopt(self, index: int, connection: Connection) -> None:
        if index in self._listeners:
            self._adopted[index] = connection.found

    def cause_to_leave(self, index: int, connection: Connection | None = None) -> Exception | None:
        """Return why a connection, by default the adopted one, must be closed; or None."""
        group = self._masters[index].group
        found = self._adopted.get(index) if connection is None else connection.found
        successor = None if group is None or found is None else group.successor(found)
        if found is None or successor is None:
            return None
        former, new = address_of(*found.address), address_of(*successor)
        return ConnectionAbortedError(f"the sentinels announced {new} as the master instead of {former}")

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()


def _for_master(index: int, deliver: Deliver) -> Callable[[Switch], None]:
    """Return a callback that keeps the client no more alive than `deliver` does."""
    return lambda switch: deliver(index, switch)
