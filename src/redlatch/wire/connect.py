"""Dialling: connect to a master and shake hands in one round trip; try again with back-off while the master is down.

Dialling blocks. Both faces do it in short-lived threads, off the hot path. Its result is a non-blocking
socket and what is known of the server.
"""

from __future__ import annotations

import _thread
import codecs
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import redis.exceptions as redis_errors
from hiredis import HiredisError, PushNotification, Reader

from ..config import Master
from ..errors import MasterRefused
from ..votes import family_scripts, scripts
from ..votes.commands import FULL_TEXT, Note, pack
from ..votes.said import said_of_login, shown
from .limits import Limits
from .net import now_ns
from .traits import Traits, reply_error

# getaddrinfo imports this codec at its first use. If a dialling thread did that during a fork, the child would never
# get the lock of that import.
codecs.lookup("idna")

CLIENT_NAME = b"redlatch"
SCRIPTS = scripts.ALL + family_scripts.ALL

# Seconds between two tries to reach a master that is down: jittered, and doubling from the first to the longest. The
# longest is one second, so that a master is in use again about a second after it is back.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

_NOTHING = object()


def longer(pause: float) -> float:
    """Return the pause after one more failed try, in seconds, before jitter."""
    return min(LONGEST_PAUSE, max(FIRST_PAUSE, pause * 2))


class Connection:
    """A connection that is ready for commands: a non-blocking socket and its server's traits."""

    def __init__(self, sock: socket.socket, traits: Traits) -> None:
        self.sock = sock
        self.traits = traits


class HandshakeExtension(Protocol):
    """Further commands of a handshake, and the report that their replies become (`Traits.report`).

    The driver passes it in. Its commands are sent behind our own, in the same round trip. A connection with an
    extension always has tracking on, so that the server pushes when it was flushed.
    """

    @property
    def info_sections(self) -> tuple[bytes, ...]:
        """Return which further sections of INFO are needed."""

    def commands(self) -> list[bytes]:
        """Return the commands."""

    def read(self, replies: list[Any]) -> Any:
        """Return what the replies to the commands say, or raise why the master has no vote."""

    def report(self, found: Any, info: Mapping[str, str], sent_ns: int, came_ns: int) -> Any:
        """Return the report: `found` is what `read` has returned, `info` the fields of INFO."""

    def repeated(self) -> HandshakeExtension:
        """Return the extension for another try with the same master."""


def dial(
    master: Master, timeout: float, tracking: bool = True, extension: HandshakeExtension | None = None
) -> Connection:
    """Connect to a master and shake hands within about `timeout` seconds each.

    Args:
        tracking: whether the master should push when a key that was noted has changed (RESP3 only).
        extension: further commands of the handshake; None if there are none.

    Raises:
        OSError, redis.exceptions.RedisError, MasterRefused: why the master has no vote.
    """
    refusal = ""
    try:
        sock = master.connect(timeout)
    except (redis_errors.ResponseError, redis_errors.AuthenticationError) as error:
        refusal = said_of_login(str(error))
    # A Sentinel's reply may repeat its password, so the new error must not refer to the old one.
    if refusal:
        raise redis_errors.ResponseError(refusal)
    try:
        traits = _shake_hands(_Talk(sock, timeout), master, tracking, extension)
        if traits.role != "master":
            raise MasterRefused(f"{master.address} is a {traits.role}, not a master; give its master instead")
        if not traits.run_id:
            raise MasterRefused(f"{master.address} does not tell its run_id (INFO server); masters must be told apart")
        sock.setblocking(False)
        return Connection(sock, traits)
    except BaseException:
        sock.close()
        raise


