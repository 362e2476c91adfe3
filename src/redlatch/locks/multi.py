"""Locks on many names: a holder has all names or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from ..config import timeout_of
from ..errors import LockError, LockLost
from ..quorum.claim import HELD, SEVERAL
from ..quorum.effects import Steps
from .batch import Batch
from .driver import Driver
from .leaving import leaves, may_leave
from .lock import BaseLock, Shared, held_for, note_failure
from .owner import TaskTicket, coroutine_function, made_in_this_task, made_in_this_thread, named
from .recovering import recovering, recovering_task
from .refusal import Refusal


class BaseMultiLock:
    """The part of a multi-lock that the sync and the asyncio class share.

    Args:
        shared: the data that all locks of the client share.
        locks: one lock for each name.
        timeout: seconds that ``with`` and `acquire` wait by default; None waits without a limit.
    """

    def __init__(self, shared: Shared[Any], locks: list[Any], timeout: float | None) -> None:
        self._shared = shared
        self._locks: list[BaseLock] = locks
        self._timeout = timeout

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; it has one holder in one process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.names!r} {held_for(self.remaining())}>"

    @property
    def names(self) -> list[str | bytes]:
        """The names, without duplicates."""
        return [lock.name for lock in self._locks]

    @property
    def group(self) -> str:
        """The group of locks in whose figures these count; "" without one."""
        return self._locks[0].group

    def remaining(self) -> float:
        """Return the seconds of validity that are left for all names, 0.0 if one is not held or expired; no I/O."""
        return min([lock.remaining() for lock in self._locks])

    def check(self) -> None:
        """Raise unless all names are still held; no I/O.

        Raises:
            LockLost: the validity of one name is over.
            NotOwned: the names were never acquired, or are released.
        """
        for lock in self._locks:
            lock.check()

    def _acquiring(self, batch: Batch[Any], timeout: float | None) -> Steps:
        driver: Driver = self._shared.driver
        holds = [lock._hold for lock in self._locks]
        return driver.acquiring_all(holds, batch._ticket, self._locks[0]._ttl_ms, timeout)

    def _timeout_of(self, blocking: bool, timeout: float | None) -> float | None:
        return self._timeout if timeout is None and blocking is True else timeout_of(timeout, blocking)

    def _won(self, batch: Batch[Any]) -> bool:
        won = all([lock._hold.state == HELD for lock in self._locks])
        if won:
            batch.begin_upkeep()
        return won

    def _claims(self) -> list[tuple[Any, object]]:
        """Return each name's hold and the ticket of its current claim."""
        return [(lock._hold, lock._hold.ticket) for lock in self._locks]

    def _resend_release(self, claims: list[tuple[Any, object]], error: BaseException) -> None:
        """Have the release of every name go on without its caller.

        This does not use `Batch.resend_release`, because an interrupt may come before the batch is made.

        Args:
            claims: what `_claims` returned before the release; empty if an interrupt came before that.
            error: the exception that ended the release.

        Raises:
            LockLost: the client was closed and has released the names.
        """
        lost = None
        for hold, ticket in claims or self._claims():
            try:
                self._shared.driver.resend_release(hold, ticket, error)
            except LockLost as loss:
                lost = lost or loss
        if lost is not None:
            raise lost

    # Returns whether the calling thread or task has made a ticket.
    _made_here: Callable[[object], bool]

    def _leaves(self, claims: list[tuple[Any, object]], entered: object) -> bool:
        """End a ``with``; return whether it must release the names; `claims` are those of `_claims`."""
        return leaves(
            self._locks[0]._hold, [ticket for _, ticket in claims], entered, self._made_here, self.names[0], self.names
        )

    def _judge(self, batch: Batch[Any], verdicts: list[bool], what: str) -> None:
        """Raise if a name was lost before the call."""
        lost = [lock.name for lock, verdict in zip(self._locks, verdicts, strict=True) if not verdict]
        if len(lost) == len(self._locks) and batch._errors:
            raise batch._errors[0]
        if lost:
            raise LockLost(f"{lost!r} of {self.names!r} had been lost before they were {what}", name=lost[0])

    def _refusal(self) -> Refusal:
        """Return the error that ``with`` raises if the names were not won in time, once it has asked for the holder."""
        return Refusal(self._shared, [lock._hold for lock in self._locks], self._timeout or 0.0, self.names)


