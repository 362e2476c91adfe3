"""Locks as drop-ins have them: on keys and with tokens that others know, released elsewhere, and deleted by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redlatch.aio import AsyncLock
from redlatch.compat.clients import Foreign

from .host import Host, SimClient
from .plan import Action

SIGNAL_MS = 1000


class SimForeign(Foreign, SimClient):  # type: ignore[misc]
    """A simulated process whose locks are those of drop-ins."""

    _lock_of = AsyncLock

    def __init__(self, host: Host, **options: Any) -> None:
        super().__init__(host, guard=None, **options)
        self._chosen = 0

    def foreign_lock(self, action: Action, told: Any) -> Any:
        """Make the lock of an action.

        Args:
            told: is called when it is lost.
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
    """A token that somebody has deleted with its key.

    Attributes:
        at: when, by the world's time.
        masters: where.
        by: which client's process has done it; `told`: when that took note of it, -1 where it has not yet.
    """

    at: int
    by: Host
    masters: set[int] = field(default_factory=set)
    told: int = -1


class Deletions:
    """What was deleted by hand: nobody is promised that he still has it, but who has deleted it knows."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, list[Deleted]] = {}

    def delete(self, key: bytes, masters: list[Any], by: Host) -> list[Deleted]:
        """Delete a key on all masters that can be asked; return what was there."""
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
        """Return the deletion that took a lock away; None where there was none, or a quorum has it all the same."""
        for deleted in self._by_token.get(token, ()):
            taken = taken - deleted.masters
            if len(taken) < quorum:
                return deleted
        return None
