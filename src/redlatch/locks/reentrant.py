"""Re-entrant locks: one lease, and a count for whoever holds it.

Longer than a module should be: both faces are read side by side.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, NoReturn, Self

from ..errors import AlreadyHeld, LockError, NotOwned
from ..protocol.hold import HELD
from .batch import AnyLock
from .lock import BaseLock, note_failure
from .owner import coroutine_function, of_threads, running_task


class BaseRLock(Generic[AnyLock]):
    """The part that both faces share.

    Args:
        make: makes a lock on its name; every outermost acquire has one of its own.
        owner: returns the calling thread or task (see `owner`). Only weak references to it are kept.

    If a holder ends without a release, its entry is removed. Its lock is no longer renewed and runs out with its ttl;
    this is reported like any other loss.
    """

    def __init__(self, make: Callable[[], AnyLock], owner: Callable[[], Any]) -> None:
        self._make = make
        self._owner = owner
        self._held: dict[weakref.ref[Any], tuple[AnyLock, int]] = {}
        self._inside: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # open with statements
        self._model = make()  # what the questions go to that need not be the holder's
        self._gone = _forgetter(weakref.ref(self))  # called when an owner has ended

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
        return self._of(self._owner())[1]

    @property
    def lock(self) -> AnyLock:
        """The lock that whoever asks holds through this object: its `lost`, `fence`, `token`, `deadline_ns` ...

        Raises:
            NotOwned: whoever asks does not hold it.
        """
        return self._lock_of(self._owner())

    def remaining(self) -> float:
        """Return the seconds of validity that are left, 0.0 where whoever asks does not hold it; no I/O."""
        lock, _ = self._of(self._owner())
        return 0.0 if lock is None else lock.remaining()

    def check(self) -> None:
        """Raise unless whoever asks may still believe that it holds the lock; no I/O.

        Raises:
            LockLost: the validity is over.
            NotOwned: whoever asks does not hold it.
        """
        self.lock.check()

    def _of(self, owner: Any) -> tuple[AnyLock | None, int]:
        """Return the lock that an owner holds, and its count; (None, 0) if it holds none."""
        return (None, 0) if owner is None else self._held.get(weakref.ref(owner), (None, 0))

    def _lock_of(self, owner: Any) -> AnyLock:
        lock, _ = self._of(owner)
        if lock is None:
            raise NotOwned(f"{self.name!r} is not held by the caller; there is nothing to release", name=self.name)
        return lock

    def _again(self, owner: Any) -> bool:
        """Add one to the count if the owner holds the lock already; tell whether it does."""
        lock, count = self._of(owner)
        if lock is None:
            return False
        if lock._hold.state != HELD:  # its release failed, and may be sent again, or was done by others
            self._drop(owner)
            return False
        lock.check()
        self._held[weakref.ref(owner)] = lock, count + 1
        return True

    def _won(self, owner: Any, lock: AnyLock) -> None:
        self._held[weakref.ref(owner, self._gone)] = lock, 1

    def _outermost(self, owner: Any) -> AnyLock | None:
        """Count one less; return the lock where it is to be released now."""
        lock, count = self._lock_of(owner), self._of(owner)[1]
        if count > 1:
            self._held[weakref.ref(owner)] = lock, count - 1
            return None
        return lock

    def _enter(self, owner: Any) -> None:
        """Note that an owner has entered a ``with``."""
        self._inside[owner] = self._inside.get(owner, 0) + 1

    def _exit(self, owner: Any) -> bool:
        """Note that an owner has left a ``with``; return whether it was inside one."""
        inside = self._inside.pop(owner, 0)
        if inside > 1:
            self._inside[owner] = inside - 1
        return inside > 0

    def _leave(self, owner: Any, error: BaseException | None) -> AnyLock | None:
        """Leave a ``with``; return the lock where it is to be released now.

        Args:
            error: what the body raised.

        Raises:
            NotOwned: another thread, or task, has entered it, and the body raised nothing.
        """
        if self._exit(owner) and not self._of(owner)[1]:  # the body has released it
            return None
        try:
            return self._outermost(owner)
        except NotOwned as failure:
            if error is None:
                raise
            note_failure(error, failure)
            return None

    def _released(self, owner: Any, lock: BaseLock) -> None:
        """Forget a lock that was released, or lost; one whose release failed may be released again."""
        if not lock._left_to_release and self._of(owner)[0] is lock:
            self._drop(owner)

    def _drop(self, owner: Any) -> None:
        self._held.pop(weakref.ref(owner), None)

    def _forget(self, reference: weakref.ref[Any]) -> None:
        """Let a lock run out whose owner has ended without releasing it."""
        lock, _ = self._held.pop(reference, (None, 0))
        if lock is not None:
            lock._let_run_out("its holder ended without releasing it, so it was no longer renewed and ran out")


def _forgetter(reference: weakref.ref[BaseRLock[Any]]) -> Callable[[weakref.ref[Any]], None]:
    """Return a function that calls `_forget` of a lock; it does not keep the lock alive."""

    def forget(owner: weakref.ref[Any]) -> None:
        lock = reference()
        if lock is not None:
            lock._forget(owner)

    return forget


class RLock(BaseRLock[Any]):
    """A re-entrant lock for threads; made by `Client.rlock`. Any number of threads may share one object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, of_threads())

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock, or count one more where this thread holds it; as `Lock.acquire`.

        Raises:
            LockLost: this thread held it, and has lost it.
        """
        owner = self._owner()
        if self._again(owner):
            return True
        lock = self._make()
        try:
            won = bool(lock.acquire(blocking, timeout))
            if won:
                self._won(owner, lock)
            return won
        except BaseException as error:
            try:  # not in a function, as in `Lock.acquire`
                self._abandon(owner, lock, error)
            except BaseException:
                self._abandon(owner, lock, error)
                raise
            raise

    def _abandon(self, owner: Any, lock: Any, error: BaseException) -> None:
        """Release and forget a lock after an interrupt. If interrupted, this may be repeated."""
        lock._shared.driver.insist(lock._hold, lock._hold.ticket, error)
        if self._of(owner)[0] is lock:
            self._drop(owner)

    def release(self, wait: bool = True) -> None:
        """Count one less; release the lock where that was the last; as `Lock.release`.

        After an interrupt the count is one less, and the last release is still sent.

        Raises:
            NotOwned: this thread does not hold it.
        """
        snapshot: list[Any] = []  # filled inside the try: the handler sees whether the interrupt came first
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
            try:  # not in a function, as in `Lock.acquire`
                self._release_anyway(snapshot, interrupt)
            except BaseException:
                self._release_anyway(snapshot, interrupt)
                raise
            raise

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on; a shorter `ttl` works as in `Lock.extend`."""
        self.lock.extend(ttl)

    def __enter__(self) -> Self:
        owner, won = self._owner(), False
        self._enter(owner)  # first: an interrupt between the acquire and this would leave the lock held
        try:
            won = self.acquire()
        finally:
            if not won:
                self._exit(owner)
        if not won:
            raise self._model._not_won()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        snapshot: list[Any] = []  # filled inside the try: the handler sees whether the interrupt came first
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
            try:  # not in a function, as in `Lock.acquire`
                self._leave_anyway(snapshot, interrupt)
            except BaseException:
                self._leave_anyway(snapshot, interrupt)
                raise
            raise

    def _snapshot(self) -> list[Any]:
        """Return the calling thread and what it has: its lock, its count, and how many ``with`` it has open."""
        owner = self._owner()
        return [owner, *self._of(owner), self._inside.get(owner, 0)]

    def _release_anyway(self, snapshot: list[Any], error: BaseException) -> None:
        """Complete an interrupted release. If interrupted, this may be repeated.

        It writes counts that come from the snapshot, instead of counting down.

        Args:
            snapshot: what `_snapshot` returned when the call began; empty if the interrupt came first.
            error: the interrupt.
        """
        if not snapshot:
            snapshot += self._snapshot()
        owner, lock, count, _ = snapshot
        if count > 1:
            self._held[weakref.ref(owner)] = lock, count - 1
        elif lock is not None:
            self._abandon(owner, lock, error)

    def _leave_anyway(self, snapshot: list[Any], error: BaseException) -> None:
        """Complete an interrupted `__exit__`: release, and close one ``with``. If interrupted, this may be repeated."""
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
    ``asyncio.wait_for(rlock.acquire(), 1.0)``. A coroutine that was created outside any task, or by a task that has
    ended, belongs to the task that runs it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(make, running_task)
        self._asking: set[Any] = set()  # tasks with an unfinished acquire
        self._scoped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # see `_drop`
        gone = self._gone
        self._ended: Callable[[asyncio.Task[Any]], None] = lambda task: gone(weakref.ref(task))

    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock, or count one more where this task holds it; as `AsyncLock.acquire`.

        Raises:
            AlreadyHeld: another call of this task is still acquiring it.
            LockLost: this task held it, and has lost it.
            NotOwned: this task ended while another one acquired the lock for it; the lock was released again.
        """
        return self._acquire(running_task(), blocking, timeout)

    async def _acquire(self, caller: asyncio.Task[Any] | None, blocking: bool, timeout: float | None) -> bool:
        owner = _owner_for(caller)
        if self._again(owner):
            return True
        lock = self._make()
        self._begin(owner)
        try:
            won = bool(await lock.acquire(blocking, timeout))
        finally:
            self._asking.discard(owner)
        if won and owner.done():
            await lock.release(wait=False)
            raise NotOwned(f"{self.name!r}: the calling task has ended; the lock was released", name=self.name)
        if won:
            self._won(owner, lock)
        return won

    def _begin(self, owner: Any) -> None:
        """Note that a task is acquiring the lock: a second call of that task would wait for the first."""
        if owner in self._asking:
            raise AlreadyHeld(
                f"{self.name!r}: another call of this task is still acquiring it; await that one first", name=self.name
            )
        self._asking.add(owner)

    @coroutine_function
    def release(self, wait: bool = True) -> Coroutine[Any, Any, None]:
        """Count one less; release the lock where that was the last; as `AsyncLock.release`.

        Raises:
            NotOwned: this task does not hold it.
        """
        return self._release(running_task(), wait)

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
        """Let the lock live `ttl` seconds from now on; a shorter `ttl` works as in `AsyncLock.extend`."""
        return self._extend(running_task(), ttl)

    async def _extend(self, caller: asyncio.Task[Any] | None, ttl: float | None) -> None:
        await self._lock_of(_owner_for(caller)).extend(ttl)

    async def __aenter__(self) -> Self:
        owner = _owner_for(running_task())
        if not self._again(owner):
            lock = self._make()
            self._begin(owner)
            try:
                await lock.__aenter__()
            finally:
                self._asking.discard(owner)
            self._won(owner, lock)
        self._enter(owner)
        return self

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
        """Forget what an owner holds; `__aexit__` still needs a lock whose loss may have cancelled its body."""
        lock, _ = self._of(owner)
        super()._drop(owner)
        owner.remove_done_callback(self._ended)
        if lock is not None and lock._care is not None and lock._care.scope is not None:
            self._scoped[owner] = lock


def _owner_for(caller: asyncio.Task[Any] | None) -> asyncio.Task[Any]:
    """Return the task that owns the result of a call: the task that made the call, or else the task that runs it."""
    runs = asyncio.current_task()
    if caller is None or caller.done() or caller.get_loop() is not asyncio.get_running_loop():
        caller = runs
    if caller is None:
        raise RuntimeError("rlock: it belongs to a task, and no task is running")
    return caller
