"""A blocking conversation with a server, before a driver owns the connection. It trusts no reply."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from hiredis import HiredisError, PushNotification, Reader

from ...errors import MasterRefused
from ...votes.redaction import shown
from ...votes.units import SECOND
from ..engine.net import now_ns
from ..server_traits import Limits, reply_error

_NOTHING = object()


def seconds() -> float:
    """Return the time. Tests freeze the clocks of `time`, not this one."""
    return now_ns() / SECOND


class Conversation:
    """Sends commands and reads one reply for each, within `timeout` seconds. The caller closes the socket."""

    def __init__(self, sock: socket.socket, timeout: float, limits: Limits | None = None) -> None:
        self.sock = sock
        self.until = seconds() + timeout
        # So many of the next replies answer commands with credentials.
        self.logins = [0]
        self.reader = Reader(notEnoughData=_NOTHING, replyError=partial(_error_reply, self.logins))
        self.limits = limits or Limits()
        self.sent_ns = 0

    def ask(self, commands: list[bytes], logins: int = 0) -> list[Any]:
        """Send commands and return the reply to each; an error reply is an exception among them.

        Args:
            logins: how many of the commands, from the first on, carry credentials. Errors must not repeat them.

        Raises:
            OSError: the connection broke, or the time is over.
            MasterRefused: the answers are no RESP, or they are too long.
        """
        self.logins[0] = logins
        self.sock.settimeout(max(0.001, self.until - seconds()))
        self.sent_ns = now_ns()
        self.sock.sendall(b"".join(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            try:
                reply = self.reader.gets()
            except HiredisError as error:
                raise MasterRefused(f"the answer is no RESP: {shown(error)}") from None
            # The replies so far may describe what the flush has removed.
            if isinstance(reply, PushNotification):
                raise ConnectionResetError("the server was flushed during the handshake")
            if reply is not _NOTHING:
                replies.append(reply)
                self.logins[0] -= 1
                continue
            self.sock.settimeout(max(0.001, self.until - seconds()))
            data = self.sock.recv(65536)
            if not data:
                # Such as "max number of clients reached".
                if replies and isinstance(replies[0], Exception):
                    raise replies[0]
                raise ConnectionResetError("the server closed the connection during the handshake")
            self.limits.check(data)
            self.reader.feed(data)
        if self.reader.has_data():
            raise ConnectionResetError("the server said more than it was asked in the handshake")
        return replies


def _error_reply(logins: list[int], text: str) -> Exception:
    return reply_error(text, login=logins[0] > 0)
