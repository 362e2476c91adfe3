"""WATCH, MULTI and EXEC of a model master; and the bridge of a client to a master that refuses scripts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hiredis import PushNotification, Reader

from redlatch.testing.memory.keyspace import GROWS, OK, OOM, READONLY, WRITES, Keyspace
from redlatch.testing.memory.lua import Refusal, Status
from redlatch.votes.commands import pack
from redlatch.votes.scripts import ACQUIRE_FENCED, EXTEND, RELEASE
from redlatch.wire.bridge.scriptless import NEEDED, NEEDS, TOGETHER, TOUCHED, ErrorReply, encode
from redlatch.wire.bridge.sharing import runs
from redlatch.wire.bridge.transactions import TouchedTooOften

if TYPE_CHECKING:
    from .network import Connection

NAMES = frozenset([b"watch", b"multi", b"exec", b"discard"])
ABORTED = "EXECABORT Transaction discarded because of previous errors."


class Transaction:
    """The state of one connection of a master.

    Args:
        keys: the keys of the master.
        begins: called with each command inside EXEC before it is performed.
        executed: called with each of them and its reply.

    Attributes:
        performed: the commands of the last EXEC, if it performed them.
    """

    def __init__(
        self,
        keys: Keyspace,
        begins: Callable[[list[bytes]], object],
        executed: Callable[[list[bytes], Any], object],
    ) -> None:
        self._keys = keys
        self.performed: list[list[bytes]] = []
        self._begins = begins
        self._executed = executed
        # The watched keys, and whether each existed.
        self._watched: dict[bytes, bool] = {}
        self.touched = False
        self.queued: list[list[bytes]] | None = None
        self._aborted = False

    def touch(self, key: bytes | None) -> None:
        """Record that a key has changed; None stands for a flush, which changes the keys that exist."""
        self.touched = self.touched or (any(self._watched.values()) if key is None else key in self._watched)

    def touch_any(self, exists: Callable[[bytes], bool]) -> None:
        """Record that the databases were swapped."""
        self.touched = self.touched or any(there or exists(key) for key, there in self._watched.items())

    def answer(self, words: list[bytes], loading: Refusal | None) -> Any:
        """Return the reply to a command of `NAMES`, or to any command while a transaction is open."""
        name = words[0].lower()
        if name == b"exec":
            return self._exec(loading)
        if name == b"discard":
            if self.queued is None:
                return Refusal("ERR DISCARD without MULTI")
            self._end()
            return OK
        if loading is not None:
            self._aborted = self.queued is not None
            return loading
        if name == b"multi":
            if self.queued is not None:
                return Refusal("ERR MULTI calls can not be nested")
            self.queued = []
            return OK
        if name == b"watch":
            if self.queued is not None:
                return Refusal("ERR WATCH inside MULTI is not allowed")
            for key in words[1:]:
                self._keys.expire(key)
                self._watched.setdefault(key, key in self._keys.values)
            return OK
        return self._queue(words)

    def _queue(self, words: list[bytes]) -> Any:
        assert self.queued is not None
        refusal = self._refusal([words])
        if refusal is not None:
            self._aborted = True
            return refusal
        self.queued.append(words)
        return Status("QUEUED")

    def _refusal(self, commands: list[list[bytes]]) -> Refusal | None:
        names = {words[0].lower() for words in commands}
        if self._keys.replica and names & WRITES:
            return Refusal(READONLY)
        return Refusal(OOM) if self._keys.full and names & GROWS else None

    def _exec(self, loading: Refusal | None) -> Any:
        if self.queued is None:
            return Refusal("ERR EXEC without MULTI")
        commands = self.queued
        for key in list(self._watched):
            self._keys.expire(key)  # a key that has expired counts as touched
        touched, aborted = self.touched, self._aborted or loading is not None or self._refusal(commands) is not None
        self.performed = [] if aborted or touched else commands
        self._end()
        if aborted:
            return Refusal(ABORTED)
        if touched:
            return None
        replies = []
        for words in commands:
            self._begins(words)
            reply = self._keys.execute(words)
            self._executed(words, reply)
            replies.append(reply)
        return replies

    def _end(self) -> None:
        self._watched, self.touched, self.queued, self._aborted = {}, False, None, False


class Bridge:
    """What the bridge of a client does, without a thread: one command after another on one connection.

    Args:
        connection: to the master; the client has the other end of it.

    Attributes:
        current: the calls of scripts that are performed now, or were performed last.
        ended: whether the client has closed its end.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._commands, self._replies = Reader(), Reader(replyError=ErrorReply)
        self._waiting: deque[list[bytes]] = deque()
        self._steps: Any = None
        self._got: list[Any] = []
        self._missing = 0
        self.current: list[list[bytes]] = []
        self.ended = False

    def take(self, data: bytes) -> bytes:
        """Take what the client has written; return what it gets at once."""
        self._commands.feed(data)
        while (words := self._commands.gets()) is not False:
            self._waiting.append(words)
        return self._go_on()

    def come_back(self, data: bytes) -> bytes:
        """Take what the master has sent; return what the client gets."""
        self._replies.feed(data)
        given = b""
        while (reply := self._replies.gets()) is not False:
            if isinstance(reply, PushNotification):
                given += encode(reply)
                continue
            self._missing -= 1
            if self._steps is None:
                given += encode(reply)
                continue
            self._got.append(reply)
            if not self._missing:
                given += self._step(self._got)
        return given + self._go_on()

    @property
    def performs(self) -> bool:
        """Whether a transaction is under way."""
        return self._steps is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing more to do."""
        return not self._waiting and not self._missing

    def _go_on(self) -> bytes:
        """Begin with the next commands."""
        given = b""
        while self._waiting:
            # The replies of commands that pass may still be missing when others leave.
            run, steps = next(iter(runs(list(self._waiting), TOGETHER)))
            if self._missing and (steps is not None or self._steps is not None):
                break
            for _ in run:
                self._waiting.popleft()
            if steps is None:
                self._send(run)
                continue
            self.current, self._steps = run, steps
            given += self._step(None)
        if self.ended and self.idle:
            self._connection.send(b"")
            self.ended = False
        return given

    def _step(self, replies: list[Any] | None) -> bytes:
        """Perform the next batch of the transaction; return its reply once it has ended."""
        self._got = []
        try:
            self._send(next(self._steps) if replies is None else self._steps.send(replies))
        except StopIteration as ended:
            self._steps = None
            return b"".join([_encoded(reply) for reply in ended.value])
        return b""

    def _send(self, commands: list[list[bytes]]) -> None:
        self._missing += len(commands)
        packed = [pack(*words) for words in commands]
        # Sometimes each arrives by itself, so that other clients come in between.
        apart = len(packed) > 1 and self._connection.world.chance.random() < 0.4
        for data in packed if apart else [b"".join(packed)]:
            self._connection.send(data)


def _encoded(reply: Any) -> bytes:
    if isinstance(reply, TouchedTooOften):
        return b"-%b %b\r\n" % (TOUCHED.encode(), str(reply).encode())
    if isinstance(reply, Exception) and not isinstance(reply, ErrorReply):
        return b"-%b %b\r\n" % (NEEDS.encode(), NEEDED.encode())
    return encode(reply)


def call_of(calls: list[list[bytes]], words: list[bytes]) -> list[bytes]:
    """Return the call that a command inside EXEC belongs to; an empty one if there is none."""
    found = [call for call in calls if len(words) > 1 and words[1] in call[3 : 3 + int(call[2])]]
    return found[0] if found else []


def wrong(calls: list[list[bytes]], words: list[bytes], held: bytes | None) -> str:
    """Return which rule a command inside EXEC breaks; empty if it breaks none.

    Args:
        calls: the calls of scripts that the transaction performs.
        words: the command.
        held: what its key holds when the command comes.
    """
    name, call = words[0].lower(), call_of(calls, words)
    script = call[1] if call else b""
    if name in (b"del", b"pexpire") and script in (RELEASE.sha, RELEASE.text, EXTEND.sha, EXTEND.text):
        if held != call[4]:
            return f"{name.decode()} of {words[1]!r} for {call[4]!r}, but {held!r} has it"
    if name == b"set" and script in (ACQUIRE_FENCED.sha, ACQUIRE_FENCED.text) and words[1] == call[3]:
        if held is not None:
            return f"{words[1]!r} was set for {call[5]!r}, but {held!r} has it"
    return ""
