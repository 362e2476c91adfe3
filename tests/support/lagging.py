"""A line between a master and its replica that holds back what the master sends: a replica that lags."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit


class Line:
    """A TCP relay to one server.

    Attributes:
        port: where the replica connects.
        open: while it is not set, bytes from the server wait. They are lost if the server ends meanwhile.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def close(self) -> None:
        """End the line, and drop what waits."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()
        self.open.set()

    def _accept(self) -> None:
        while True:
            try:
                replica, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                # The line is closed, or the server has ended.
                return
            self._sockets += [replica, server]
            self._start(self._carry, replica, server, False)
            self._start(self._carry, server, replica, True)

    def _carry(self, source: socket.socket, target: socket.socket, held: bool) -> None:
        try:
            while chunk := source.recv(65536):
                if held:
                    self.open.wait()
                target.sendall(chunk)
        except OSError:
            # One of the two sides was closed.
            pass

    @staticmethod
    def _start(work: object, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]
