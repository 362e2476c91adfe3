"""The backend of a bridge for a server that refuses scripts: commands pass, and calls of scripts become transactions.

The bridge has its own connection to the server, so nothing disturbs a WATCH. A transaction takes two round trips, and
the commands behind it wait; calls that wait behind each other share one. Pushes of the server keep their place among
the replies.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import Any

import redis.exceptions as redis_errors
from hiredis import HiredisError, PushNotification, Reader

from ...errors import MasterRefused
from ...votes.commands import pack
from ...votes.kinds import FAMILY
from ..engine.net import CLOSED
from ..server_traits import Limits, Traits, described, reply_error
from .bridge import BREAKS, ENDS, BackendLost, close_at_fork
from .sharing import runs
from .transactions import SCRIPT_RIGHTS, StatusReply, Steps, TouchedTooOften, Words

# The errors of our own begin with one of these.
NEEDS, TOUCHED = "NEEDSSCRIPTS", "TOUCHED"
OWN = ENDS, BREAKS, NEEDS, TOUCHED

NEEDED = (
    f"it runs no scripts for this user, and {FAMILY} need them; give the user the rights {SCRIPT_RIGHTS}, or use plain "
    "and fenced locks"
)

# The most commands that leave together: their replies stay far below the limits of a handshake.
TOGETHER = 128

# Milliseconds for which a silent server may delay the end of a bridge after the client has closed the connection: the
# last releases may still be answered.
LINGER_MS = 1000

_ROOM = 65536
_NOTHING = object()
_WOULD_BLOCK = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class TraitsWithoutScripts(Traits):
    scripts = False

    @staticmethod
    def reply_error(text: str, login: bool = False) -> Exception:
        word, _, rest = text.partition(" ")
        if word == NEEDS:
            return MasterRefused(rest)
        if word == BREAKS:
            return ConnectionResetError(rest)
        if word == ENDS:
            return ConnectionError(rest)
        return redis_errors.ResponseError(rest) if word == TOUCHED else reply_error(text, login)

    def ends(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


class ErrorReply(Exception):
    """An error reply of the server, with its text."""


class Transactor:
    """The backend of a bridge that leads to a server without scripts. It owns the connection after the handshake."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        self._address = address
        self._reader = Reader(notEnoughData=_NOTHING, replyError=ErrorReply)
        self._limits = Limits()
        self._changed: list[bytes | None] = []
        # The second one is used while the server owes a reply.
        self._idle, self._busy = select.poll(), select.poll()
        self._idle.register(sock, select.POLLIN)
        self._busy.register(sock, select.POLLIN)
        # The bridge's end of the connection to the engine; and whether the engine has left.
        self._engine: socket.socket | None = None
        self._left = False
        sock.setblocking(False)
        close_at_fork(sock)

    # --- the bridge --------------------------------------------------------------------------------

    def wait(self, sock: socket.socket) -> None:
        if self._engine is None:
            self._engine = sock
            self._idle.register(sock, select.POLLIN)
            # Only the end of the connection is reported.
            self._busy.register(sock, 0)
        ready = [descriptor for descriptor, _ in self._idle.poll()]
        # The server first: a flush must be reported before the votes that follow.
        if self._sock.fileno() in ready:
            self._limits.forgive()
            self._receive()
            for push in self._parsed():
                self._changed += _keys_of(push, self._address)

    def changes(self) -> Iterable[bytes | None]:
        changed, self._changed = self._changed, []
        return changed

    def answers(self, commands: list[Words]) -> Iterator[bytes]:
        for run, steps in runs(commands, TOGETHER):
            yield from self._pass(run) if steps is None else self._perform(steps)

    def close(self) -> None:
        self._sock.close()

    # --- commands ----------------------------------------------------------------------------------

    def _pass(self, commands: list[Words]) -> Iterator[bytes]:
        for replies in self._exchange(commands):
            yield b"".join([encode(reply) for reply in replies])

    def _perform(self, steps: Steps) -> Iterator[bytes]:
        replies: list[Any] | None = None
        while True:
            try:
                batch = next(steps) if replies is None else steps.send(replies)
            except StopIteration as ended:
                yield b"".join([self._ended(reply) for reply in ended.value])
                return
            replies = []
            for came in self._exchange(batch):
                yield from [encode(reply) for reply in came if isinstance(reply, PushNotification)]
                replies += [reply for reply in came if not isinstance(reply, PushNotification)]

    def _ended(self, reply: Any) -> bytes:
        if isinstance(reply, ConnectionError):
            raise BackendLost(f"{self._address}: {reply}; the connection was closed")
        if isinstance(reply, MasterRefused):
            return b"-%b %b\r\n" % (NEEDS.encode(), NEEDED.encode())
        if isinstance(reply, TouchedTooOften):
            return b"-%b %b\r\n" % (TOUCHED.encode(), str(reply).encode())
        return encode(reply)

    # --- the connection ----------------------------------------------------------------------------

    def _exchange(self, commands: list[Words]) -> Iterator[list[Any]]:
        self._limits.forgive()
        unsent = memoryview(b"".join([pack(*words) for words in commands]))
        missing = len(commands)
        while missing:
            unsent = self._send(unsent)
            self._await(bool(unsent))
            self._receive()
            came = list(self._parsed())
            missing -= sum([not isinstance(reply, PushNotification) for reply in came])
            if missing < 0:
                raise BackendLost(f"{self._address} answered with more replies than commands")
            if came:
                yield came

    def _send(self, data: memoryview) -> memoryview:
        if not data:
            return data
        try:
            return data[self._sock.send(data) :]
        except _WOULD_BLOCK:
            return data
        except OSError as error:
            raise BackendLost(str(error), breaks=True) from error

    def _await(self, unsent: bool) -> None:
        """Wait until the server can be read or takes more bytes, but not indefinitely once the engine has left."""
        server = self._sock.fileno()
        if unsent:
            self._busy.modify(server, select.POLLIN | select.POLLOUT)
        while True:
            ready = [descriptor for descriptor, _ in self._busy.poll(LINGER_MS if self._left else None)]
            if server in ready:
                break
            if not ready:
                raise BackendLost("the client has closed the connection, and the server is silent")
            self._left = True
            assert self._engine is not None
            self._busy.unregister(self._engine)
        if unsent:
            self._busy.modify(server, select.POLLIN)

    def _receive(self) -> None:
        while True:
            try:
                data = self._sock.recv(_ROOM)
            except _WOULD_BLOCK:
                return
            except OSError as error:
                raise BackendLost(str(error), breaks=True) from error
            if not data:
                raise BackendLost(CLOSED, breaks=True)
            try:
                self._limits.check(data)
            except MasterRefused as error:
                raise BackendLost(f"{self._address}: {error}") from error
            self._reader.feed(data)
            if len(data) < _ROOM and not isinstance(self._sock, ssl.SSLSocket):
                return

    def _parsed(self) -> Iterator[Any]:
        while True:
            try:
                reply = self._reader.gets()
            except HiredisError as error:
                raise BackendLost(f"{self._address} answered what is no RESP") from error
            if reply is _NOTHING:
                return
            yield reply


def encode(reply: Any) -> bytes:
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, Exception):
        text = str(reply)
        # An error of the server must not look like one of ours.
        return b"-%b%b\r\n" % (b"ERR " if text.partition(" ")[0] in OWN else b"", text.encode(errors="replace"))
    if isinstance(reply, bytes):
        # hiredis does not say whether bytes were a status. Of the commands that pass, only OK is one.
        is_line = isinstance(reply, StatusReply) or reply == b"OK"
        return b"+%b\r\n" % reply if is_line else b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, list):
        kind = b">" if isinstance(reply, PushNotification) else b"*"
        return b"%b%d\r\n%b" % (kind, len(reply), b"".join([encode(each) for each in reply]))
    # No command of ours has another reply than a whole number: the engine closes the connection.
    return b":%d\r\n" % reply if type(reply) is int else b"*0\r\n"


def _keys_of(push: Any, address: str) -> list[bytes | None]:
    if isinstance(push, PushNotification) and len(push) == 2 and push[0] == b"invalidate":
        if push[1] is None:
            return [None]
        if isinstance(push[1], list) and all([isinstance(key, bytes) for key in push[1]]):
            return list(push[1])
    raise BackendLost(f"{address} answered with {described(push)}, a reply to no command")
