"""A TCP proxy between a client and a real master that holds, spoils, cuts up and counts what passes.

It knows where a command and a reply end and which reply answers which command, and nothing else of the protocol. One
proxy stands before one master; what a test sets holds for all connections through it, also later ones.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

Command = tuple[bytes, ...]
# Takes a command and its reply; gives what the client gets instead, or None to cut the connection there.
Spoil = Callable[[Command, bytes], bytes | None]

CRUMB_SECONDS = 0.0003  # so that the other side can read one byte before the next is there
CRUMB_BYTES = 192  # longer messages, such as scripts and replies to INFO, pass in one piece


class Proxy:
    """One proxy, listening from its construction to `close`.

    Attributes:
        url: where a client finds it.
        commands: every command that came from a client, in order, over all connections.
        answered: every command whose reply was passed on.
        accepted: how many connections there were.
        replies, requests: gates; while one is shut, bytes of that direction wait (a one-way partition).
        spoil: what becomes of each reply; None leaves them as they are.
        refusing: whether new connections are cut at once.
        crumbs: whether every byte is sent by itself.
        pushes: every push that a master sent, in order.
        deaf: whether pushes are kept back, until `deliver` sends them on, if that is ever called.
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
        """Lead new connections to another server, as an address does that moves in a fail-over."""
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)

    def count(self, *words: bytes | str) -> int:
        """Count the commands that have all of `words` among theirs."""
        wanted = [word.encode() if isinstance(word, str) else word for word in words]
        return sum(all(word in command for word in wanted) for command in list(self.commands))

    def cut(self, abrupt: bool = False) -> None:
        """End every connection, with a FIN or, if abrupt, with a RST."""
        passages, self._passages = self._passages, []
        for passage in passages:
            passage.end(abrupt)

    def deliver(self) -> None:
        """Send the pushes on that were kept back, behind whatever replies were passed on meanwhile."""
        for passage in list(self._passages):
            passage.deliver()

    def quiet(self) -> bool:
        """Tell whether every command has its reply: who is stopped then is not missed for what it was asked before."""
        return len(self.answered) == len(self.commands)

    def greeted(self, clients: int = 1) -> bool:
        """Tell whether so many clients (with a guard) have finished their handshake here.

        A client waits only for a quorum, so a closed gate may still stop a later handshake.
        """
        last = b"CONFIG", b"GET"  # of a handshake
        return sum(words[:2] == last for words in list(self.answered)) >= clients

    def close(self) -> None:
        """End everything; nothing that waits at a gate passes any more."""
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
            passage = Passage(self, client, server)
            self._passages.append(passage)
            if self.closed:  # asked after it was put there: either we see this, or `close` sees the passage
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
        self._asked: deque[Command] = deque()
        self._kept: deque[bytes] = deque()
        self._sending = threading.Lock()  # to the client: replies, and pushes that come late
        self._ended = False
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def carry_requests(self) -> None:
        for message in self._messages(self._client):
            command = words_of(message)
            self._asked.append(command)
            self._proxy.commands.append(command)
            self._proxy.requests.wait()
            self._send(self._server, message)

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
                command = self._asked.popleft()
                if self._proxy.spoil is not None:
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
        if abrupt:  # whoever waits for the client's bytes is woken by SHUT_RD, and its close sends the RST
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for sock, how in (
            (self._client, socket.SHUT_RD if abrupt else socket.SHUT_RDWR),
            (self._server, socket.SHUT_RDWR),
        ):
            try:
                sock.shutdown(how)
            except OSError:
                pass  # it is gone already

    def _messages(self, sock: socket.socket):  # type: ignore[no-untyped-def]
        """Yield whole messages until either side has ended the connection."""
        data = b""
        try:
            while chunk := sock.recv(65536):
                data += chunk
                while (end := end_of(data)) is not None:
                    yield data[:end]
                    data = data[end:]
        except OSError:
            pass  # cut
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
            pass  # cut


def end_of(data: bytes, start: int = 0) -> int | None:
    """Return where the RESP message that begins at `start` ends, None if it is not complete."""
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
