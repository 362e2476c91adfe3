"""Dialling: a socket, a handshake in one round trip, and again with back-off while a master is down.

Dialling is blocking code in a short-lived thread of its own for both faces, off the hot path; what it
hands over is a non-blocking socket whose server is known.

Longer than a module should be, so that the handshake and the code that repeats it stand in one text.
"""

from __future__ import annotations

import _thread
import codecs
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import redis.exceptions as redis_errors
from hiredis import HiredisError, PushNotification, Reader

from ..config import Master
from ..errors import MasterRefused
from ..protocol import family_scripts, scripts
from ..protocol.commands import FULL_TEXT, Note, pack
from ..protocol.policy import UNBOUNDED
from ..protocol.said import said_of_login, shown
from ..protocol.sighting import BACKLOG_MS, Errand, Sighting
from .limits import Limits
from .net import now_ns
from .traits import Traits, reply_error

# getaddrinfo imports this codec at its first use, in a dialling thread; a child that was forked off meanwhile would
# find the lock of that import taken for ever.
codecs.lookup("idna")

CLIENT_NAME = b"redlatch"
SCRIPTS = scripts.ALL + family_scripts.ALL

# Seconds between two tries to reach a master that is down: jittered, doubling from the first to the last.
# A second at most, so that a master is back in use within about a second of its return.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

_NOTHING = object()

# No clock shows more, since 1970.
MOST_SECONDS = 1 << 40


def longer(pause: float) -> float:
    """Return the pause after one more failed try, in seconds, before jitter."""
    return min(LONGEST_PAUSE, max(FIRST_PAUSE, pause * 2))


class Connection:
    """A connection that is ready for commands: a non-blocking socket and its server's traits."""

    def __init__(self, sock: socket.socket, traits: Traits) -> None:
        self.sock = sock
        self.traits = traits


def dial(master: Master, timeout: float, tracking: bool = True, errand: Errand | None = None) -> Connection:
    """Connect to a master and shake hands within about `timeout` seconds each.

    Args:
        tracking: whether it is to say when a key that was looked at has changed (RESP3 only).
        errand: what to do about its marker; None where there is no guard.

    Raises:
        OSError, redis.exceptions.RedisError, MasterRefused: why it has no vote.
    """
    refusal = ""
    try:
        sock = master.connect(timeout)
    except (redis_errors.ResponseError, redis_errors.AuthenticationError) as error:
        refusal = said_of_login(str(error))
    if refusal:  # a Sentinel's reply may repeat its password, so the new error must not refer to the old one
        raise redis_errors.ResponseError(refusal)
    try:
        traits = _shake_hands(_Talk(sock, timeout), master, tracking, errand)
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
            if isinstance(reply, PushNotification):  # the marker may be older than the flush that it tells of
                raise ConnectionResetError("the server was flushed during the handshake")
            if reply is not _NOTHING:
                replies.append(reply)
                self.logins[0] -= 1
                continue
            self.sock.settimeout(max(0.001, self.until - time.monotonic()))
            data = self.sock.recv(65536)
            if not data:
                if replies and isinstance(replies[0], Exception):  # such as "max number of clients reached"
                    raise replies[0]
                raise ConnectionResetError("the server closed the connection during the handshake")
            self.limits.check(data)
            self.reader.feed(data)
        if self.reader.has_data():
            raise ConnectionResetError("the server said more than it was asked in the handshake")
        return replies


def _error_reply(logins: list[int], text: str) -> Exception:
    return reply_error(text, login=logins[0] > 0)


def _shake_hands(talk: _Talk, master: Master, tracking: bool, errand: Errand | None) -> Traits:
    """Say hello, log in, choose the database, load the scripts and ask who is there, in one round trip.

    A server that does not know HELLO (Redis 5, some proxies) gets a second one in RESP2.
    """
    credentials = master.credentials()
    introduction = _introduction(master, tracking, errand)
    user = ("default", *credentials) if len(credentials) == 1 else credentials
    hello, *rest = talk.ask([pack("HELLO", 3, *(("AUTH", *user) if user else ())), *introduction], 1 if user else 0)
    protocol = 3
    if isinstance(hello, Exception):
        # A server that keeps its commands from strangers answers NOAUTH to an unknown one, and to HELLO with
        # credentials only if that is unknown.
        if not str(hello).startswith(("ERR", "NOPROTO", "NOAUTH") if credentials else ("ERR", "NOPROTO")):
            raise hello
        protocol = 2
        login = [pack(b"AUTH", *credentials)] if credentials else []
        answers = talk.ask([*login, *introduction], len(login))
        for answer in answers[: len(login)]:
            _insist(answer)
        rest = answers[len(login) :]
    backlog_ms = BACKLOG_MS if errand is None else _backlog_ms(rest.pop())
    server_us, marker = _guarded(rest, errand)
    traits, info = _traits_of(rest, master, protocol, tracking, errand is not None)
    if errand is not None:
        identity = f"{traits.run_id} {info.get('master_replid', '')}".strip()
        traits.sighting = Sighting(
            *(identity, marker, server_us, talk.sent_ns, now_ns()),
            persists=info.get("aof_enabled") == "1",
            promoted=bool(info.get("master_replid2", "0").strip("0")),
            backlog_ms=backlog_ms,
        )
    return traits


def _introduction(master: Master, tracking: bool, errand: Errand | None) -> list[bytes]:
    select = [pack(b"SELECT", master.db)] if master.db else []
    load = [pack(b"SCRIPT", b"LOAD", script.text) for script in SCRIPTS]
    return [
        *select,
        pack(b"CLIENT", b"SETNAME", CLIENT_NAME),
        *_tracking(tracking or errand is not None),  # the guard wants to know when it is flushed
        *load,
        pack(b"INFO", b"server"),
        pack(b"INFO", b"replication"),
        pack(b"INFO", b"memory"),
        *([] if errand is None else _asking_for(errand)),
    ]


