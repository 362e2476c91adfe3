"""Locks with the interface of redis-py's `Lock`, on the clients of the setting REDLATCH and for asyncio.

With `timeout=None` a lock is renewed until it is released. `acquire` takes no token, and `sleep` has no effect. After
the local deadline, `release` and `extend` raise LockNotOwnedError.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from redis.exceptions import LockError, LockNotOwnedError

from ..aio import AsyncLock
from ..client import Lock
from ..compat.shared import let_go
from ..errors import ClientForked, LockLost, NotOwned, QuorumUnavailable
from ..locks.lock import BaseLock
from ..locks.owner import coroutine_function, named, of_threads, running_task

AnyLock = TypeVar("AnyLock", bound=BaseLock)

# All locks share one `threading.local`: when one is freed, Python searches every thread for its data.
_thread = of_threads()


class _Record(Generic[AnyLock]):
    lock: AnyLock | None = None


class _Records(Generic[AnyLock]):
    def __init__(self, owner: Callable[[], object | None] | None) -> None:
        self._owner = owner
        self._shared = _Record[AnyLock]()
        self._by_owner: WeakKeyDictionary[object, _Record[AnyLock]] = WeakKeyDictionary()

    def mine(self) -> _Record[AnyLock]:
        owner = None if self._owner is None else self._owner()
        if owner is None:
            return self._shared
        record = self._by_owner.get(owner)
        if record is None:
            record = self._by_owner[owner] = _Record()
        return record


class _CacheLock(Generic[AnyLock]):
    """The part shared by the sync and asyncio locks; each acquire needs a new redlatch lock from `make`."""

    _owner: Callable[[], object | None]

    def __init__(
        self,
        make: Callable[[], AnyLock],
        name: str,
        timeout: float | None,
        sleep: float,
        blocking: bool,
        blocking_timeout: float | None,
        thread_local: bool,
        error_of: Callable[[QuorumUnavailable], Exception] | None = None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self._make = make
        self._error_of = error_of
        self._records = _Records[AnyLock](type(self)._owner if thread_local else None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def lock(self) -> AnyLock | None:
        """The redlatch lock that the caller holds, for `check`, `lost` and `remaining`; None if it holds none."""
        return self._records.mine().lock

    def _seconds_to_wait(self, blocking: bool | None, blocking_timeout: float | None) -> float | None:
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        return self.blocking_timeout if blocking_timeout is None else blocking_timeout

    def _held(self, what: str, record: _Record[AnyLock]) -> AnyLock:
        if record.lock is None:
            raise LockError(f"Cannot {what} a lock that's not owned or is already unlocked.", lock_name=self.name)
        return record.lock

    def _limited(self, what: str) -> float:
        if not self.timeout:
            raise LockError(f"Cannot {what} a lock with no timeout", lock_name=self.name)
        return self.timeout

    def _not_won(self) -> LockError:
        return LockError("Unable to acquire lock within the time specified", lock_name=self.name)

    @contextmanager
    def _errors_of(self, what: str) -> Iterator[None]:
        try:
            yield
        except QuorumUnavailable as error:
            if self._error_of is None:
                raise
            raise self._error_of(error) from error
        except (LockLost, NotOwned, ClientForked) as error:
            raise LockNotOwnedError(f"Cannot {what} a lock that's no longer owned", lock_name=self.name) from error


class CacheLock(_CacheLock[Lock]):
    """A cache's lock for threads."""

    _owner = staticmethod(_thread)

    def acquire(
        self, sleep: float | None = None, blocking: bool | None = None, blocking_timeout: float | None = None
    ) -> bool:
        """Acquire the lock; `sleep` has no effect, and None means the lock's own setting.

        Raises:
            QuorumUnavailable: too many masters failed.
            ConfigurationError: the timeout cannot work, for example because it is above the guard's `max_ttl`.
        """
        record, lock = self._records.mine(), self._make()
        with self._errors_of("acquire"):
            try:
                won = lock.acquire(timeout=self._seconds_to_wait(blocking, blocking_timeout))
                if won:
                    record.lock = lock
            except BaseException as struck:
                # An interrupt may come before the last line.
                let_go(lock, struck)
                raise
        return won

    def release(self) -> None:
        """Release the lock. An interrupted release is still sent.

        Raises:
            LockError: it was not acquired.
            LockNotOwnedError: it was lost.
            QuorumUnavailable: too many masters failed. Their keys expire.
        """
        record = self._records.mine()
        lock = self._held("release", record)
        try:
            with self._errors_of("release"):
                lock.release()
        finally:
            record.lock = None

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Extend the lock by some seconds; with `replace_ttl`, to these seconds from now.

        Raises:
            LockError: the lock was not acquired, or has no timeout.
            LockNotOwnedError: it was lost.
            QuorumUnavailable: too many masters failed.
        """
        lock = self._held("extend", self._records.mine())
        self._limited("extend")
        with self._errors_of("extend"):
            lock.extend(additional_time + (0.0 if replace_ttl else lock.remaining()))
        return True

    def reacquire(self) -> Literal[True]:
        """Extend the lock to its timeout from now; errors as for `extend`."""
        lock = self._held("reacquire", self._records.mine())
        with self._errors_of("reacquire"):
            lock.extend(self._limited("reacquire"))
        return True

    def locked(self) -> bool:
        """Return True if the masters have a holder of the lock."""
        with self._errors_of("look at"):
            return self._make().locked()

    def owned(self) -> bool:
        """Return True if the masters have the caller as the holder."""
        lock = self.lock
        with self._errors_of("look at"):
            return lock is not None and lock.owned()

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_won()
        return self

    def __exit__(self, *_: Any) -> None:
        lock = self.lock
        try:
            self.release()
        except BaseException as struck:
            # An interrupt may have come before the release began.
            if lock is not None and not isinstance(struck, Exception):
                let_go(lock, struck)
            raise


class AsyncCacheLock(_CacheLock[AsyncLock]):
    """A cache's lock for asyncio. It belongs to the task that makes the call, even if another one runs the coroutine.

    The methods have the arguments, results and errors of `CacheLock`.
    """

    _owner = staticmethod(running_task)

    @coroutine_function
    def acquire(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        return self._acquire(self._records.mine(), self._seconds_to_wait(blocking, blocking_timeout))

    @named("AsyncCacheLock.acquire")
    async def _acquire(self, record: _Record[AsyncLock], timeout: float | None) -> bool:
        lock = self._make()
        with self._errors_of("acquire"):
            won = await lock.acquire(timeout=timeout)
        if won:
            record.lock = lock
        return won

    @coroutine_function
    def release(self) -> Coroutine[Any, Any, None]:
        """Release the lock. A cancelled release is still sent."""
        return self._release(self._records.mine())

    @named("AsyncCacheLock.release")
    async def _release(self, record: _Record[AsyncLock]) -> None:
        lock = self._held("release", record)
        try:
            with self._errors_of("release"):
                await lock.release()
        finally:
            record.lock = None

    @coroutine_function
    def extend(self, additional_time: float, replace_ttl: bool = False) -> Coroutine[Any, Any, Literal[True]]:
        return self._extend("extend", self._records.mine(), additional_time, replace_ttl)

    @coroutine_function
    def reacquire(self) -> Coroutine[Any, Any, Literal[True]]:
        return self._extend("reacquire", self._records.mine(), None, True)

    async def _extend(
        self, what: str, record: _Record[AsyncLock], seconds: float | None, replace_ttl: bool
    ) -> Literal[True]:
        lock = self._held(what, record)
        limit = self._limited(what)
        seconds = limit if seconds is None else seconds
        with self._errors_of(what):
            await lock.extend(seconds + (0.0 if replace_ttl else lock.remaining()))
        return True

    async def locked(self) -> bool:
        with self._errors_of("look at"):
            return await self._make().locked()

    @coroutine_function
    def owned(self) -> Coroutine[Any, Any, bool]:
        return self._owned(self.lock)

    async def _owned(self, lock: AsyncLock | None) -> bool:
        with self._errors_of("look at"):
            return lock is not None and await lock.owned()

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_won()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.release()
