"""The calls of a lock in which asyncio differs from threads."""

from __future__ import annotations

import math
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from ..errors import LockError, LockLost
from ..quorum.claim import SEVERAL
from .lock import BaseLock, Shared, TaskDriver, note_failure
from .owner import TaskTicket, coroutine_function, made_in_this_task, named
from .with_statement import LossScope


class TaskLock(BaseLock):
    __slots__ = ()

    _shared: Shared[TaskDriver]

    @named("AsyncLock.acquire")
    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock.

        Args:
            blocking: False makes one attempt.
            timeout: how long to wait, in seconds. None takes the timeout of the lock; if that is None, no limit.

        Returns:
            Whether the lock was won.

        Raises:
            AlreadyHeld: this object holds the lock already, or is acquiring it in another task.
            LockBusy: `max_waiters` of this client wait already; or, with `refuse_late`, the timeout ends too early.
            QuorumUnavailable: too many masters failed; `causes` has the error of each.
            ConfigurationError, TypeError: an argument is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        return self._acquire_in_task(blocking, timeout, TaskTicket)  # type: ignore[no-any-return]

    @named("AsyncLock.release")
    @coroutine_function
    def release(self, wait: bool = True) -> Coroutine[Any, Any, None]:
        """Release the lock. An interrupted release is still sent; call it again to wait for the answer.

        Args:
            wait: whether to wait for a quorum's answer. False only sends the release. If the answers say that the lock
                was lost, `on_lost` is called, or a warning is logged. Default True.

        Raises:
            NotOwned: the lock is not held.
            LockLost: the lock was lost before the release. Without waiting, only if its validity is over.
            QuorumUnavailable: too many masters failed. Their keys are deleted when they are back, or expire.
            ClientUnusable: as for `acquire`.
        """
        return self._release_in_task(wait)  # type: ignore[no-any-return]

    async def __aenter__(self) -> Self:
        upkeep = self._upkeep
        # First: an interrupt between the acquire and this would leave the lock held.
        scope = LossScope() if upkeep is not None and upkeep.cancels else None
        if not await self.acquire():
            raise await self._refusal().ask_async()
        hold = self._hold
        if hold.entered is None:
            hold.entered = hold.ticket
        else:
            hold.entered = SEVERAL
            hold.others += 1
        if upkeep is not None and scope is not None:
            upkeep.scope = scope
            # The lock was lost after `acquire` returned.
            if upkeep.reason is not None:
                scope.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold, scope = self._hold, None
        try:
            # A method costs less than the fields that it reads.
            mine = hold.leave_own() or self._leaves(hold.ticket, hold.entered)
            # Only now: another user of this lock object has a scope of its own.
            if self._upkeep is not None:
                scope, self._upkeep.scope = self._upkeep.scope, None
            if mine and (scope is None or not scope.lost):
                await self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
        if scope is not None and scope.lost:
            await self._leave_lost(scope, error)

    _made_here = staticmethod(made_in_this_task)

    async def _acquire_again(self, ticket: object) -> None:
        # The claim continues with the ticket that was given up for a wait on a condition.
        await self.acquire(timeout=math.inf)
        made: object = self._hold.ticket
        if isinstance(made, TaskTicket) and isinstance(ticket, TaskTicket):
            # Another task may run the wait, as with `asyncio.wait_for` before Python 3.12.
            made.task = ticket.task
        self._hold.follow(ticket)

    async def _leave_lost(self, scope: LossScope, error: BaseException | None) -> None:
        failure = self._loss()
        try:
            if self._left_to_release:
                await self.release(wait=False)
        except LockLost:
            # The LockLost below replaces it.
            pass
        except LockError as unreleased:
            note_failure(failure, unreleased)
        finally:
            # `leave` raises CancelledError if the task was also cancelled from outside.
            only_loss = await scope.leave(error)
        if only_loss:
            raise failure from error
        if error is not None:
            note_failure(error, failure)
