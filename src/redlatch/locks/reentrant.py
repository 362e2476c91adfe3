"""Re-entrant locks: one lease, and a count for whoever holds it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, NoReturn, Self

from ..errors import LockError, NotOwned
from ..protocol.hold import HELD
from .batch import AnyLock
from .lock import BaseLock, note_failure


class BaseRLock(Generic[AnyLock]):
    """The part that both faces share.

    Args:
        make: makes a lock on its name; every outermost acquire has one of its own.
        owner: names whoever calls: the thread, or the task.
    """

    def __init__(self, make: Callable[[], AnyLock], owner: Callable[[], Any]) -> None:
        self._make = make
        self._owner = owner
        self._held: dict[Any, tuple[AnyLock, int]] = {}
        self._model = make()  # what the questions go to that need not be the holder's

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it is one process's")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {f'held {self.count} times' if self.count else 'not held'}>"

    @property
    def name(self) -> str | bytes:
        """The name as it was given."""
        return self._model.name

    @property
    def count(self) -> int:
        """How often whoever asks has acquired it and not released it yet."""
        _, count = self._held.get(self._owner(), (None, 0))
        return count

    @property
    def lock(self) -> AnyLock:
        """The lock that whoever asks holds through this object: its `lost`, `fence`, `token`, `deadline_ns` ...

        Raises:
            NotOwned: whoever asks does not hold it.
        """
        lock, _ = self._held.get(self._owner(), (None, 0))
        if lock is None:
            raise NotOwned(f"{self.name!r} is not held by whoever asks; there is nothing to release", name=self.name)
        return lock

    def remaining(self) -> float:
        """Return the seconds of validity that are left, 0.0 where whoever asks does not hold it; no I/O."""
        lock, _ = self._held.get(self._owner(), (self._model, 0))
        return lock.remaining()

    def check(self) -> None:
        """Raise unless whoever asks may still believe that it holds the lock; no I/O.

        Raises:
            LockLost: the validity is over.
            NotOwned: whoever asks does not hold it.
        """
        self.lock.check()

    def _again(self) -> bool:
        """Count one more, where whoever asks holds it already."""
        me = self._owner()
        lock, count = self._held.get(me, (None, 0))
        if lock is None:
            return False
        if lock._hold.state != HELD:  # its release failed, and may be sent again, or was done by others
            self._held.pop(me, None)
            return False
        lock.check()
        self._held[me] = lock, count + 1
        return True

    def _won(self, lock: AnyLock) -> None:
        self._held[self._owner()] = lock, 1

    def _outermost(self) -> AnyLock | None:
        """Count one less; return the lock where it is to be released now."""
        lock = self.lock
        me = self._owner()
        _, count = self._held[me]
        if count > 1:
            self._held[me] = lock, count - 1
            return None
        return lock

    def _released(self, lock: BaseLock) -> None:
        """Forget a lock that was released, or lost; one whose release failed may be released again."""
        if not lock._left_to_release:
            self._held.pop(self._owner(), None)


class RLock(BaseRLock[Any]):
    """A re-entrant lock for threads; made by `Client.rlock`. Any number of threads may share one object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, threading.get_ident)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock, or count one more where this thread holds it; as `Lock.acquire`.

        Raises:
            LockLost: this thread held it, and has lost it.
        """
        if self._again():
            return True
        lock = self._make()
        try:
            won = bool(lock.acquire(blocking, timeout))
            if won:
                self._won(lock)
            return won
        except BaseException as error:
            if lock._left_to_release and not self.count:  # an interrupt: nobody else knows of it
                try:
                    lock.release(wait=False)
                except LockError as failure:
                    note_failure(error, failure)
            raise

    def release(self, wait: bool = True) -> None:
        """Count one less; release the lock where that was the last; as `Lock.release`.

        Raises:
            NotOwned: this thread does not hold it.
        """
        lock = self._outermost()
        if lock is not None:
            try:
                lock.release(wait)
            finally:
                self._released(lock)

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on; as `Lock.extend`."""
        self.lock.extend(ttl)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._model._not_won()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock = self._outermost()
        if lock is not None:
            try:
                lock.__exit__(kind, error, traceback)
            finally:
                self._released(lock)


def _task() -> asyncio.Task[Any] | None:
    """Return the task that is running, if any."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # there is no loop
        return None


class AsyncRLock(BaseRLock[Any]):
    """A re-entrant lock for asyncio tasks; made by `AsyncClient.rlock`. Any number of tasks may share one object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, _task)

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock, or count one more where this task holds it; as `AsyncLock.acquire`.

        Raises:
            LockLost: this task held it, and has lost it.
        """
        if self._again():
            return True
        lock = self._make()
        won = bool(await lock.acquire(blocking, timeout))
        if won:
            self._won(lock)
        return won

    async def release(self, wait: bool = True) -> None:
        """Count one less; release the lock where that was the last; as `AsyncLock.release`.

        Raises:
            NotOwned: this task does not hold it.
        """
        lock = self._outermost()
        if lock is not None:
            try:
                await lock.release(wait)
            finally:
                self._released(lock)

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on; as `AsyncLock.extend`."""
        await self.lock.extend(ttl)

    async def __aenter__(self) -> Self:
        if self._again():
            return self
        lock = self._make()
        await lock.__aenter__()
        self._won(lock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock = self._outermost()
        if lock is not None:
            try:
                await lock.__aexit__(kind, error, traceback)
            finally:
                self._released(lock)
