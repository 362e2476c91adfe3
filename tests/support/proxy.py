"""A TCP proxy between a client and a real master that holds, changes, splits and counts messages.

Of the protocol it knows only where a command and a reply end, and which reply answers which command. One proxy serves
one master. A setting applies to all of its connections, including later ones.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

Command = tuple[bytes, ...]
# A function of a command and its reply. It returns the reply that the client gets, or None to cut the connection there.
Spoil = Callable[[Command, bytes], bytes | None]
Instead = Callable[[Command], bytes | None]

# The pause lets the other side read one byte before the next one arrives.
CRUMB_SECONDS = 0.0003
# Longer messages, such as scripts and replies to INFO, pass in one piece.
CRUMB_BYTES = 192


class Proxy:
    """One proxy, which listens from its construction to `close`.

    Attributes:
        url: its address for clients.
        commands: every command that came from a client, in order, over all connections.
        answered: every command whose reply was passed on.
        accepted: how many connections it accepted.
        replies, requests: gates; while one is shut, bytes of that direction wait (a one-way partition).
        spoil: a function that changes each reply; None leaves them as they are.
        instead: a function of a command that returns an answer to it, which the master then never sees, or None.
        refusing: whether new connections are cut at once.
        crumbs: whether every byte is sent by itself.
        pushes: every push that a master sent, in order.
        deaf: whether pushes are held until `deliver` sends them.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{parts.scheme}://127.0.0.1:{self.port}"
        self.commands: list[Command] = []
        self.answered: list[Command] = []
        self.accepted = 0
        self.replies, self.requests = threading.Event(), threading.Event()
        self.spoil: Spoil | None = None
        self.instead: Instead | None = None
        self.refusing = False
        self.crumbs = False
        self.pushes: list[bytes] = []
        self.deaf = False
        self.closed = False
        self._passages: list[Passage] = []
        self._start(self._accept)
        self.replies.set()
        self.requests.set()

    def lead_to(self, url: str) -> None:
        """Connect new connections to another server, as when an address moves in a fail-over."""
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)

    def count(self, *words: bytes | str) -> int:
        """Count the commands that contain all of `words`."""
        wanted = [word.encode() if isinstance(word, str) else word for word in words]
        return sum(all(word in command for word in wanted) for command in list(self.commands))

    def cut(self, abrupt: bool = False) -> None:
        """End every connection, with a FIN, or with a RST if abrupt."""
        passages, self._passages = self._passages, []
        for passage in passages:
            passage.end(abrupt)

    def deliver(self) -> None:
        """Send the held pushes, after all replies that were passed on meanwhile."""
        for passage in list(self._passages):
            passage.deliver()

    def quiet(self) -> bool:
        """Return whether every command has its reply, so that a master that stops now owes no reply."""
        return len(self.answered) == len(self.commands)

    def greeted(self, clients: int = 1) -> bool:
        """Return whether `clients` clients with a guard have finished their handshake here.

        A client waits only for a quorum, so a closed gate may still stop a later handshake.
        """
        # The last command of a handshake.
        last = b"CONFIG", b"GET"
        return sum(words[:2] == last for words in list(self.answered)) >= clients

    def close(self) -> None:
        """End all connections; nothing that waits at a gate passes any more."""
        self.closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.replies.set()
        self.requests.set()

    def _accept(self) -> None:
        while not self.closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._carry(Passage(self, client, server))

    def _carry(self, passage: Passage) -> None:
        self._passages.append(passage)
        # Check after the append: either this thread sees `closed`, or `close` sees the passage.
        if self.closed:
            passage.end()
        self._start(passage.carry_requests)
        self._start(passage.carry_replies)

    @staticmethod
    def _start(target: Callable[[], None]) -> None:
        threading.Thread(target=target, daemon=True).start()


class Passage:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        # Each command, and the answer that the client gets instead of the reply.
        self._asked: deque[tuple[Command, bytes | None]] = deque()
        self._kept: deque[bytes] = deque()
        # Guards sends to the client: replies, and pushes that come late.
        self._sending = threading.Lock()
        self._ended = False
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def carry_requests(self) -> None:
        for message in self._messages(self._client):
            command = words_of(message)
            instead = None if self._proxy.instead is None else self._proxy.instead(command)
            self._asked.append((command, instead))
            self._proxy.commands.append(command)
            self._proxy.requests.wait()
            # Its reply keeps the answer in its place among the others.
            self._send(self._server, message if instead is None else b"*1\r\n$4\r\nPING\r\n")

    def carry_replies(self) -> None:
        for reply in self._messages(self._server):
            message: bytes | None = reply
            command: Command | None = None
            if reply.startswith(b">"):
                self._proxy.pushes.append(reply)
                if self._proxy.deaf:
                    self._kept.append(reply)
                    continue
            else:
                command, instead = self._asked.popleft()
                if instead is not None:
                    message = instead
                elif self._proxy.spoil is not None:
                    message = self._proxy.spoil(command, reply)
            if message is None:
                self.end()
                return
            self._proxy.replies.wait()
            with self._sending:
                self._send(self._client, message)
            if command is not None:
                self._proxy.answered.append(command)

    def deliver(self) -> None:
        with self._sending:
            while self._kept:
                self._send(self._client, self._kept.popleft())

    def end(self, abrupt: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        # SHUT_RD wakes the thread that reads from the client; closing the socket then sends the RST.
        if abrupt:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for sock, how in (
            (self._client, socket.SHUT_RD if abrupt else socket.SHUT_RDWR),
            (self._server, socket.SHUT_RDWR),
        ):
            try:
                sock.shutdown(how)
            except OSError:
                # The socket is closed already.
                pass

    def _messages(self, sock: socket.socket) -> Iterator[bytes]:
        """Yield whole messages until either side ends the connection."""
        data = b""
        try:
            while chunk := sock.recv(65536):
                data += chunk
                while (end := end_of(data)) is not None:
                    yield data[:end]
                    data = data[end:]
        except OSError:
            # The connection was cut.
            pass
        finally:
            self.end()
            sock.close()

    def _send(self, sock: socket.socket, message: bytes) -> None:
        if self._proxy.closed or self._ended:
            return
        try:
            if self._proxy.crumbs and len(message) <= CRUMB_BYTES:
                for position in range(len(message)):
                    sock.sendall(message[position : position + 1])
                    time.sleep(CRUMB_SECONDS)
            else:
                sock.sendall(message)
        except OSError:
            # The connection was cut.
            pass


def end_of(data: bytes, start: int = 0) -> int | None:
    """Return where the RESP message that begins at `start` ends; None if it is not complete."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    kind, after = data[start : start + 1], line + 2
    if kind in b"$=!":
        size = int(data[start + 1 : line])
        end = after if size < 0 else after + size + 2
        return end if end <= len(data) else None
    if kind in b"*~>%":
        for _ in range(int(data[start + 1 : line]) * (2 if kind == b"%" else 1)):
            inner = end_of(data, after)
            if inner is None:
                return None
            after = inner
    return after


def words_of(command: bytes) -> Command:
    """Return the words of a command that came as an array of strings."""
    words, position = [], command.index(b"\r\n") + 2
    while position < len(command):
        line = command.index(b"\r\n", position)
        size = int(command[position + 1 : line])
        words.append(command[line + 2 : line + 2 + size])
        position = line + 2 + size + 2
    return tuple(words)
