"""Re-entrant locks: one lease for each owner, and a count of its acquires."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, Self

from ..errors import AlreadyHeld, LockError, NotOwned
from ..loss import HOLDER_ENDED
from ..quorum.claim import HELD
from .batch import AnyLock
from .lock import BaseLock, held_for, note_failure
from .owner import coroutine_function, named, of_threads, running_task
from .recovering import recovering, recovering_task


class BaseRLock(Generic[AnyLock]):
    """The part of a re-entrant lock that both faces share.

    If a holder ends without a release, its lock is no longer renewed and runs out with its ttl; that is reported like
    any other loss. Only weak references to owners are kept.
    """

    # For the repr.
    _owner_kind: str

    def __init__(self, make: Callable[[], AnyLock], owner: Callable[[], Any]) -> None:
        self._make = make
        self._owner = owner
        self._held: dict[weakref.ref[Any], tuple[AnyLock, int]] = {}
        # How many ``with`` statements each owner has open.
        self._inside: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Never acquired. It gives the name, and the error for a lock that was not won.
        self._model = make()
        # Called when an owner has ended.
        self._gone = _forgetter(weakref.ref(self))

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it belongs to one process")

    def __repr__(self) -> str:
        count = self.count
        shown = f"{self._model._described()} {held_for(self.remaining())} by this {self._owner_kind}"
        return f"<{type(self).__name__} {shown}{f', count {count}' if count else ''}>"

    @property
    def name(self) -> str | bytes:
        """The name as it was given."""
        return self._model.name

    @property
    def group(self) -> str:
        """The group of locks in whose figures this one counts; "" without one."""
        return self._model.group

    @property
    def count(self) -> int:
        """The number of acquires of the calling thread or task that it has not released yet."""
        return self._of(self._owner())[1]

    @property
    def lock(self) -> AnyLock:
        """The plain lock that the calling thread or task holds, with its `lost`, `fence`, `token` and `deadline_ns`.

        Raises:
            NotOwned: the caller does not hold the lock.
        """
        return self._lock_of(self._owner())

    def remaining(self) -> float:
        """Return the seconds of validity that are left, 0.0 if the caller does not hold the lock; no I/O."""
        lock, _ = self._of(self._owner())
        return 0.0 if lock is None else lock.remaining()

    def check(self) -> None:
        """Raise unless the calling thread or task still holds the lock; no I/O.

        Raises:
            LockLost: the validity is over.
            NotOwned: the caller does not hold the lock.
        """
        self.lock.check()

    def _of(self, owner: Any) -> tuple[AnyLock | None, int]:
        return (None, 0) if owner is None else self._held.get(weakref.ref(owner), (None, 0))

    def _lock_of(self, owner: Any) -> AnyLock:
        lock, _ = self._of(owner)
        if lock is None:
            raise NotOwned(f"{self.name!r} is not held by the calling thread or task", name=self.name)
        return lock

    def _again(self, owner: Any) -> bool:
        """Add one to the count if the owner holds the lock; return whether it does."""
        lock, count = self._of(owner)
        if lock is None:
            return False
        if lock._hold.state != HELD or _taken_over(lock):
            # The lock's release failed and may be sent again, or other code released the lock.
            self._drop(owner)
            return False
        lock.check()
        self._held[weakref.ref(owner)] = lock, count + 1
        return True

    def _won(self, owner: Any, lock: AnyLock) -> None:
        self._held[weakref.ref(owner, self._gone)] = lock, 1
        # From now on the lock object is used as if by a ``with``.
        lock._hold.entered = lock._hold.ticket

    def _outermost(self, owner: Any) -> AnyLock | None:
        """Subtract one from the count; return the lock if it must be released now, else None."""
        lock, count = self._lock_of(owner), self._of(owner)[1]
        if count > 1:
            self._held[weakref.ref(owner)] = lock, count - 1
            return None
        return lock

    def _enter(self, owner: Any) -> None:
        self._inside[owner] = self._inside.get(owner, 0) + 1

    def _exit(self, owner: Any) -> bool:
        inside = self._inside.pop(owner, 0)
        if inside > 1:
            self._inside[owner] = inside - 1
        return inside > 0

    def _leave(self, owner: Any, error: BaseException | None) -> AnyLock | None:
        """Leave a ``with``; return the lock if it must be released now.

        It raises NotOwned if another thread or task entered the ``with``, and the body raised no exception.
        """
        if self._exit(owner) and not self._of(owner)[1]:
            # The body has released the lock.
            return None
        try:
            lock = self._outermost(owner)
            if lock is not None and _taken_over(lock):
                self._drop(owner)
            return lock
        except NotOwned as failure:
            if error is None:
                raise
            note_failure(error, failure)
            return None

    def _released(self, owner: Any, lock: BaseLock) -> None:
        # A lock whose release failed is kept, to be released again.
        if not lock._left_to_release and self._of(owner)[0] is lock:
            self._drop(owner)

    def _drop(self, owner: Any) -> None:
        self._held.pop(weakref.ref(owner), None)

    def _abandon(self, owner: Any, lock: Any, error: BaseException) -> None:
        """Release and forget a lock after an interrupt; this may be repeated."""
        lock._shared.quorum.resend_release(lock._shared.driver, lock._hold, lock._hold.ticket, error)
        if self._of(owner)[0] is lock:
            self._drop(owner)

    def _forget(self, reference: weakref.ref[Any]) -> None:
        # The owner has ended without releasing it.
        lock, _ = self._held.pop(reference, (None, 0))
        if lock is not None:
            lock._let_run_out(HOLDER_ENDED)


def _taken_over(lock: BaseLock) -> bool:
    """Return whether the owner's plain lock was released, and another thread or task has acquired it."""
    hold = lock._hold
    return hold.ticket is not None and not lock._may_leave(hold.ticket, hold.entered)


