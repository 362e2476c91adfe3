# cython: annotation_typing=True
"""Locks for many readers or one writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redlatch.errors import AlreadyHeld
from redlatch.votes import family_scripts as scripts
from redlatch.votes.kinds import READER, WRITER

from ...votes.commands import NOTHING, AskHolder, Command, Scripted
from ...votes.payloads import digits
from ..hold import Hold
from ..lease import NO_LEASE, Lease
from ..quorum import Quorum
from .watching import ALIVE_MS, WatchingKind


class ReaderOrWriter(WatchingKind):
    """The common base of readers and writers.

    Args:
        keys: those of the holders, of the writer's token, and of the waiting writers.
        holders: the holds that each thread or task has through one lock object; a weak mapping.
        owner: returns the calling thread or task.
    """

    writes = False
    declared = READER

    def __init__(self, keys: list[bytes], holders: Any, owner: Callable[[], Any]) -> None:
        super().__init__()
        self._keys = keys
        self._holders = holders
        self._owner = owner
        # Its holds. A reference to the thread or task itself would keep it alive.
        self._mine: list[Hold] = []

    def caller(self) -> Any:
        return self._owner()

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        # A coroutine that was created outside any task belongs to the task that runs it.
        if caller is None:
            caller = self._owner()
        self._mine = [] if caller is None else self._holders.setdefault(caller, [])

    def won(self, quorum: Quorum, hold: Hold) -> None:
        self._mine.append(hold)

    def end(self, hold: Hold) -> None:
        # An interrupt may have come before `won` added it.
        if hold in self._mine:
            self._mine.remove(hold)

    def _has(self, writes: bool, quorum: Quorum) -> bool:
        now = quorum.clock.now()
        return any([_writes(mine) == writes and mine.held(now) for mine in list(self._mine)])

    def locked(self, key: bytes) -> Command:
        return Scripted(key, NO_LEASE, scripts.FULL, self._keys[:1], [b"1"])

    def holder(self, key: bytes) -> Command | None:
        return self.blocker(key) if self.writes else None

    def blocker(self, key: bytes) -> Command | None:
        return AskHolder(self._keys[1], self._keys[1])


def _writes(hold: Hold) -> bool:
    kind: Any = hold.kind
    return bool(kind.writes)


class Reader(ReaderOrWriter):
    """A reader. It waits while a writer holds the lock or waits for it.

    A nested read of the same thread or task does not wait for waiting writers: they wait for the outer read. So its
    command names a key that is never written, instead of that of the waiting writers.
    """

    def __init__(self, keys: list[bytes], holders: Any, owner: Callable[[], Any]) -> None:
        super().__init__(keys, holders, owner)
        self.enters_queue = False
        self.shares = True

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        super().begin(quorum, hold, caller)
        if self._has(True, quorum):
            raise AlreadyHeld(
                f"the same thread or task holds the write lock of {hold.name!r}, and would wait for itself; "
                "read without a read lock, because the write lock excludes all others, or release it first",
                name=hold.name,
            )

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        keys = self._nested() if self._has(False, quorum) else self._keys
        arguments = [lease.token, digits(ttl_ms)]
        return Scripted(key, lease, scripts.READ_ACQUIRE, keys, arguments, undo=self.undoing(key, lease, True))

    def _nested(self) -> list[bytes]:
        return [*self._keys[:2], self._keys[0] + b"\0nested"]

    def repairing(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        # Writers that wait there wait for this reader.
        return Scripted(key, lease, scripts.READ_ACQUIRE, self._nested(), [lease.token, digits(ttl_ms)])

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        return Scripted(key, lease, scripts.READ_RELEASE, self._keys, [lease.token], NOTHING, True)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return Scripted(key, lease, scripts.READ_EXTEND, self._keys, [lease.token, digits(ttl_ms)])

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.READ_OWNED, self._keys, [lease.token])


class Writer(ReaderOrWriter):
    """A writer. It waits while another writer or any reader holds the lock. New readers wait while any writer waits."""

    writes = True
    declared = WRITER

    # The name of the waiting writer on the masters: the token of its first attempt.
    _waiter = b""
    _since_ns = 0

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        super().begin(quorum, hold, caller)
        self._waiter = b""
        self._since_ns = quorum.clock.now()
        if self._has(False, quorum):
            raise AlreadyHeld(
                f"the same thread or task holds a read lock of {hold.name!r}, and would wait for itself; "
                "a read lock cannot be upgraded, so release it first",
                name=hold.name,
            )
        if self._has(True, quorum):
            raise AlreadyHeld(
                f"the same thread or task holds the write lock of {hold.name!r}, and would wait for itself; "
                "a write lock is not re-entrant, so release it first",
                name=hold.name,
            )

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        self._waiter = self._waiter or lease.token
        arguments = [lease.token, digits(ttl_ms), ALIVE_MS, self._waiter]
        return Scripted(key, lease, scripts.WRITE_ACQUIRE, self._keys, arguments, undo=self.undoing(key, lease, True))

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        waiter = self._waiter if last else b""
        command = Scripted(key, lease, scripts.WRITE_RELEASE, self._keys, [lease.token, waiter], NOTHING, True)
        if last:
            # The first attempt may have entered this writer on some masters. So the last undo must also reach masters
            # whose connection broke after it.
            command.since_ns = self._since_ns
        return command

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return Scripted(key, lease, scripts.WRITE_EXTEND, self._keys, [lease.token, digits(ttl_ms)])

    def repairing(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        arguments = [lease.token, digits(ttl_ms), b"0", b""]
        return Scripted(key, lease, scripts.WRITE_ACQUIRE, self._keys, arguments)

    def watched(self, key: bytes) -> bytes | None:
        return self._keys[1]

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.WRITE_OWNED, self._keys, [lease.token])
