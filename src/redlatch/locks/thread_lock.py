"""The calls of a lock in which threads differ from asyncio."""

from __future__ import annotations

import math
from threading import get_ident
from types import TracebackType
from typing import Self

from ..errors import LockError
from ..quorum.claim import SEVERAL
from .lock import BaseLock, Shared, ThreadDriver, note_failure
from .owner import made_in_this_thread, named


class ThreadLock(BaseLock):
    __slots__ = ()

    _shared: Shared[ThreadDriver]

    @named("Lock.acquire")
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock.

        Args:
            blocking: False makes one attempt.
            timeout: how long to wait, in seconds. None takes the timeout of the lock; if that is None, no limit.

        Returns:
            Whether the lock was won.

        Raises:
            AlreadyHeld: this object holds the lock already, or is acquiring it in another thread.
            LockBusy: `max_waiters` of this client wait already; or, with `refuse_late`, the timeout ends too early.
            QuorumUnavailable: too many masters failed; `causes` has the error of each.
            ConfigurationError, TypeError: an argument is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        # Each call returns a new object, so no two tickets are the same.
        ticket = get_ident()
        try:
            return self._acquire(blocking, timeout, ticket)
        except BaseException:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                self._shared.quorum.abandon(self._shared.driver, self._hold, ticket)
            except BaseException:
                self._shared.quorum.abandon(self._shared.driver, self._hold, ticket)
                raise
            raise

    @named("Lock.release")
    def release(self, wait: bool = True) -> None:
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
        ticket = self._hold.ticket
        try:
            self._release(wait)
        except BaseException as error:
            # As in `acquire`.
            try:
                self._shared.quorum.resend_release(self._shared.driver, self._hold, ticket, error)
            except BaseException:
                self._shared.quorum.resend_release(self._shared.driver, self._hold, ticket, error)
                raise
            raise

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._refusal().ask()
        # There is no call after the acquire: an interrupt would leave the lock held.
        hold = self._hold
        if hold.entered is None:
            hold.entered = hold.ticket
        else:
            hold.entered = SEVERAL
            hold.others += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        hold = self._hold
        ticket, entered = hold.ticket, hold.entered
        try:
            if ticket is entered and ticket is not None:
                hold.entered = None
                self.release(self._shared.wait_release)
            elif self._leaves(ticket, entered):
                self.release(self._shared.wait_release)
        except LockError as failure:
            if error is None:
                raise
            note_failure(error, failure)
        except BaseException as interrupt:
            # As in `acquire`. The interrupt may have come before `release` began.
            try:
                if self._may_leave(ticket, entered):
                    self._shared.quorum.resend_release(self._shared.driver, hold, ticket, interrupt)
            except BaseException:
                if self._may_leave(ticket, entered):
                    self._shared.quorum.resend_release(self._shared.driver, hold, ticket, interrupt)
                raise
            raise

    _made_here = staticmethod(made_in_this_thread)

    def _acquire_again(self, ticket: object) -> None:
        # The claim continues with the ticket that was given up for a wait on a condition.
        self.acquire(timeout=math.inf)
        self._hold.follow(ticket)
