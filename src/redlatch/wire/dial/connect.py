"""Dialling: connect to a master and shake hands in one round trip; try again with back-off while the master is down.

Dialling blocks, so both drivers do it in short-lived threads.
"""

from __future__ import annotations

import _thread
import codecs
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import redis.exceptions as redis_errors
from redis.sentinel import MasterNotFoundError

from ...errors import MasterRefused
from ...masters.cluster import Cluster
from ...masters.master import Found, Master
from ...masters.server import address_of, whole_cluster
from ...votes.commands import FULL_TEXT, Note, pack
from ...votes.units import SECOND
from ..bridge.bridge import open_bridge
from ..bridge.scriptless import TraitsWithoutScripts, Transactor
from ..engine.net import now_ns
from ..helper_threads import start_thread
from ..server_traits import Traits
from .conversation import Conversation
from .scripting import Scripts, ask_without_scripts, preparing, refuses_eval, uses_scripts
from .sentinels import find_master
from .topology import TopologyReader

# getaddrinfo imports this codec at its first use. If a dialling thread did that during a fork, the child would never
# get the lock of that import.
codecs.lookup("idna")

CLIENT_NAME = b"redlatch"

# Seconds between two tries: jittered, and doubling. A master is in use again about a second after it is back.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

# For SOON seconds after a connection broke, the longest pause is shorter. A restarted master is usually back by then,
# and the guard must learn from the other masters which ttl is in use before one of them fails.
SOON, LONGEST_PAUSE_SOON = 3.0, 0.15


def longer(pause: float) -> float:
    return min(LONGEST_PAUSE, max(FIRST_PAUSE, pause * 2))


class Connection:
    """A non-blocking socket that is ready for commands, and its server's traits."""

    def __init__(self, sock: socket.socket, traits: Traits, found: Found | None = None) -> None:
        self.sock = sock
        self.traits = traits
        self.found = found


class HandshakeExtension(Protocol):
    """Further commands of a handshake, and the report that their replies become (`Traits.report`).

    They are sent in the same round trip. A connection with an extension always has tracking on, so that the server
    pushes when it was flushed.
    """

    @property
    def info_sections(self) -> tuple[bytes, ...]: ...

    def commands(self) -> list[bytes]: ...

    def read(self, replies: list[Any]) -> Any:
        """Return what the replies to the commands say, or raise why the master has no vote."""

    def report(self, found: Any, info: Mapping[str, str], sent_ns: int, came_ns: int) -> Any:
        """Return the report: `found` is what `read` has returned, `info` the fields of INFO."""

    def repeated(self) -> HandshakeExtension:
        """Return the extension for another try with the same master."""


def dial(
    master: Master,
    timeout: float,
    tracking: bool = True,
    extension: HandshakeExtension | None = None,
    scripts: Scripts = "auto",
    synced: bool = False,
) -> Connection:
    """Connect to a master and shake hands within about `timeout` seconds each.

    Raises:
        OSError, redis.exceptions.RedisError, MasterRefused: why the master has no vote.
    """
    found = None if master.group is None else find_master(master.group)
    sock = master.connect(timeout) if found is None else master.connect_at(found.address, timeout)
    try:
        conversation = Conversation(sock, timeout)
        traits = _shake_hands(conversation, master, tracking, extension, scripts)
        if traits.role != "master":
            raise _wrong_role(master, traits.role, found)
        if not traits.run_id:
            raise MasterRefused(f"{master.address} does not tell its run_id (INFO server); masters must be told apart")
        if synced:
            _check_wait(conversation, master, traits)
        if not traits.scripts:
            backend = Transactor(sock, master.address)
            return Connection(open_bridge(lambda: backend, timeout)[0], traits, found)
        sock.setblocking(False)
        return Connection(sock, traits, found)
    except BaseException:
        sock.close()
        raise


def _check_wait(conversation: Conversation, master: Master, traits: Traits) -> None:
    (answer,) = conversation.ask([pack(b"WAIT", 0, 1)]) if traits.scripts else (None,)
    if not isinstance(answer, int):
        why = f": {answer}" if isinstance(answer, Exception) else ""
        raise MasterRefused(f"{master.address} cannot wait for its replicas (WAIT), which synced needs{why}")