def _forgetter(reference: weakref.ref[BaseRLock[Any]]) -> Callable[[weakref.ref[Any]], None]:
    # This does not keep the lock alive.

    def forget(owner: weakref.ref[Any]) -> None:
        lock = reference()
        if lock is not None:
            lock._forget(owner)

    return forget


class RLock(BaseRLock[Any]):
    """A re-entrant lock for threads; made by `Client.rlock`. Any number of threads may share one object."""

    _owner_kind = "thread"

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, of_threads())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock, or add one to the count if this thread holds it.

        Args:
            blocking, timeout: as for `Lock.acquire`.

        Returns:
            Whether this thread holds the lock.

        Raises:
            LockLost: this thread acquired the lock and has lost it.
            LockBusy, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `Lock.acquire`.
        """
        owner = self._owner()
        if self._again(owner):
            return True
        lock = self._make()

        def acquire() -> bool:
            won = bool(lock.acquire(blocking, timeout))
            if won:
                self._won(owner, lock)
            return won

        return recovering(acquire, partial(self._abandon, owner, lock))

    def release(self, wait: bool = True) -> None:
        """Subtract one from the count; release the lock if the count is then 0.

        After an interrupt the count is still one less, and the last release is still sent.

        Args:
            wait: whether to wait for a quorum's answer, if this releases the lock. Default True.

        Raises:
            NotOwned: this thread does not hold the lock.
            LockLost, QuorumUnavailable, ClientUnusable: as for `Lock.release`.
        """
        # Filled inside the try, so that the handler sees whether the interrupt came before that.
        snapshot: list[Any] = []
        try:
            snapshot += self._snapshot()
            owner = snapshot[0]
            lock = self._outermost(owner)
            if lock is not None:
                try:
                    lock.release(wait)
                finally:
                    self._released(owner, lock)
        except LockError:
            raise
        except BaseException as interrupt:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                self._release_anyway(snapshot, interrupt)
            except BaseException:
                self._release_anyway(snapshot, interrupt)
                raise
            raise

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now, as `Lock.extend` does.

        Args:
            ttl: as for `Lock.extend`.

        Raises:
            NotOwned: this thread does not hold the lock.
            LockLost, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `Lock.extend`.
        """
        self.lock.extend(ttl)

    def __enter__(self) -> Self:
        owner, won = self._owner(), False
        # Before the acquire: an interrupt between the acquire and this call would leave the lock held.
        self._enter(owner)
        try:
            won = self.acquire()
        finally:
            if not won:
                self._exit(owner)
        if not won:
            raise self._model._refusal().ask()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        snapshot: list[Any] = []
        try:
            snapshot += self._snapshot()
            owner = snapshot[0]
            lock = self._leave(owner, error)
            if lock is not None:
                try:
                    lock.__exit__(kind, error, traceback)
                finally:
                    self._released(owner, lock)
        except LockError:
            raise
        except BaseException as interrupt:
            # As in `release`.
            try:
                self._leave_anyway(snapshot, interrupt)
            except BaseException:
                self._leave_anyway(snapshot, interrupt)
                raise
            raise

    def _snapshot(self) -> list[Any]:
        owner = self._owner()
        return [owner, *self._of(owner), self._inside.get(owner, 0)]

    def _release_anyway(self, snapshot: list[Any], error: BaseException) -> None:
        """Complete an interrupted release; this may be repeated.

        It sets the counts from the `_snapshot` of the call's beginning, instead of subtracting, so that a repetition
        has the same result. The snapshot is empty if the interrupt came before it.
        """
        if not snapshot:
            snapshot += self._snapshot()
        owner, lock, count, _ = snapshot
        if count > 1:
            self._held[weakref.ref(owner)] = lock, count - 1
        elif lock is not None:
            self._abandon(owner, lock, error)

    def _leave_anyway(self, snapshot: list[Any], error: BaseException) -> None:
        if not snapshot:
            snapshot += self._snapshot()
        owner, _, _, inside = snapshot
        if inside > 1:
            self._inside[owner] = inside - 1
        else:
            self._inside.pop(owner, None)
        self._release_anyway(snapshot, error)


