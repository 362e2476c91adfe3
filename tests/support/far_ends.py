"""A Fleet whose masters are the far ends of socket pairs, which a test reads and writes byte by byte."""

from __future__ import annotations

import socket
from typing import Any

from hiredis import Reader


class FarEnds:
    """The masters of one fleet.

    Args:
        fleet: the engine; its links get their connections by `connect`.

    Attributes:
        far: the far end of each link's last connection.
        readers: the parser of what arrives there.
    """

    def __init__(self, fleet: Any) -> None:
        self.fleet = fleet
        self.far: dict[int, socket.socket] = {}
        self.readers: dict[int, Reader] = {}
        self._sockets: list[socket.socket] = []

    def connect(self, index: int) -> socket.socket:
        """Return the near end of a new connection of link `index`."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self._sockets += [near, far]
        self.far[index], self.readers[index] = far, Reader()
        return near

    def commands_of(self, index: int) -> list[list[bytes]]:
        """Return the commands that master `index` received since the last call."""
        try:
            while data := self.far[index].recv(1 << 20):
                self.readers[index].feed(data)
        except BlockingIOError:
            pass
        found = []
        while (command := self.readers[index].gets()) is not False:
            found.append(command)
        return found

    def reply(self, index: int, *replies: bytes) -> None:
        """Send replies from master `index`, and let the fleet receive them."""
        self.far[index].sendall(b"".join(replies))
        self.fleet.pump(0)

    def fallen(self) -> list[int]:
        """Record the links that broke since the last call, as a driver does."""
        broken = []
        while self.fleet.fallen:
            link, sock = self.fleet.fallen.pop()
            sock.close()
            broken.append(link.index)
        return broken

    def lose(self, index: int) -> None:
        """Close the connection of master `index`, and record the loss as the driver does."""
        self.far[index].close()
        self.fleet.pump(0)
        self.fallen()

    def close(self) -> None:
        """Close everything."""
        self.fallen()
        self.fleet.wires.close()
        for each in self._sockets:
            each.close()