def _wrong_role(master: Master, role: str, found: Found | None) -> Exception:
    if master.in_cluster:
        # The topology is read again.
        return MasterNotFoundError(f"{master.address} is a {role} of its cluster now")
    if found is None:
        return MasterRefused(f"{master.address} is a {role}, not a master; give its master instead")
    # Not a MasterRefused, which would refuse the client's list of masters: the sentinels name another one soon.
    where = address_of(*found.address)
    return MasterNotFoundError(f"{where}, which the sentinels of {master.address} name, is a {role}, not a master yet")


def _shake_hands(
    conversation: Conversation, master: Master, tracking: bool, extension: HandshakeExtension | None, scripts: Scripts
) -> Traits:
    """Say hello, log in, select the database, load the scripts and ask which server it is, in one round trip.

    A server without HELLO (Redis 5, some proxies) or without scripts costs a second round trip.
    """
    further = [] if extension is None else extension.commands()
    sections = () if extension is None else extension.info_sections
    tracked = tracking or extension is not None
    own, prepared = _introduction(master, tracked, sections), preparing(scripts)
    # Without scripts, the extension's commands come afterwards.
    behind = [] if scripts == "watch" else further
    protocol, replies = _greet(conversation, master, [*own, *prepared, *behind])
    said, replies = replies[: len(own)], replies[len(own) :]
    found, answers = replies[: len(prepared)], replies[len(prepared) :]
    info, pushes = _info_of(said, master, tracked)
    # Loading may be forbidden, since the full text may be sent instead. A server that is starting is no master yet.
    for answer in found:
        if isinstance(answer, redis_errors.BusyLoadingError):
            raise answer
    by_scripts = uses_scripts(conversation, scripts, master.address, found)
    if further and (not by_scripts or refuses_eval(scripts, found)):
        answers = ask_without_scripts(conversation, further)
    kind = Traits if by_scripts else TraitsWithoutScripts
    traits = kind(info, protocol, tracking and protocol == 3 and pushes)
    if extension is not None:
        traits.report = extension.report(extension.read(answers), info, conversation.sent_ns, now_ns())
    return traits


def _greet(conversation: Conversation, master: Master, commands: list[bytes]) -> tuple[int, list[Any]]:
    credentials = master.credentials()
    if master.resp2:
        return 2, _log_in(conversation, credentials, commands)
    user = ("default", *credentials) if len(credentials) == 1 else credentials
    hello, *rest = conversation.ask([pack("HELLO", 3, *(("AUTH", *user) if user else ())), *commands], 1 if user else 0)
    if not isinstance(hello, Exception):
        return 3, rest
    # Some servers answer NOAUTH to unknown commands before the login. To HELLO with credentials they answer so only
    # if they do not know HELLO.
    if not str(hello).startswith(("ERR", "NOPROTO", "NOAUTH") if credentials else ("ERR", "NOPROTO")):
        raise hello
    return 2, _log_in(conversation, credentials, commands)


def _log_in(conversation: Conversation, credentials: tuple[str | bytes, ...], commands: list[bytes]) -> list[Any]:
    login = [pack(b"AUTH", *credentials)] if credentials else []
    answers = conversation.ask([*login, *commands], len(login))
    for answer in answers[: len(login)]:
        _raise_error(answer)
    return answers[len(login) :]


def _introduction(master: Master, tracked: bool, sections: tuple[bytes, ...]) -> list[bytes]:
    select = [pack(b"SELECT", master.db)] if master.db else []
    return [
        *select,
        pack(b"CLIENT", b"SETNAME", master.client_name or CLIENT_NAME),
        *_tracking(tracked),
        *[pack(b"INFO", section) for section in (b"server", b"replication", b"cluster", b"memory", *sections)],
    ]


