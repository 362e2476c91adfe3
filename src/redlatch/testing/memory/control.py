from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from redlatch.errors import ConfigurationError, NotOwned
from redlatch.impl import Implementation
from redlatch.locks.factory import BaseClient
from redlatch.locks.lock import BaseLock
from redlatch.locks.multi import BaseMultiLock
from redlatch.locks.reentrant import BaseRLock
from redlatch.masters.master import Master
from redlatch.quorum.calls import Calls
from redlatch.quorum.claim import HELD
from redlatch.quorum.policy import Fences
from redlatch.quorum.quorum import Tokens
from redlatch.testing.memory.driver import VirtualCalls
from redlatch.testing.memory.masters import MemoryMasters
from redlatch.votes.commands import FULL_TEXT
from redlatch.votes.label import label_of

SOMEBODY = "somebody else"


class Held:
    """A name that another holder has for a test, made by `hold`. The end of a ``with`` releases it."""

    def __init__(self, memory: MemoryMasters, client: Any, lock: Any) -> None:
        self.name: str | bytes = lock.name
        self._memory = memory
        self._client = client
        self._lock = lock
        memory.held.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lock!r}>"

    def remaining(self) -> float:
        """Return the seconds until it expires."""
        return float(self._lock.remaining())

    def release(self) -> None:
        """Release the name, if it is still held; waiters get it at once."""
        if self in self._memory.held:
            self._memory.held.discard(self)
            if self.remaining():
                self._lock.release()
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryControl(BaseClient):
    # The driver in memory subclasses the session of the pure build: a compiled one hides its fields.
    _implementation = staticmethod(partial(Implementation, "python"))

    def __init__(self, masters: int | MemoryMasters = 3, **options: Any) -> None:
        self.memory = masters if isinstance(masters, MemoryMasters) else MemoryMasters(masters)
        self._of_strangers = {name: options[name] for name in ("prefix", "guard", "drift_factor") if name in options}
        super().__init__(self.memory, **options)  # type: ignore[call-arg]

    def hold(self, name: str | bytes, ttl: float | None = None, *, owner: str = SOMEBODY) -> Held:
        """Let another holder acquire a free name as a plain lock, like another process.

        Args:
            name: the name, as for `lock`.
            ttl: seconds of virtual time. Default None: until it is released.
            owner: the owner that `holder` reports. Default "somebody else".

        Raises:
            LockBusy: the name is not free.
            QuorumUnavailable: too many masters do not answer.
        """
        from redlatch.testing.memory.threads import MemoryClient

        self.memory.timeline.parties.note_task()
        stranger = MemoryClient(self.memory, owner=owner, **self._of_strangers)
        try:
            lock = stranger.lock(name, ttl, auto_renew=ttl is None, timeout=0).__enter__()
        except BaseException:
            stranger.close()
            raise
        return Held(self.memory, stranger, lock)

    def lose(self, lock: BaseLock | BaseMultiLock | BaseRLock[Any] | str | bytes) -> None:
        """Let all masters forget that a lock is held, as after a loss of their memory. Then its name is free.

        The holder notices it as with real masters: at once if it uses `on_lost`, `lost` or `cancel_on_loss`; otherwise
        at its next `extend`, `release` or renewal.

        Args:
            lock: a held lock of any kind; a re-entrant one must be held by the calling thread or task. A name means all
                its holders, of any client with the same prefix.

        Raises:
            NotOwned: the lock is not held.
            TypeError: it is neither a lock nor a name.
        """
        if isinstance(lock, (str, bytes)):
            if not self.memory.forget(self._key_of(self._prefix, lock)):
                raise NotOwned(f"nobody holds {lock!r}", name=lock)
            self.memory.timeline.note_loss()
            return
        holds = [part._hold for part in _parts_of(lock) if part is not None]
        if not holds or any([hold.state != HELD for hold in holds]):
            raise NotOwned(f"{lock!r} is not held")
        for hold in holds:
            # The command that undoes its acquire removes this holder only, for each kind of lock.
            self.memory.perform(hold.undoing_attempt().payload(FULL_TEXT))
        self.memory.timeline.note_loss()

    def break_quorum(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which a majority of the masters refuses all connections.

        Each call raises `QuorumUnavailable`: at once, or when the client's `patience` is over. Keys stay, and expire as
        usual. Afterwards all clients are connected again at once.
        """
        return self.memory.broken_quorum()

    # --- what a client takes from outside ------------------------------------------------------------------

    def _masters_of(self, masters: object) -> list[Master]:
        if not isinstance(masters, MemoryMasters):
            raise ConfigurationError(f"masters: MemoryMasters are needed, got {masters!r}")
        return list(masters.list)

    @property
    def _dialler(self) -> Callable[..., Any]:
        return self.memory.dialler

    def _quorum_of(self, **numbers: Any) -> Calls:
        timeline = self.memory.timeline
        return VirtualCalls(
            timeline,
            random=self.memory.random.random,
            tokens=Tokens(self.memory.draw_tokens, self._label_of_now if self._owner else None),
            fences=Fences(timeline.clock.wall_us),
            **numbers,
        )

    def _label_of_now(self) -> bytes:
        return label_of(self._owner.encode(), self.memory.timeline.clock.wall_us() // 1_000_000)


def _parts_of(lock: BaseLock | BaseMultiLock | BaseRLock[Any]) -> list[Any]:
    if isinstance(lock, BaseMultiLock):
        return list(lock._locks)
    if isinstance(lock, BaseRLock):
        return [lock._of(lock._owner())[0]]
    if not isinstance(lock, BaseLock):
        raise TypeError(f"lock: a lock or a name is needed, not {type(lock).__name__}")
    return [lock]