class MultiLock(BaseMultiLock):
    """A lock on many names for threads; made by `Client.multi_lock`. One object has one holder at a time."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock on all names, or on none.

        Args:
            blocking: False makes one attempt. Default True.
            timeout: how long to wait for all names, in seconds. None takes the timeout of the lock; if that is None,
                wait without a limit.

        Returns:
            Whether all names were won.

        Raises:
            QuorumUnavailable: too many masters failed; `causes` has the error of each.
            AlreadyHeld, ClientUnusable, ConfigurationError, TypeError: as for `Lock.acquire`.
        """
        seconds = self._timeout_of(blocking, timeout)
        batch = Batch(self._shared, self._locks, ticket=threading.get_ident())

        def acquire() -> bool:
            self._shared.driver.run(self._acquiring(batch, seconds))
            return self._won(batch)

        return recovering(acquire, batch.undo)

    def release(self, wait: bool = True) -> None:
        """Release all names. An interrupted release is still sent.

        Args:
            wait: whether to wait for a quorum's answers. Default True.

        Raises:
            LockLost: a name was lost before the call; the others are released.
            NotOwned: no name is held.
            QuorumUnavailable: too many masters failed. Their keys are deleted when they are back, or expire.
            ClientUnusable: as for `Lock.release`.
        """
        claims: list[tuple[Any, object]] = []
        try:
            claims += self._claims()
            batch = Batch(self._shared, self._locks)
            self._shared.driver.run(batch.releasing(wait))
        except BaseException as error:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                self._resend_release(claims, error)
            except BaseException:
                self._resend_release(claims, error)
                raise
            raise
        self._judge(batch, batch.verdicts(), "released")

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock on all names live `ttl` seconds from now; see `Lock.extend` for a shorter `ttl`.

        Args:
            ttl: the new time to live, in seconds. None takes the ttl that the lock was made with.

        Raises:
            LockLost: a name is lost; the others are extended.
            NotOwned: no name is held.
            QuorumUnavailable: too many masters failed for a name. The earlier of the old and the new deadline counts.
            ClientUnusable, ConfigurationError, TypeError: as for `Lock.extend`.
        """
        batch = Batch(self._shared, self._locks)
        try:
            self._shared.driver.run(batch.extending(ttl))
        finally:
            batch.go_on()
        self._judge(batch, batch.verdicts(), "extended")

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._refusal().ask()
        # There is no call after the acquire: an interrupt would leave the names held.
        hold = self._locks[0]._hold
        if hold.entered is None:
            hold.entered = hold.ticket
        else:
            hold.entered = SEVERAL
            hold.others += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        claims: list[tuple[Any, object]] = []
        entered = self._locks[0]._hold.entered
        try:
            claims += self._claims()
            if self._leaves(claims, entered):
                self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
        except BaseException as interrupt:
            # As in `release`. The interrupt may have come before that began.
            try:
                self._release_anyway(claims, entered, interrupt)
            except BaseException:
                self._release_anyway(claims, entered, interrupt)
                raise
            raise

    _made_here = staticmethod(made_in_this_thread)

    def _release_anyway(self, claims: list[tuple[Any, object]], entered: object, error: BaseException) -> None:
        claims = claims or self._claims()
        mine = [(hold, ticket) for hold, ticket in claims if may_leave(ticket, entered, self._made_here)]
        if mine:
            self._resend_release(mine, error)


class AsyncMultiLock(BaseMultiLock):
    """A lock on many names for asyncio tasks; made by `AsyncClient.multi_lock`. One object has one holder at a time."""

    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock on all names, or on none.

        Args:
            blocking: False makes one attempt. Default True.
            timeout: how long to wait for all names, in seconds. None takes the timeout of the lock; if that is None,
                wait without a limit.

        Returns:
            Whether all names were won.

        Raises:
            QuorumUnavailable: too many masters failed; `causes` has the error of each.
            AlreadyHeld, ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.acquire`.
        """
        # Made here: another task may run the coroutine.
        ticket = TaskTicket()
        return self._acquire(self._timeout_of(blocking, timeout), ticket)

    @named("AsyncMultiLock.acquire")
    async def _acquire(self, seconds: float | None, ticket: TaskTicket) -> bool:
        batch = Batch(self._shared, self._locks, ticket=ticket)

        async def acquire() -> bool:
            await self._shared.driver.run(self._acquiring(batch, seconds))
            return self._won(batch)

        return await recovering_task(acquire, batch.undo)

    async def release(self, wait: bool = True) -> None:
        """Release all names. An interrupted release is still sent.

        Args:
            wait: whether to wait for a quorum's answers. Default True.

        Raises:
            LockLost: a name was lost before the call; the others are released.
            NotOwned: no name is held.
            QuorumUnavailable: too many masters failed. Their keys are deleted when they are back, or expire.
            ClientUnusable: as for `AsyncLock.release`.
        """
        claims: list[tuple[Any, object]] = []

        async def release() -> Batch[Any]:
            claims.extend(self._claims())
            batch = Batch(self._shared, self._locks)
            await self._shared.driver.run(batch.releasing(wait))
            return batch

        batch = await recovering_task(release, partial(self._resend_release, claims))
        self._judge(batch, batch.verdicts(), "released")

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lock on all names live `ttl` seconds from now; see `AsyncLock.extend` for a shorter `ttl`.

        Args:
            ttl: the new time to live, in seconds. None takes the ttl that the lock was made with.

        Raises:
            LockLost: a name is lost; the others are extended.
            NotOwned: no name is held.
            QuorumUnavailable: too many masters failed for a name. The earlier of the old and the new deadline counts.
            ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.extend`.
        """
        batch = Batch(self._shared, self._locks)
        try:
            await self._shared.driver.run(batch.extending(ttl))
        finally:
            batch.go_on()
        self._judge(batch, batch.verdicts(), "extended")

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise await self._refusal().ask_async()
        hold = self._locks[0]._hold
        if hold.entered is None:
            hold.entered = hold.ticket
        else:
            hold.entered = SEVERAL
            hold.others += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._leaves(self._claims(), self._locks[0]._hold.entered):
                await self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)

    _made_here = staticmethod(made_in_this_task)
