"""A relay in front of a master. It forwards all bytes until `swallow`, and then drops everything."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class BlackHole:
    """A relay on loopback; it runs while the context manager is entered.

    Before `swallow` it forwards all bytes. After `swallow`, connections stay open but no byte passes. A new connection
    attempt gets no answer, as behind a firewall that drops packets.

    Args:
        url: the URL of the master.

    Attributes:
        url: the URL of the relay.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._sockets = [self._listener]
        self._swallowing = False
        self._thread = threading.Thread(target=self._relay, daemon=True)

    def __enter__(self) -> BlackHole:
        self._thread.start()
        return self

    def swallow(self) -> None:
        """Drop everything from now on."""
        self._swallowing = True
        self._thread.join()
        # Fill the listener's queue. The kernel does not answer a SYN when the queue is full.
        self._listener.listen(0)
        for _ in range(3):
            queued = socket.socket()
            queued.setblocking(False)
            with suppress(BlockingIOError):
                queued.connect(self._listener.getsockname())
            self._sockets.append(queued)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._swallowing = True
        self._thread.join()
        self._selector.close()
        for each in self._sockets:
            each.close()

    def _relay(self) -> None:
        while not self._swallowing:
            for key, _ in self._selector.select(0.05):
                if key.data is None:
                    self._connect()
                else:
                    self._pass_on(key.fileobj, key.data)  # type: ignore[arg-type]  # it is a socket

    def _connect(self) -> None:
        near, far = self._listener.accept()[0], socket.create_connection(self._target)
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, other)
            self._sockets.append(one)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        data = b""
        # If one side has closed its connection, close the other too.
        with suppress(OSError):
            data = source.recv(1 << 16)
            sink.sendall(data)
        if not data:
            for each in (source, sink):
                with suppress(KeyError):
                    self._selector.unregister(each)
                each.close()
