"""The masters of one client that Sentinel finds: which server each connection leads to, and whether it was replaced."""

from __future__ import annotations

from collections.abc import Callable

from redlatch.drivers.arrivals import Deliver
from redlatch.masters.master import Found, Master
from redlatch.masters.server import address_of
from redlatch.wire.dial.connect import Connection
from redlatch.wire.dial.switches import Switch, SwitchListener


class Switches:
    """Listens to the sentinels, and remembers the connections that may have to be closed.

    A switch may overtake a connection that is on its way to the driver, or the other way round. So each connection
    knows the number of the question that found its address (`Found`): only a later question can replace it.

    Args:
        deliver: takes (index, Switch) from a listener.
    """

    def __init__(self, masters: list[Master], deliver: Deliver) -> None:
        self._groups = [master.group for master in masters]
        self._adopted: dict[int, Found | None] = {}
        self._listeners = {
            index: SwitchListener(group, _for_master(index, deliver))
            for index, group in enumerate(self._groups)
            if group is not None
        }

    def listen(self, index: int) -> None:
        """Begin to listen to the sentinels of master `index`, if it has any; harmless when repeated.

        Raises:
            RuntimeError: no thread can start.
        """
        if index in self._listeners:
            self._listeners[index].start()

    def adopt(self, index: int, connection: Connection) -> None:
        """Remember where the connection to master `index` leads."""
        if index in self._listeners:
            self._adopted[index] = connection.found

    def cause_to_leave(self, index: int, connection: Connection | None = None) -> Exception | None:
        """Return why a connection to master `index` must be closed, or None.

        Args:
            connection: one that was not adopted yet; None for the adopted one.
        """
        group = self._groups[index]
        found = self._adopted.get(index) if connection is None else connection.found
        successor = None if group is None or found is None else group.successor(found)
        if found is None or successor is None:
            return None
        former, new = address_of(*found.address), address_of(*successor)
        return ConnectionAbortedError(f"the sentinels announced {new} as the master instead of {former}")

    def close(self) -> None:
        """End the listeners; harmless when repeated."""
        for listener in self._listeners.values():
            listener.close()


def _for_master(index: int, deliver: Deliver) -> Callable[[Switch], None]:
    """Return what a listener calls. It refers to the client as weakly as `deliver` does."""
    return lambda switch: deliver(index, switch)