class _Talk:
    """A blocking conversation: commands out in one send, one reply for each."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.sock = sock
        self.until = time.monotonic() + timeout
        self.logins = [0]  # how many of the next replies answer commands that carry credentials
        self.reader = Reader(notEnoughData=_NOTHING, replyError=partial(_error_reply, self.logins))
        self.limits = Limits()
        self.sent_ns = 0  # before the last commands left

    def ask(self, commands: list[bytes], logins: int = 0) -> list[Any]:
        """Send commands and return the reply to each; the first `logins` of them carry credentials."""
        self.logins[0] = logins
        self.sock.settimeout(max(0.001, self.until - time.monotonic()))
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
            self.sock.settimeout(max(0.001, self.until - time.monotonic()))
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


def _shake_hands(talk: _Talk, master: Master, tracking: bool, extension: HandshakeExtension | None) -> Traits:
    """Say hello, log in, select the database, load the scripts and ask which server it is, in one round trip.

    A server without HELLO (Redis 5, some proxies) costs a second round trip, in RESP2.
    """
    credentials = master.credentials()
    further = [] if extension is None else extension.commands()
    sections = () if extension is None else extension.info_sections
    tracked = tracking or extension is not None
    introduction = [*_introduction(master, tracked, sections), *further]
    user = ("default", *credentials) if len(credentials) == 1 else credentials
    hello, *rest = talk.ask([pack("HELLO", 3, *(("AUTH", *user) if user else ())), *introduction], 1 if user else 0)
    protocol = 3
    if isinstance(hello, Exception):
        # Some servers answer NOAUTH to unknown commands before the login. To HELLO with credentials they answer so only
        # if they do not know HELLO.
        if not str(hello).startswith(("ERR", "NOPROTO", "NOAUTH") if credentials else ("ERR", "NOPROTO")):
            raise hello
        protocol = 2
        login = [pack(b"AUTH", *credentials)] if credentials else []
        answers = talk.ask([*login, *introduction], len(login))
        for answer in answers[: len(login)]:
            _raise_error(answer)
        rest = answers[len(login) :]
    own, answers = rest[: len(rest) - len(further)], rest[len(rest) - len(further) :]
    found = None if extension is None else extension.read(answers)
    info, pushes = _info_of(own, master, tracked)
    traits = Traits(info, protocol, tracking and protocol == 3 and pushes)
    if extension is not None:
        traits.report = extension.report(found, info, talk.sent_ns, now_ns())
    return traits


def _introduction(master: Master, tracked: bool, sections: tuple[bytes, ...]) -> list[bytes]:
    select = [pack(b"SELECT", master.db)] if master.db else []
    load = [pack(b"SCRIPT", b"LOAD", script.text) for script in SCRIPTS]
    return [
        *select,
        pack(b"CLIENT", b"SETNAME", CLIENT_NAME),
        *_tracking(tracked),
        *load,
        *[pack(b"INFO", section) for section in (b"server", b"replication", b"memory", *sections)],
    ]


def _tracking(wanted: bool) -> list[bytes]:
    """Return the commands that switch tracking on or off, and that try at once whether it is allowed.

    The server tracks only keys that are noted one by one, since scripts read many keys that no caller waits for.
    """
    if not wanted:
        return [pack(b"CLIENT", b"TRACKING", b"OFF")]
    return [pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"), Note().payload(FULL_TEXT)]


def _info_of(replies: list[Any], master: Master, tracked: bool) -> tuple[dict[str, str], bool]:
    """Check the replies to our own commands; return the fields of INFO, and whether the server pushes changes."""
    if master.db:
        _raise_error(replies.pop(0))
    replies.pop(0)  # SETNAME may fail: a connection needs no name
    pushes = True
    for _ in _tracking(tracked):
        pushes = replies.pop(0) == b"OK" and pushes
    # Loading may be forbidden, since the full text may be sent instead. A server that is starting is no master yet.
    for _ in SCRIPTS:
        answer = replies.pop(0)
        if isinstance(answer, redis_errors.BusyLoadingError):
            raise answer
    info: dict[str, str] = {}
    for answer in replies:
        _raise_error(answer)
        if not isinstance(answer, bytes):
            raise MasterRefused(f"{master.address} answered INFO with {type(answer).__name__}")
        for line in answer.decode(errors="replace").splitlines():
            field, _, value = line.partition(":")
            info[field] = value
    return info, pushes


def _raise_error(answer: Any) -> None:
    if isinstance(answer, Exception):
        raise answer


class Dialler:
    """Dials masters that have no connection, each in a thread of its own, which ends when the master is reached.

    Args:
        masters: the masters, by index.
        timeout: seconds for one connect and for one handshake.
        ready: called in the dialling thread with (index, Connection).
        failed: called in the dialling thread with (index, exception), after every failed try.
        tracking: as for `dial`.
    """

    def __init__(
        self,
        masters: list[Master],
        timeout: float,
        ready: Callable[[int, Connection], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
    ) -> None:
        self._masters = masters
        self._timeout = timeout
        self._ready = ready
        self._failed = failed
        self._tracking = tracking
        self._closed = False
        self._pauses: deque[_thread.LockType] = deque()  # a locked lock for each dialling thread; releasing it wakes it
        self._process = os.getpid()  # a fork copies these locks, but not the threads

    def start(self, index: int, pause: float = 0.0, extension: HandshakeExtension | None = None) -> None:
        """Begin to dial master `index`, after `pause` seconds; `extension` as for `dial`."""
        if not self._closed:
            self._process = os.getpid()
            # Not threading.Thread, whose start() waits on an Event: Ctrl-C there may leave the Event locked.
            _thread.start_new_thread(self._run, (index, pause, extension))

    def close(self) -> None:
        """Have every dialling thread end after its current try; harmless when repeated.

        In a forked child this only sets a flag. The child has no dialling threads, and a lock that a thread of the
        parent was using at the fork may never be released there.
        """
        self._closed = True
        if self._process == os.getpid():
            for pause in list(self._pauses):
                _release(pause)

    def _run(self, index: int, seconds: float, extension: HandshakeExtension | None) -> None:
        pause = _thread.allocate_lock()
        pause.acquire()
        # Append before the check below: either we see that the dialler is closed, or `close` sees this lock.
        self._pauses.append(pause)
        done = False
        try:
            while not done:
                if not self._closed:
                    pause.acquire(timeout=seconds * random.uniform(0.5, 1.0))
                done = self._closed or self._try(index, extension)
                extension = extension and extension.repeated()
                seconds = longer(seconds)
        finally:
            self._pauses.remove(pause)
            # An unexpected exception ends this thread: start another one for this master.
            if not done:
                self.start(index, longer(seconds), extension)

    def _try(self, index: int, extension: HandshakeExtension | None) -> bool:
        """Dial once; return whether the master was reached. A failure becomes the cause for which it has no vote."""
        try:
            connection = dial(self._masters[index], self._timeout, self._tracking, extension)
        except Exception as error:
            self._failed(index, error)
            return False
        except BaseException as error:  # a user's credential provider may raise SystemExit, for example
            cause = RuntimeError(f"dialling was ended by {type(error).__name__}")
            cause.__cause__ = error
            self._failed(index, cause)
            return False
        self._ready(index, connection)
        return True


def _release(pause: _thread.LockType) -> None:
    try:
        pause.release()
    except RuntimeError:
        pass  # it was released already