def _asking_for(errand: Errand) -> list[bytes]:
    """Ask what the guard wants to know, and write a marker where it was told to."""
    asked = [pack(b"INFO", b"persistence")]
    if errand.new:
        arguments = errand.old, errand.new, errand.kept_ms, errand.made_us
        asked.append(pack(b"EVAL", scripts.MARK.text, scripts.MARK.keys, errand.key, *arguments))
    return [*asked, pack(b"GET", errand.key), pack(b"TIME"), pack(b"CONFIG", b"GET", b"repl-backlog-ttl")]


def _backlog_ms(reply: Any) -> int:
    """Return for how long a master remembers that it was a replica; the default of servers if it does not say."""
    words = [word for pair in reply.items() for word in pair] if isinstance(reply, dict) else reply
    if not isinstance(words, list) or len(words) != 2 or not isinstance(words[1], bytes) or not words[1].isdigit():
        return BACKLOG_MS
    return min(int(words[1]) * 1000, UNBOUNDED) or UNBOUNDED  # 0 means for ever


def _guarded(replies: list[Any], errand: Errand | None) -> tuple[int, bytes | None]:
    """Remove the replies about the guard's marker from the end; return the server's clock and the marker."""
    if errand is None:
        return 0, None
    clock, marker = replies.pop(), replies.pop()
    for answer in (clock, marker, *([replies.pop()] if errand.new else [])):
        if isinstance(answer, redis_errors.NoPermissionError):
            raise MasterRefused(
                f"the guard needs the rights to GET and EVAL with the key {errand.key!r} (which begins with the "
                f"client's prefix), and to TIME; or the client guard=None: {answer}"
            )
        if not isinstance(answer, redis_errors.ReadOnlyError):  # a replica is refused for its role
            _insist(answer)
    if not isinstance(marker, (bytes, type(None))):
        raise MasterRefused(f"GET of the marker was answered with {type(marker).__name__}")
    try:
        seconds, microseconds = map(int, clock if isinstance(clock, list) else ())
    except (TypeError, ValueError):
        raise MasterRefused(f"TIME was answered with {type(clock).__name__}, and not with two numbers") from None
    if not 0 <= seconds < MOST_SECONDS:
        raise MasterRefused(f"TIME was answered with {shown(seconds)} seconds")
    return seconds * 1_000_000 + microseconds, marker


def _tracking(wanted: bool) -> list[bytes]:
    """Have only those keys tracked that are noted one by one: a script reads many that nobody waits for.

    Whether that is allowed is tried at once.
    """
    if not wanted:
        return [pack(b"CLIENT", b"TRACKING", b"OFF")]
    return [pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"), Note().payload(FULL_TEXT)]


def _traits_of(
    replies: list[Any], master: Master, protocol: int, tracking: bool, guarded: bool
) -> tuple[Traits, dict[str, str]]:
    """Return the server's traits, and what INFO has said."""
    if master.db:
        _insist(replies.pop(0))
    replies.pop(0)  # a connection without a name works as well
    pushes = tracking and protocol == 3
    for _ in _tracking(tracking or guarded):
        pushes = replies.pop(0) == b"OK" and pushes
    for _ in SCRIPTS:  # where loading is not allowed the full text may be; a server that starts is no master yet
        answer = replies.pop(0)
        if isinstance(answer, redis_errors.BusyLoadingError):
            raise answer
    info: dict[str, str] = {}
    for answer in replies:
        _insist(answer)
        if not isinstance(answer, bytes):
            raise MasterRefused(f"{master.address} answered INFO with {type(answer).__name__}")
        for line in answer.decode(errors="replace").splitlines():
            field, _, value = line.partition(":")
            info[field] = value
    return Traits(info, protocol, pushes), info


def _insist(answer: Any) -> None:
    if isinstance(answer, Exception):
        raise answer


class Dialler:
    """Dials masters that have no connection, each in a thread of its own that ends when it is reached.

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

    def start(self, index: int, pause: float = 0.0, errand: Errand | None = None) -> None:
        """Begin to dial master `index`, after `pause` seconds; `errand` as for `dial`."""
        if not self._closed:
            self._process = os.getpid()
            # Not threading.Thread, whose start() waits on an Event: Ctrl-C there may leave the Event locked.
            _thread.start_new_thread(self._run, (index, pause, errand))

    def close(self) -> None:
        """Have every dialling thread end after its current try; harmless when repeated.

        In a forked child this only sets a flag. The child has no dialling threads, and a lock that a thread of the
        parent was using at the fork may never be released there.
        """
        self._closed = True
        if self._process == os.getpid():
            for pause in list(self._pauses):
                _release(pause)

    def _run(self, index: int, seconds: float, errand: Errand | None) -> None:
        pause = _thread.allocate_lock()
        pause.acquire()
        self._pauses.append(pause)  # before the check: either we see that it is closed, or `close` sees this lock
        done = False
        try:
            while not done:
                if not self._closed:
                    pause.acquire(timeout=seconds * random.uniform(0.5, 1.0))
                done = self._closed or self._try(index, errand)
                errand = errand and errand.reading()  # what it was to write may be true no more
                seconds = longer(seconds)
        finally:
            self._pauses.remove(pause)
            if not done:  # an unexpected exception ends this thread: start another one for this master
                self.start(index, longer(seconds), errand)

    def _try(self, index: int, errand: Errand | None) -> bool:
        """Dial once; tell whether the master was reached. Report any failure as that master's cause."""
        try:
            connection = dial(self._masters[index], self._timeout, self._tracking, errand)
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
