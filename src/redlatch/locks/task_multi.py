"""The lock on many names for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from ..errors import LockError
from ..quorum.claim import SEVERAL
from .batch import Batch
from .lock import note_failure
from .multi import BaseMultiLock
from .owner import TaskTicket, coroutine_function, made_in_this_task, named
from .recovering import recovering_task


class AsyncMultiLock(BaseMultiLock):
    """A lock on many names for asyncio tasks; made by `AsyncClient.multi_lock`. One object has one holder at a time."""

    @coroutine_function
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquire the lock on all names, or on none.

        Args:
            blocking, timeout: as for `AsyncLock.acquire`. The timeout is for all names.

        Returns:
            Whether all names were won.

        Raises:
            AlreadyHeld, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.acquire`.
        """
        # Made here: another task may run the coroutine.
        ticket = TaskTicket()
        return self._acquire(self._timeout_of(blocking, timeout), ticket)

    @named("AsyncMultiLock.acquire")
    async def _acquire(self, seconds: float | None, ticket: TaskTicket) -> bool:
        batch = Batch(self._shared, self._locks, ticket=ticket)

        async def acquire() -> bool:
            await self._shared.run(self._acquiring(batch, seconds))
            return self._won(batch)

        return await recovering_task(acquire, lambda _: batch.undo())

    async def release(self, wait: bool = True) -> None:
        """Release all names. An interrupted release is still sent.

        Args:
            wait: as for `AsyncLock.release`.

        Raises:
            LockLost: a name was lost before the call; the others are released.
            NotOwned: no name is held.
            QuorumUnavailable, ClientUnusable: as for `AsyncLock.release`.
        """
        claims: list[tuple[Any, object]] = []
        try:
            claims += self._claims()
            batch = Batch(self._shared, self._locks)
            await self._shared.run(batch.releasing(wait))
        except BaseException as error:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                self._resend_release(claims, error)
            except BaseException:
                self._resend_release(claims, error)
                raise
            raise
        self._judge_release(batch)

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lock on all names live `ttl` seconds from now, as `AsyncLock.extend` does.

        Args:
            ttl: as for `AsyncLock.extend`.

        Raises:
            LockLost: a name is lost; the others are extended.
            NotOwned: no name is held.
            QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `AsyncLock.extend`.
        """
        batch = Batch(self._shared, self._locks)
        try:
            await self._shared.run(batch.extending(ttl))
        finally:
            batch.go_on()
        self._judge(batch, batch.verdicts(), "extended")

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise await self._refusal().ask_async()
        # There is no call after the acquire: an interrupt would leave the names held.
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
        claims: list[tuple[Any, object]] = []
        entered = self._locks[0]._hold.entered
        try:
            claims += self._claims()
            if self._leaves(claims, entered):
                await self.release(self._shared.wait_release)
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

    _made_here = staticmethod(made_in_this_task)
