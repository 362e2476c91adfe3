"""The face for asyncio: `AsyncClient` and `AsyncLock`.

Longer than a module should be for its docstrings: every public call tells of its arguments and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from .config import seconds_of, timeout_of
from .errors import LockError, LockLost
from .locks.batch import Batch
from .locks.decorate import AnyFunction, async_locking
from .locks.factory import BaseClient
from .locks.lock import BaseLock, note_failure
from .locks.multi import AsyncMultiLock, distinct
from .locks.options import AsyncOptions, AsyncPlainOptions, check_permits
from .locks.owner import coroutine_function, running_task
from .locks.readwrite import RWLock
from .locks.reentrant import AsyncRLock
from .locks.scope import LossScope
from .protocol.effects import Steps
from .protocol.policy import DEFAULT_GUARD, Guard, Handoff, Retry

if TYPE_CHECKING:  # at run time `impl` gives the driver of the build that was chosen
    from .drivers.aio import Driver


class AsyncLock(BaseLock):
    """A distributed lock for asyncio tasks; made by `AsyncClient.lock`. One object is one holder at a time."""

    __slots__ = ()

    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock.

        Args:
            blocking: False makes one attempt.
            timeout: seconds to wait; None takes the lock's own, and where that is None waits for ever.

        Returns:
            Whether it was won.

        Raises:
            AlreadyHeld: this object holds it already, or is acquiring it in another task.
            LockBusy: as many of this client wait already as the client's `max_waiters` says.
            QuorumUnavailable: too many masters failed; `causes` has each one's reason.
            ConfigurationError, TypeError: an argument cannot work.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        if timeout is None and blocking is True:
            timeout = self._timeout
        else:
            timeout = timeout_of(timeout, blocking)
        if self._care is not None:
            return self._acquire_with_care(self._shared.driver.acquiring(self._hold, self._ttl_ms, timeout))
        return self._shared.driver.acquire(self._hold, self._ttl_ms, timeout)  # type: ignore[no-any-return]

    async def _acquire_with_care(self, steps: Steps) -> bool:
        won: bool = await self._shared.driver.run(steps, self._hold, object())
        if won:
            self._begin_care(True)
        return won

    @coroutine_function
    def release(self, wait: bool = True) -> Coroutine[Any, Any, None]:
        """Release the lock. An interrupted release is still sent; it may be called again, to wait for the answer.

        Args:
            wait: for a quorum's answer. False only sends the release: that the lock had been lost before is then
                told to the client's `on_lost`, or logged, when the answers come.

        Raises:
            NotOwned: nothing is held.
            LockLost: the lock had been lost before; without waiting only where its validity is over.
            QuorumUnavailable: too many masters failed; their keys go when they are back, or with their ttl.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        if wait:
            return self._shared.driver.release(self._hold, self._ttl_ms)  # type: ignore[no-any-return]
        return self._shared.driver.part(self._hold, self)  # type: ignore[no-any-return]

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lock live `ttl` seconds from now on (not longer than before by that much).

        A `ttl` below the remaining time moves this holder's deadline at once, whatever the masters answer. They never
        shorten the key, so others wait until the release or until the key's old expiry.

        Args:
            ttl: seconds; None takes the lock's own.

        Raises:
            NotOwned: nothing is held.
            LockLost: no quorum had extended it before the validity was over, or a quorum has forgotten it.
            QuorumUnavailable: too many masters failed; the earlier of the old and the new deadline counts.
            ConfigurationError, TypeError: the ttl cannot work.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        try:
            await self._shared.driver.run(self._extending(ttl))
        finally:
            self._go_on()

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lock is lost: at its local deadline, or as soon after it as the process gets to run.

        CPU-bound threads can delay it, each by 5 ms or more; `check` is never late. There is a new event after each
        loss.
        """
        return self._loss_event(asyncio.Event)  # type: ignore[no-any-return]

    async def locked(self) -> bool:
        """Ask the masters whether anybody holds the lock.

        Returns:
            Whether a quorum of masters says so; of a semaphore, that all its permits are taken.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        return bool(await self._shared.driver.run(self._asking("locked")))

    async def owned(self) -> bool:
        """Ask the masters whether this object still holds the lock.

        Returns:
            Whether its validity is not over and a quorum of masters has its token.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        return bool(await self._shared.driver.run(self._asking("owned")))

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_won()
        if self._care is not None and self._care.cancels:
            self._care.scope = scope = LossScope()
            if self._care.reason is not None:  # it was lost since
                scope.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        care = self._care
        scope = None if care is None else care.scope
        if care is not None and scope is not None:
            care.scope = None
            if scope.lost:
                await self._leave_lost(scope, error)
                return
        if not self._left_to_release:
            return
        try:
            await self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)

    async def _leave_lost(self, scope: LossScope, error: BaseException | None) -> None:
        """Leave a body that the loss has cancelled: raise LockLost unless there is something else to raise."""
        failure = self._loss()
        try:
            if self._left_to_release:
                await self.release(wait=False)
        except LockLost:
            pass  # it is raised below
        finally:  # `leave` raises CancelledError if the task was also cancelled from outside
            told = await scope.leave(error)
        if told:
            raise failure from error
        if error is not None:
            note_failure(error, failure)


class AsyncClient(BaseClient):
    """A lock client for any number of tasks of one event loop.

    It connects with its first use, or with `connect`. A client that has connected cannot be used in another loop or a
    forked child.

    Args:
        masters: URLs (redis://, rediss://, valkey://, valkeys://, unix://) or redis-py clients whose
            settings are taken over, of independent servers; one of them makes a single-server lock.
        ttl: seconds that a lock lives unless it is extended. Default 10.
        prefix: put before every name to make its key. Default none.
        drift_factor: share of the ttl by which clocks may differ in rate. Default 0.01; 2 ms are added.
        attempt_timeout: seconds that one round waits for silent masters. Default 5 % of the ttl, from 0.1 to 1.
        retry: the pauses between attempts. Default `Retry()`.
        wait_release: whether leaving a ``async with`` waits for the answer to the release. Default True.
        on_lost: called with the lock and the reason, in the event loop, when a lock is lost: when its validity is over,
            when a renewal finds it forgotten, or when one that was released without waiting turns out to have been
            lost before. Default: a warning in the log.
        wakeups: "auto" has the masters say when a lock that is waited for is released (CLIENT TRACKING), where they
            can; "poll" tries again after the pauses of `retry`. Default "auto".
        handoff: for how long a lock may pass from one waiter of this client to the next without a word to the masters.
            Default `Handoff()`: 0.1 s; then other processes have their turn first.
        max_waiters: how many of this client may wait for one name; `LockBusy` beyond. Default any number.
        refuse_late: whether who would wait for longer than its timeout, as fast as the line moves, is refused at once
            with `LockBusy`. Default False.
        guard: what keeps a master out that may have forgotten locks, or whose clock has jumped; and the longest ttl of
            any lock, the same for all clients of these masters and this prefix. None trusts every master. Default
            `Guard()`: 60 s.

    Raises:
        ConfigurationError, TypeError: naming the argument that cannot work.
    """

    _driver: Driver

    def __init__(
        self,
        masters: object,
        *,
        ttl: float = 10.0,
        prefix: str | bytes = "",
        drift_factor: float = 0.01,
        attempt_timeout: float | None = None,
        retry: Retry | None = None,
        wait_release: bool = True,
        on_lost: Callable[[AsyncLock, str], object] | None = None,
        wakeups: str = "auto",
        handoff: Handoff | None = None,
        max_waiters: int | None = None,
        refuse_late: bool = False,
        guard: Guard | None = DEFAULT_GUARD,
    ) -> None:
        super().__init__(
            "aio",
            masters,
            ttl,
            prefix,
            drift_factor,
            attempt_timeout,
            retry,
            wait_release,
            on_lost,
            wakeups,
            handoff,
            max_waiters,
            refuse_late,
            guard,
        )
        self._driver.stands_for(self._shared)

    def lock(  # longer than a function should be for what it tells of its arguments
        self,
        name: str | bytes,
        ttl: float | None = None,
        *,
        timeout: float | None = None,
        auto_renew: bool = False,
        max_hold: float | None = None,
        fence: bool = False,
        fair: bool = False,
        on_lost: Callable[[AsyncLock, str], object] | None = None,
        cancel_on_loss: bool = False,
    ) -> AsyncLock:
        """Make a lock object; nothing is sent yet.

        Args:
            name: what to lock, 1 to 512 bytes.
            ttl: seconds; None takes the client's.
            timeout: seconds that ``async with`` and `AsyncLock.acquire` wait; None is for ever, 0 one attempt.
            auto_renew: whether it is renewed when a third of its ttl is over, again and again, until it is released.
                Default False.
            max_hold: seconds for which it is renewed at most. Default for ever.
            fence: whether each holder gets a number of its own, higher than those of all before it, for the resource
                to compare: `AsyncLock.fence`. Default False.
            fair: whether waiters of all processes have their turn in the order in which they came, as for `fair_lock`.
                Default False.
            on_lost: called with the lock and the reason, in the event loop, when it is lost. Default: what the client
                has.
            cancel_on_loss: whether the loss of the lock cancels the body of its ``async with``, which then raises
                `LockLost`. Default False.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        if auto_renew or fence or fair or on_lost or max_hold is not None or cancel_on_loss or self._shared.on_lost:
            options = dict(
                timeout=timeout, auto_renew=auto_renew, max_hold=max_hold, fence=fence, fair=fair, on_lost=on_lost
            )
            return self._new(AsyncLock, name, ttl, options | dict(cancel_on_loss=cancel_on_loss))
        return AsyncLock(
            self._shared,
            self._hold_of(name, self._key_of(self._prefix, name), self._plain),
            self._ttl_ms if ttl is None else self._ttl_of(ttl),
            None if timeout is None else seconds_of("timeout", timeout),
        )

    def rlock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[AsyncPlainOptions]) -> AsyncRLock:
        """Make a re-entrant lock: the task that holds it may acquire it again, and releases it as often.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return AsyncRLock(partial(self._new, AsyncLock, name, ttl, options))

    def fair_lock(self, name: str | bytes, ttl: float | None = None, **options: Unpack[AsyncOptions]) -> AsyncLock:
        """Make a lock whose waiters of all processes have their turn in the order in which they came.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return self._new(AsyncLock, name, ttl, dict(options, fair=True))

    def rw_lock(
        self, name: str | bytes, ttl: float | None = None, **options: Unpack[AsyncOptions]
    ) -> RWLock[AsyncLock]:
        """Make a lock for any number of readers or one writer; `read()` and `write()` make a lock for each holder.

        A writer that waits keeps new readers out. A task may read again inside its own read, even while a writer
        waits. It cannot write inside its own read, nor read or write inside its own write: it would wait for itself, so
        this raises AlreadyHeld. These rules apply to locks made by the same object that is returned here.

        Args:
            name: what to lock.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return RWLock(partial(self._new, AsyncLock, name, ttl, options), self._family, running_task)

    def semaphore(
        self, name: str | bytes, permits: int, ttl: float | None = None, **options: Unpack[AsyncOptions]
    ) -> AsyncLock:
        """Make a lock that as many may hold at once as there are permits; one object is one holder.

        Args:
            name: what to lock.
            permits: how many, 1 to 1,000,000; the same number for everybody who uses the name.
            ttl: seconds; None takes the client's.
            options: as for `lock`, except `fence` and `fair`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        check_permits(permits)
        kind = partial(self._family.Slot, permits=permits)
        return self._new(AsyncLock, name, ttl, options, kind, b"\0slots")

    def multi_lock(
        self, names: Iterable[str | bytes], ttl: float | None = None, *, timeout: float | None = None
    ) -> AsyncMultiLock:
        """Make a lock on many names: all of them are acquired, or none.

        Who cannot have all holds none while it waits, so that no two that want some of the same wait for each other.

        Args:
            names: at least one, each as for `lock`; one that comes twice counts once.
            ttl: seconds; None takes the client's.
            timeout: seconds that ``async with`` and `AsyncMultiLock.acquire` wait; None is for ever, 0 one attempt.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        locks = self._locks_on(AsyncLock, distinct(names), ttl)
        return AsyncMultiLock(self._shared, locks, seconds_of("timeout", timeout))

    def locked(
        self, template: str, ttl: float | None = None, **options: Unpack[AsyncPlainOptions]
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a decorator: the coroutine function runs while it holds a lock.

        A body that runs only after its function has returned, such as a generator's, would run without the lock. It
        raises TypeError when it is decorated, or when it returns, before any of it runs.

        Args:
            template: the lock's name, with arguments of the function in braces: "report:{day}".
            ttl: seconds; None takes the client's.
            options: as for `lock`.

        Raises:
            ConfigurationError, TypeError: naming the argument that cannot work.
        """
        return async_locking(partial(self._new, AsyncLock), template, ttl, options)

    async def acquire_many(self, names: Iterable[str | bytes], ttl: float | None = None) -> list[AsyncLock | None]:
        """Try once to acquire a lock on each of many names, all in one round trip; each has a verdict of its own.

        Args:
            names: any number of them, each as for `lock`.
            ttl: seconds; None takes the client's.

        Returns:
            A held lock for each name, in order; None where somebody else holds it (or the name came before).

        Raises:
            QuorumUnavailable: too many masters failed; then none is held.
            ConfigurationError, TypeError: an argument cannot work; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch = Batch(self._shared, self._locks_on(AsyncLock, names, ttl))
        try:
            await self._driver.run(batch.acquiring())
            return batch.won()
        except BaseException:
            batch.undo()
            raise

    async def release_many(self, locks: Iterable[AsyncLock | None], wait: bool = True) -> list[bool]:
        """Release many locks in one round trip.

        Args:
            locks: of this client; None is passed over, so that what `acquire_many` returned will do.
            wait: as for `AsyncLock.release`.

        Returns:
            Whether each was held until now; False where it had been lost, was not held, or is None.

        Raises:
            QuorumUnavailable: too many masters failed for some; those may be released again, the others are.
            TypeError: it is no lock, or of another client; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch = Batch(self._shared, locks)
        steps = batch.releasing(wait)
        try:
            await self._driver.run(steps)
        except BaseException as error:
            batch.insist(error)
            raise
        return batch.verdicts()

    async def extend_many(self, locks: Iterable[AsyncLock | None], ttl: float | None = None) -> list[bool]:
        """Let many locks live `ttl` seconds from now on, in one round trip; a shorter `ttl` works as in `extend`.

        Args:
            locks: of this client; None is passed over.
            ttl: seconds; None takes each lock's own.

        Returns:
            Whether each was extended; False where it is lost, was not held, or is None.

        Raises:
            QuorumUnavailable: too many masters failed for some; the earlier of the old and the new deadline counts.
            ConfigurationError, TypeError: the ttl cannot work, or it is no lock of this client; nothing was sent.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        batch = Batch(self._shared, locks)
        steps = batch.extending(ttl)
        try:
            await self._driver.run(steps)
        finally:
            batch.go_on()
        return batch.verdicts()

    async def connect(self) -> None:
        """Connect now instead of with the first use.

        Raises:
            ConfigurationError: a master is a replica, or the same server stands in the list twice.
            ClientUnusable: the client is closed, or belongs elsewhere.
        """
        await self._driver.connect()

    async def close(self) -> None:
        """Wait up to a second for releases under way, then close every connection; harmless when repeated.

        Locks that are still held stay on the masters until their ttl is over.
        """
        await self._driver.close()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:  # the body does not run, and neither does __aexit__
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