def _tracking(wanted: bool) -> list[bytes]:
    """Switch tracking on or off, and try at once whether it is allowed.

    The server tracks only keys that are noted one by one, since scripts read many keys that no caller waits for.
    """
    if not wanted:
        return [pack(b"CLIENT", b"TRACKING", b"OFF")]
    return [pack(b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"), Note().payload(FULL_TEXT)]


def _info_of(replies: list[Any], master: Master, tracked: bool) -> tuple[dict[str, str], bool]:
    selected = replies.pop(0) if master.db else None
    # SETNAME may fail: a connection needs no name.
    replies.pop(0)
    pushes = True
    for _ in _tracking(tracked):
        pushes = replies.pop(0) == b"OK" and pushes
    info: dict[str, str] = {}
    for answer in replies:
        _raise_error(answer)
        if not isinstance(answer, bytes):
            raise MasterRefused(f"{master.address} answered INFO with {type(answer).__name__}")
        for line in answer.decode(errors="replace").splitlines():
            field, _, value = line.partition(":")
            info[field] = value
    # A node of a cluster has no other database than 0, and an error of SELECT would say only that.
    if info.get("cluster_enabled") == "1" and not master.in_cluster:
        raise MasterRefused(f"{master.address} is a node of a cluster; {whole_cluster(master.instead)}")
    _raise_error(selected)
    return info, pushes


def _raise_error(answer: Any) -> None:
    if isinstance(answer, Exception):
        raise answer


class Dialler:
    """Dials masters, each in a thread of its own, which ends when the master is reached.

    Args:
        timeout: seconds for one connect and for one handshake.
        ready, failed: called in the dialling thread with the index and the outcome of a try.
        connect: dials once, with the arguments of `dial`, which is the default.
    """

    def __init__(
        self,
        masters: list[Master],
        timeout: float,
        ready: Callable[[int, Connection], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
        connect: Callable[[Any, float, bool, Any], Connection] | None = None,
    ) -> None:
        self._masters = masters
        self._timeout = timeout
        self._ready = ready
        self._failed = failed
        self._tracking = tracking
        self._connect = connect
        # Not the generator that the application shares, which it may have seeded.
        self._random = random.Random()
        self._closed = False
        self._forgotten: set[int] = set()
        # For each dialling thread; releasing the lock wakes it.
        self._pauses: deque[tuple[int, _thread.LockType]] = deque()
        self._process = os.getpid()

    def start(self, index: int, pause: float = 0.0, extension: HandshakeExtension | None = None) -> None:
        """Begin to dial a master after a pause in seconds; raise RuntimeError if no thread can start."""
        if not self._closed:
            self._process = os.getpid()
            start_thread("dial", self._run, index, pause, extension)

    def reader_of(self, cluster: Cluster, deliver: Callable[[int, Any], None]) -> TopologyReader:
        """Return what reads the topology of a cluster; it is closed by its owner."""
        return TopologyReader(cluster, deliver)

    def close(self) -> None:
        """Have every dialling thread end after its current try; harmless when repeated.

        The child of a fork has no dialling threads, and a lock that a thread of the parent was using may never be
        released there.
        """
        self._closed = True
        if self._process == os.getpid():
            for _, pause in list(self._pauses):
                _release(pause)

    def forget(self, index: int) -> None:
        """Have the thread that dials a master end after its current try."""
        self._forgotten.add(index)
        self.hurry(index)

    def hurry(self, index: int) -> None:
        """End the pause before the next try with a master, because there is news of it."""
        for dialled, pause in list(self._pauses):
            if dialled == index:
                _release(pause)

    def _run(self, index: int, seconds: float, extension: HandshakeExtension | None) -> None:
        pause = _thread.allocate_lock()
        pause.acquire()
        # Append before the check below: either we see that the dialler is closed, or `close` sees this lock.
        self._pauses.append((index, pause))
        done = False
        soon_ns = now_ns() + int(SOON * SECOND)
        try:
            while not done:
                hurried = not self._closed and pause.acquire(timeout=seconds * self._random.uniform(0.5, 1.0))
                done = self._closed or index in self._forgotten or self._try(index, extension)
                extension = extension and extension.repeated()
                seconds = longer(0.0 if hurried else seconds)
                if now_ns() < soon_ns:
                    seconds = min(seconds, LONGEST_PAUSE_SOON)
        finally:
            self._pauses.remove((index, pause))
            # An unexpected exception ends this thread: start another one for this master.
            if not done:
                self.start(index, longer(seconds), extension)

    def _try(self, index: int, extension: HandshakeExtension | None) -> bool:
        try:
            connect = self._connect or dial
            connection = connect(self._masters[index], self._timeout, self._tracking, extension)
        except Exception as error:
            self._failed(index, error)
            return False
        except BaseException as error:
            # A user's credential provider may raise SystemExit.
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
        # It was released already.
        pass
