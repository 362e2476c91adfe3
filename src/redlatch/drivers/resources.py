"""The resources that a client has to give back.

A client is closed; or it is forgotten, and the garbage collector finds it; or the process is forked, and the client of
the child owns nothing.
"""

from __future__ import annotations

import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..masters.master import Master
from ..votes.units import Clock
from ..wire.dial.connect import Connection
from .arrivals import Arrival, reject
from .lifecycle import Lifecycle
from .lifetime import FORGOTTEN_NS


class Resources:
    """The connections of one client and the threads that make them.

    Attributes:
        fleet: before it is made, nothing is shared with a forked child, so the child may use such a client.
        arrivals: what other threads have delivered, until the driver takes it.
        dismiss: closes a socket of a forgotten client.
    """

    _dialler: Any
    _switches: Any
    _masters: list[Master]

    def __init__(self, clock: Clock, lifecycle: Lifecycle | None = None) -> None:
        self.fleet: Any = None
        self.lifecycle = Lifecycle() if lifecycle is None else lifecycle
        self.arrivals: deque[tuple[int, Arrival]] = deque()
        self.dismiss: Callable[[socket.socket], None] = socket.socket.close
        self._waiting: dict[int, Connection] = {}
        self._clock = clock
        self._dialled: list[int] = []
        # The error that kept a master from being dialled, until `connect` raises it.
        self.failure: Exception | None = None
        # Keep the sockets alive: else the garbage collector might finalize them, with a warning, before their owner can
        # close them (see `Wires`). It must not keep this object alive.
        weakref.finalize(self, _turn_away_all, self._waiting, self.arrivals).atexit = False

    def all_dialled(self) -> bool:
        return len(self._dialled) == len(self._masters)

    def raise_failure(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def is_closing(self) -> bool:
        return self.lifecycle.closing

    def retire(self) -> None:
        self.lifecycle.retire()

    def close(self) -> None:
        """Stop dialling and close every socket; harmless when repeated.

        A thread that appends to `arrivals` checks `closed` afterwards, and closes its connection if it is set.
        """
        self.retire()
        self.lifecycle.closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        self._dialler.close()
        self._switches.close()
        _turn_away_all(self._waiting, self.arrivals)
        if self.fleet is not None:
            self.fleet.wires.close()
            for sock in self._fallen():
                sock.close()

    def _let_wait(self, index: int, connection: Connection) -> None:
        """Keep a connection until the guard decides. If the master was dialled twice, another one may be there."""
        before = self._waiting.get(index)
        if before is not None and before is not connection:
            before.sock.close()
        self._waiting[index] = connection

    def _fallen(self) -> list[socket.socket]:
        fallen, self.fleet.fallen = self.fleet.fallen, []
        return [sock for _, sock in fallen if sock is not None]

    def __del__(self) -> None:
        if hasattr(self, "_switches"):
            if self.fleet is not None and not self.lifecycle.closed and not self.lifecycle.forked:
                self.fleet.await_answers(self._clock.now() + FORGOTTEN_NS)
                there = [self.fleet.wires.detach(link.index) for link in self.fleet.links]
                # Broken ones are not dialled again.
                for sock in [*there, *self._fallen()]:
                    if sock is not None:
                        self.dismiss(sock)
            self.close()

    def disown(self) -> None:
        """The connections and locks of the parent stay as they are."""
        self.lifecycle.disown()
        # Closes the child's descriptors only; nothing is sent.
        self._hang_up()


def _turn_away_all(waiting: dict[int, Connection], arrivals: deque[tuple[int, Arrival]]) -> None:
    while waiting:
        waiting.popitem()[1].sock.close()
    for _, arrival in list(arrivals):
        reject(arrival)
