"""The subscription to `+switch-master` at one sentinel.

A sentinel may be wrong, or send without end. So it is read in small pieces with a rest after each, which bounds the
time and memory that it costs and delays no other sentinel. Connecting may block for long, as in a DNS look-up, so it
has a thread of its own.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from hiredis import HiredisError, Reader
from redis.exceptions import RedisError

from ...errors import MasterRefused
from ...masters.server import Server
from ...votes.commands import pack
from ...votes.redaction import shown
from ..helper_threads import start_thread
from ..server_traits import Limits, reply_error
from .conversation import Conversation, seconds
from .sentinels import TIMEOUT, login_to

logger = logging.getLogger("redlatch")

CHANNEL = b"+switch-master"

# A sentinel is asked for a sign of life after so many silent seconds, and is gone after as many more.
SILENCE = 5.0

# Seconds between two tries to subscribe.
PAUSE = 1.0

# The most bytes of one read, and the seconds of rest after it. The longest TLS record has as many, so that no part of
# one stays behind where poll() does not see it.
PIECE, REST = 16384, 0.05

# One sentinel can make the thread ask all of them BURST times at once, and then once in PERIOD seconds.
BURST, PERIOD = 4, 1.0

_NOTHING = object()


class Allowance:
    """A limit for questions; the next one is allowed at `due`."""

    def __init__(self) -> None:
        self.due = -math.inf

    def spend(self, now: float) -> None:
        self.due = max(self.due, now - (BURST - 1) * PERIOD) + PERIOD


class Subscribing:
    """A thread that connects to one sentinel and subscribes. It ends when the network lets it.

    Attributes:
        done: a socket that can be read as soon as the thread is ready.
    """

    def __init__(self, sentinel: Server) -> None:
        self._outcome: deque[socket.socket | BaseException] = deque()
        self._abandoned = False
        self.done, self._told = socket.socketpair()
        try:
            start_thread("subscr", self._run, sentinel)
        except BaseException:
            self.abandon()
            raise

    def take(self) -> socket.socket:
        self.done.close()
        outcome = self._outcome.popleft()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def abandon(self) -> None:
        """Have the connection closed, whenever it is made. In a forked child, close the child's copies."""
        # Before the look at the outcome: the thread looks at both in the other order.
        self._abandoned = True
        self.done.close()
        self._told.close()
        self._drop()

    def _run(self, sentinel: Server) -> None:
        try:
            self._outcome.append(_subscribed(sentinel))
        except BaseException as error:
            # A user's credential provider may raise SystemExit.
            self._outcome.append(error)
        if self._abandoned:
            self._drop()
        self._told.close()

    def _drop(self) -> None:
        while self._outcome:
            try:
                outcome = self._outcome.popleft()
            except IndexError:
                # The other thread has dropped it.
                return
            if isinstance(outcome, socket.socket):
                outcome.close()


def _subscribed(sentinel: Server) -> socket.socket:
    """Connect and subscribe. The reply is read with the messages, since one may follow it at once."""
    login = login_to(sentinel)
    sock = sentinel.connect(TIMEOUT)
    try:
        if login:
            [reply] = Conversation(sock, TIMEOUT).ask(login, 1)
            if isinstance(reply, Exception):
                raise reply
        sock.sendall(pack(b"SUBSCRIBE", CHANNEL))
        sock.setblocking(False)
        return sock
    except BaseException:
        sock.close()
        raise


class Subscription:
    """The subscription at one sentinel.

    Attributes:
        due: when something is to be done: connect, ask for a sign of life, or close. By `conversation.seconds`.
        rests: until when it must not be read.
        news: True if the subscription has begun or brought an announcement, so that the sentinels are asked.
    """

    def __init__(self, sentinel: Server) -> None:
        self.sentinel = sentinel
        self.sock: socket.socket | None = None
        self.subscribing: Subscribing | None = None
        self.due = self.rests = 0.0
        self.news = False
        self.allowance = Allowance()
        self._asked = False
        self._lost = False
        self._reader: Reader
        self._limits: Limits

    def attend(self, now: float) -> None:
        if now < self.due:
            return
        if self.sock is None:
            self._begin()
        elif self._asked:
            self.fail(TimeoutError("no sign of life"))
        else:
            self._asked = True
            self.due = now + SILENCE
            self._try(lambda sock: sock.sendall(pack(b"PING")))

    def source(self) -> socket.socket | None:
        """Return what to wait for before `messages` is called."""
        return self.sock if self.subscribing is None else self.subscribing.done

    def messages(self) -> list[Any]:
        """Return the messages on the channel that the next piece completes."""
        if self.subscribing is not None:
            self._adopt(self.subscribing)
            return []
        came: list[Any] = []
        self._try(lambda sock: self._receive(sock, came))
        self._asked = False
        now = seconds()
        self.rests = now + REST
        self.due = max(self.due, now + SILENCE) if self.sock is not None else self.due
        return came

    def close(self) -> None:
        subscribing, self.subscribing = self.subscribing, None
        if subscribing is not None:
            subscribing.abandon()
        sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()

    def fail(self, error: BaseException) -> None:
        self.close()
        self.due = seconds() + PAUSE
        if not self._lost:
            self._lost = True
            logger.info(
                "sentinel %s announces nothing: %s", self.sentinel.address, shown(error) or type(error).__name__
            )

    def _begin(self) -> None:
        try:
            self.subscribing = Subscribing(self.sentinel)
        except (OSError, RuntimeError) as error:
            self.fail(error)
        else:
            self.due = math.inf

    def _adopt(self, subscribing: Subscribing) -> None:
        self.subscribing = None
        try:
            self.sock = subscribing.take()
        except BaseException as error:
            self.fail(error)
            return
        self._reader, self._limits = Reader(notEnoughData=_NOTHING, replyError=reply_error), Limits()
        self._asked = False
        self.due = seconds() + SILENCE

    def _try(self, use: Callable[[socket.socket], None]) -> None:
        if self.sock is not None:
            try:
                use(self.sock)
            except (OSError, HiredisError, RedisError, MasterRefused) as error:
                self.fail(error)

    def _receive(self, sock: socket.socket, came: list[Any]) -> None:
        try:
            data = sock.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._limits.check(data)
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOTHING:
            if isinstance(reply, Exception):
                raise reply
            self._lost = False
            self.news = self.news or (isinstance(reply, list) and reply[:1] == [b"subscribe"])
            if isinstance(reply, list) and len(reply) == 3 and reply[:2] == [b"message", CHANNEL]:
                came.append(reply[2])
        if not self._reader.has_data():
            self._limits = Limits()