class AsyncRLock(BaseRLock[Any]):
    """A re-entrant lock for asyncio tasks; made by `AsyncClient.rlock`. Any number of tasks may share one object.

    The task that calls `acquire` owns the lock, even if another task runs the coroutine, as in
    ``asyncio.wait_for(rlock.acquire(), 1.0)``. If no task created the coroutine, or that task has ended, the task that
    runs it owns the lock.
    """

    _owner_kind = "task"

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, running_task)
        # Those with an unfinished acquire.
        self._asking: set[Any] = set()
        # The locks that `_drop` keeps for `__aexit__`, by task.
        self._scoped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        gone = self._gone
        self._ended: Callable[[asyncio.Task[Any]], None] = lambda task: gone(weakref.ref(task))

    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock, or add one to the count if this task holds it.

        Args:
            blocking, timeout: as for `AsyncLock.acquire`.

        Returns:
            Whether this task holds the lock.

        Raises:
            AlreadyHeld: another call of this task is still acquiring the lock.
            LockLost: this task acquired the lock and has lost it.
            LockBusy, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.acquire`.
            NotOwned: this task ended while another task acquired the lock for it; the lock was released again.
        """
        return self._acquire(running_task(), blocking, timeout)

    @named("AsyncRLock.acquire")
    async def _acquire(self, caller: asyncio.Task[Any] | None, blocking: bool, timeout: float | None) -> bool:
        owner = _owner_for(caller)
        if self._again(owner):
            return True
        lock = self._make()

        async def acquire() -> bool:
            won = bool(await lock.acquire(blocking, timeout))
            if won and owner.done():
                await lock.release(wait=False)
                raise NotOwned(f"{self.name!r}: the calling task has ended; the lock was released", name=self.name)
            if won:
                self._won(owner, lock)
            return won

        self._begin(owner)
        try:
            return await recovering_task(acquire, partial(self._abandon, owner, lock))
        finally:
            self._asking.discard(owner)

    def _begin(self, owner: Any) -> None:
        # Another call of the task would wait for the one that is still acquiring.
        if owner in self._asking:
            raise AlreadyHeld(
                f"{self.name!r}: another call of this task is still acquiring it; await that one first", name=self.name
            )
        self._asking.add(owner)

    @coroutine_function
    def release(self, wait: bool = True) -> Coroutine[Any, Any, None]:
        """Subtract one from the count; release the lock if the count is then 0.

        Args:
            wait: whether to wait for a quorum's answer, if this releases the lock. Default True.

        Raises:
            NotOwned: this task does not hold the lock.
            LockLost, QuorumUnavailable, ClientUnusable: as for `AsyncLock.release`.
        """
        return self._release(running_task(), wait)

    @named("AsyncRLock.release")
    async def _release(self, caller: asyncio.Task[Any] | None, wait: bool) -> None:
        owner = _owner_for(caller)
        lock = self._outermost(owner)
        if lock is not None:
            try:
                await lock.release(wait)
            finally:
                self._released(owner, lock)

    @coroutine_function
    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, None]:
        """Let the lock live `ttl` seconds from now, as `AsyncLock.extend` does.

        Args:
            ttl: as for `AsyncLock.extend`.

        Raises:
            NotOwned: this task does not hold the lock.
            LockLost, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.extend`.
        """
        return self._extend(running_task(), ttl)

    @named("AsyncRLock.extend")
    async def _extend(self, caller: asyncio.Task[Any] | None, ttl: float | None) -> None:
        await self._lock_of(_owner_for(caller)).extend(ttl)

    async def __aenter__(self) -> Self:
        owner, entered = _owner_for(running_task()), False
        # As in `RLock.__enter__`.
        self._enter(owner)
        try:
            if not self._again(owner):
                await self._enter_lock(owner)
            entered = True
        finally:
            if not entered:
                self._exit(owner)
        return self

    async def _enter_lock(self, owner: asyncio.Task[Any]) -> None:
        lock = self._make()

        async def enter() -> None:
            await lock.__aenter__()
            self._won(owner, lock)

        self._begin(owner)
        try:
            await recovering_task(enter, partial(self._abandon, owner, lock))
        finally:
            self._asking.discard(owner)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        owner = _owner_for(running_task())
        lock = self._leave(owner, error)
        scoped = None if owner in self._inside else self._scoped.pop(owner, None)
        try:
            if lock is not None:
                try:
                    await lock.__aexit__(kind, error, traceback)
                finally:
                    self._released(owner, lock)
        finally:
            if scoped is not None:
                await scoped.__aexit__(kind, error, traceback)

    def _won(self, owner: Any, lock: Any) -> None:
        super()._won(owner, lock)
        owner.add_done_callback(self._ended)

    def _drop(self, owner: Any) -> None:
        # The loss of a lock with a scope may still cancel the body.
        lock, _ = self._of(owner)
        super()._drop(owner)
        owner.remove_done_callback(self._ended)
        if lock is not None and lock._upkeep is not None and lock._upkeep.scope is not None:
            self._scoped[owner] = lock


def _owner_for(caller: asyncio.Task[Any] | None) -> asyncio.Task[Any]:
    # The task that made the call, or else the task that runs it.
    runs = asyncio.current_task()
    if caller is None or caller.done() or caller.get_loop() is not asyncio.get_running_loop():
        caller = runs
    if caller is None:
        raise RuntimeError("rlock: a task must call it, and no task is running")
    return caller
