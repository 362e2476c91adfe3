"""A sentinel on loopback whose answers and announcements a test writes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from hiredis import Reader

SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"


def array(*texts: str) -> bytes:
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text.encode()) for text in texts)


def message(text: str, channel: str = "+switch-master") -> bytes:
    return array("message", channel, text)


class Flood:
    """How often the same bytes were sent."""

    count = 0


class PlayedSentinel:
    """One sentinel.

    Args:
        port: of the master that it names, at 127.0.0.1.

    Attributes:
        url: where it listens, as "host:port".
        questions: how often it was asked for the master.
        subscribers: the connections that have subscribed; those that broke are among them.
    """

    def __init__(self, port: int) -> None:
        self.port, self.epoch = port, 1
        self.questions = 0
        self.subscribers: list[socket.socket] = []
        self._over = threading.Event()
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = "{}:{}".format(*self._server.getsockname())
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def push(self, data: bytes) -> bool:
        """Send bytes to all subscribers; return whether one of them has taken all."""
        taken = False
        for sock in list(self.subscribers):
            with contextlib.suppress(OSError):
                sock.sendall(data)
                taken = True
        return taken

    def announce(self, port: int, group: str = "group0") -> None:
        """Name another master from now on, and announce it."""
        self.port = port
        self.push(message(f"{group} 127.0.0.1 1 127.0.0.1 {port}"))

    def flood(self, data: bytes, times_a_second: float = 0.0) -> Flood:
        """Send the same bytes again and again in a thread of its own, as fast as they are taken if no rate is given."""
        flood = Flood()

        def run() -> None:
            while not self._over.wait(1 / times_a_second if times_a_second else 0.0):
                if self.push(data):
                    flood.count += 1
                else:
                    time.sleep(0.01)

        threading.Thread(target=run, daemon=True).start()
        return flood

    def close(self) -> None:
        """End all connections and threads; harmless when repeated."""
        self._over.set()
        # Wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._server.close()
        for sock, thread in self._serving.items():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._serving[sock] = thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        reader = Reader()
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    if command[0] == b"SUBSCRIBE":
                        sock.sendall(SUBSCRIBED)
                        self.subscribers.append(sock)
                    elif command[0] == b"PING":
                        sock.sendall(array("pong", ""))
                    elif command[1] == b"MASTER":
                        sock.sendall(array("config-epoch", str(self.epoch), "num-other-sentinels", "2"))
                    else:
                        self.questions += 1
                        sock.sendall(array("127.0.0.1", str(self.port)))


@contextlib.contextmanager
def played(count: int, port: int) -> Iterator[list[PlayedSentinel]]:
    """Play sentinels that name the same master."""
    sentinels = [PlayedSentinel(port) for _ in range(count)]
    try:
        yield sentinels
    finally:
        for sentinel in sentinels:
            sentinel.close()
