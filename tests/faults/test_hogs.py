"""Row 44: a master that reads or answers almost nothing must not make the process keep commands without bound."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hiredis import Reader
from support.faces import PATIENCE, Face, await_true

from redlatch import QuorumUnavailable
from redlatch.votes.commands import pack

BATCH = 1024

# The most commands that are kept for one master: `engine.MOST_PENDING`.
MOST = 655_360


class Server:
    """A server that completes the handshake, and then runs `go_on`.

    Attributes:
        accepted: how many connections it has accepted.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._over = threading.Event()
        self._socks: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._socks.append(sock)
                self.accepted += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: Any) -> None:
        with contextlib.suppress(OSError):
            reader, last = Reader(), None
            while last is None or last[0] != b"EVAL":
                data = sock.recv(4096)
                if not data:
                    return
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    last = command
                    sock.sendall(self._answer(command))
            self.go_on(sock)

    def go_on(self, sock: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def _answer(command: Any) -> Any:
        if command[0] == b"HELLO":
            return b"%0\r\n"
        if command[0] != b"INFO":
            return b"+OK\r\n"
        text = {b"server": b"redis_version:7.2.4\r\nrun_id:" + b"a" * 40, b"replication": b"role:master"}
        # Only the string, without the array around it.
        return pack(text.get(command[1], b"x:y"))[4:]

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for sock in self._socks:
            sock.close()


class Hog(Server):
    """A server that reads one byte of the next command, and then sends an error every half second."""

    def go_on(self, sock: Any) -> None:
        sock.recv(1)
        while not self._over.wait(0.5):
            sock.sendall(b"-ERR not now\r\n")


class Liar(Server):
    """A server that pushes changes of one key without end, and answers slowly that others hold it.

    Attributes:
        pushes: how many pushes it has sent.
        most: the most commands that were unanswered at one time.
    """

    def __init__(self, name: Any) -> None:
        self._push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(name), name.encode())
        self.pushes = self.most = 0
        super().__init__()

    def go_on(self, sock: Any) -> None:
        asked: deque[bytes] = deque()
        reader = Reader()
        while not self._over.is_set():
            if select.select([sock], [], [], 0 if self.pushes else None)[0]:
                data = sock.recv(4096)
                if not data:
                    return
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    asked.append(command[0])
                self.most = max(self.most, len(asked))
            sock.sendall(self._push * 50)
            self.pushes += 50
            if asked and self.pushes % 1000 == 0:
                sock.sendall(
                    {b"SET": b"_\r\n", b"PTTL": b":60000\r\n", b"CLIENT": b"+OK\r\n"}.get(asked.popleft(), b":0\r\n")
                )


@pytest.fixture
def hog() -> Iterator[Any]:
    hog = Hog()
    yield hog
    hog.close()


@pytest.fixture
def liar(name: str) -> Iterator[Any]:
    liar = Liar(name)
    yield liar
    liar.close()


def test_row_44_a_master_that_reads_nothing_and_answers_a_little_is_dropped(
    connect: Face, hog: Any, three: list[str], name: str
) -> None:
    client = connect([*three[:2], hog.url], guard=None, attempt_timeout=PATIENCE)
    client.connect()
    names = [f"{name}-{number}" for number in range(BATCH)]
    sent = 0
    while hog.accepted < 2:
        locks = client.acquire_many(names, ttl=60)
        # The other masters are a quorum.
        assert all(locks)
        assert all(client.release_many(locks))
        sent += 2 * BATCH
        assert sent < MOST, "every command is kept for a master that reads nothing"


def test_row_44_a_master_that_floods_pushes_is_dropped_and_gets_few_commands(
    connect: Face, liar: Any, name: str
) -> None:
    waiting = connect(liar.url, guard=None).lock(name, ttl=60).start("acquire", timeout=PATIENCE)
    await_true(lambda: liar.accepted >= 3)
    # An attempt, its release, and a look that takes two commands.
    assert liar.most <= 4
    liar.close()
    assert isinstance(waiting.exception(PATIENCE), (QuorumUnavailable, type(None)))
