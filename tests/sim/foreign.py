"""Locks as drop-ins have them: known keys and tokens, releases by other clients, and deletions by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from redlatch import LockError
from redlatch.aio import AsyncLock
from redlatch.compat.clients import Foreign
from redlatch.compat.shared import shown_token

from .base import Held, Worker
from .grants import Grant
from .host import Host
from .plan import DELETE, Action
from .task_host import SimClient, TaskHost
from .task_uses import TaskUses

SIGNAL_MS = 1000


class SimForeign(Foreign, SimClient):
    """A simulated process whose locks are those of drop-ins."""

    _lock_of = AsyncLock

    def __init__(self, host: TaskHost, **options: Any) -> None:
        super().__init__(host, guard=None, **options)
        self._chosen = 0

    def foreign_lock(self, action: Action, told: Any) -> Any:
        """Make the lock of an action.

        Args:
            told: called when the lock is lost.
        """
        name = action.names[0]
        return self.foreign(
            name,
            key_of(action),
            round(action.ttl * 1000),
            self._kind(action),
            action.renew,
            told if action.watch else None,
        )

    def _kind(self, action: Action) -> Any:
        if action.kind == "signalled":
            return self.signalled(b"", True, b"signal:" + key_of(action), SIGNAL_MS)
        if action.kind == "given":
            self._chosen += 1
            return self.given(b"chosen-%d-%d" % (self._host.number, self._chosen))
        return None


def key_of(action: Action) -> bytes:
    """Return the key of an action's lock."""
    return b"lock:" + action.names[0].encode()


@dataclass
class Deleted:
    """A token that was deleted together with its key.

    Attributes:
        at: the time of the deletion, by the world's time.
        masters: the masters on which it was deleted.
        by: the client process that deleted it.
        told: the time at which that process learned of it; -1 before that.
    """

    at: int
    by: Host
    masters: set[int] = field(default_factory=set)
    told: int = -1


class Deletions:
    """Deletions by hand. A holder is not promised its lock after one, and the process that deleted it knows of it."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, list[Deleted]] = {}

    def delete(self, key: bytes, masters: list[Any], by: Host) -> list[Deleted]:
        """Delete a key on all masters that are up; return the deleted tokens."""
        found: dict[bytes, Deleted] = {}
        for master in masters:
            if not master.up:
                continue
            value = master.keys.values.get(key)
            if isinstance(value, bytes):
                deleted = found.setdefault(value, Deleted(by.world.now, by))
                deleted.masters.add(master.index)
            master.keys.execute([b"DEL", key])
        for token, deleted in found.items():
            self._by_token.setdefault(token, []).append(deleted)
        return list(found.values())

    def of(self, token: bytes, taken: frozenset[int], quorum: int) -> Deleted | None:
        """Return the deletion that took a lock away; None if there was none, or if a quorum still has the token."""
        for deleted in self._by_token.get(token, ()):
            taken = taken - deleted.masters
            if len(taken) < quorum:
                return deleted
        return None

    def spared(self, token: bytes, taken: frozenset[int]) -> bool:
        """Return whether some master that had the token keeps it: its key was set after the deletion came by."""
        return bool(taken.difference(*[deleted.masters for deleted in self._by_token.get(token, ())]))


class ForeignUses(TaskUses):
    """What the users of drop-ins do besides: they release each other's locks, and delete them by hand."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.deletions = Deletions()

    async def _use(self, worker: Worker[TaskHost], action: Action) -> None:
        await (self._delete(worker, action) if action.kind == DELETE else super()._use(worker, action))

    async def _delete(self, worker: Worker[TaskHost], action: Action) -> None:
        """Delete a lock by hand, whatever its holder, and report it a little later, as the drop-ins' resets do."""
        host, face, key = worker.host, self.clients[worker.client], key_of(action)
        self._say(worker, f"deletes {action.names[0]}")
        found = self.deletions.delete(key, self.masters, host)
        await asyncio.sleep(action.hold / 10)
        head = face._quorum.queues.heads.get(key)
        face.broken(key)
        if head is not None and head.held(host.clock.read(host.local)):
            self.world.violate(f"{host.name} goes on holding {action.names[0]}, which it has deleted itself")
        for deleted in found:
            deleted.told = host.local

    def _hand_on(self, held: Held[TaskHost, Action]) -> None:
        """Let another client release a lock by its token, if it can."""
        action, lock, worker = held.use, held.lock, held.worker
        assert action.elsewhere is not None
        token, other, host = lock.token, self.clients[action.elsewhere], self.hosts[action.elsewhere]
        self._say(worker, f"leaves its release to {host.name}")
        # The other process may be dead, or its release may fail.
        for master in self.masters:
            self.checker.stays.add((master.index, token))

        async def release() -> None:
            try:
                await other.held_by(lock.name, key_of(action), token, round(action.ttl * 1000)).release()
            except LockError as error:
                self._say(worker, f"was told by {host.name}: {type(error).__name__}: {error}")

        def arrives() -> None:
            if not host.dead and not host.closing:
                self._start(host, release)

        # If the process was paused, its local time is later than the world's time.
        self.world.at(worker.host.local, arrives)

    async def _release(self, held: Held[TaskHost, Action]) -> None:
        if held.use.elsewhere is not None and held.lock.token is not None:
            self._hand_on(held)
        if held.use.here:
            await super()._release(held)

    def _lock_of(self, worker: Worker[TaskHost], action: Action) -> Any:
        if not self.plan.foreign:
            return super()._lock_of(worker, action)
        # Several holders may have the same chosen token.
        told = super()._lost if action.kind == "given" else self._lost
        return self.clients[worker.client].foreign_lock(action, told)

    def _granted(self, worker: Worker[TaskHost], action: Action, lock: Any, asked: int) -> Grant:
        """Record that a lock was acquired; check that its process had not deleted it."""
        grant, host = super()._granted(worker, action, lock, asked), worker.host
        # The client may have asked for a chosen token more than once.
        if action.kind == "given":
            grant.gave = frozenset()
        deleted = self._deleted(grant)
        if deleted is not None and deleted.by is host and 0 <= deleted.told < host.local and action.kind != "given":
            self.world.violate(f"{grant.who} was given {grant.name}, which its own process had deleted")
        if action.shown:
            shown_token(lock)
        return grant

    def _released_at_last(self) -> None:
        """End the grants of killed processes, and shorten the grants that were deleted by hand."""
        super()._released_at_last()
        # Only now: a paused process may have ended its grant before another process deleted the key.
        for grant in self.checker.grants:
            deleted = self._deleted(grant)
            if deleted is not None:
                if self.liveness is not None:
                    self.liveness.spared.discard(grant)
                    if self.deletions.spared(grant.token, grant.gave):
                        self.liveness.missed[grant] = grant.end
                grant.end = max(grant.start, min(grant.end, deleted.at))

    def _deleted(self, grant: Grant) -> Deleted | None:
        """Return the deletion that took the lock from its holder, if there was one."""
        return self.deletions.of(grant.token, grant.gave, self.checker.quorum)
