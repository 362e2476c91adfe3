"""Locks as drop-ins have them: known keys and tokens, releases by other clients, and deletions by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redlatch.aio import AsyncLock
from redlatch.compat.clients import Foreign

from .host import Host
from .plan import Action
from .task_host import SimClient, TaskHost

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
