# Generated from locks/task_multi.py by tests/support/threads_face.py: change the source, and run `make faces`.
"""The lock on many names for threads."""

from __future__ import annotations

from threading import get_ident
from types import TracebackType
from typing import Any, Self

from ..errors import LockError
from ..quorum.claim import SEVERAL
from .batch import Batch
from .lock import note_failure
from .multi import BaseMultiLock
from .owner import made_in_this_thread
from .recovering import recovering


class MultiLock(BaseMultiLock):
    """A lock on many names for threads; made by `Client.multi_lock`. One object has one holder at a time."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock on all names, or on none.

        Args:
            blocking, timeout: as for `Lock.acquire`. The timeout is for all names.

        Returns:
            Whether all names were won.

        Raises:
            AlreadyHeld, QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `Lock.acquire`.
        """
        ticket = get_ident()
        return self._acquire(self._timeout_of(blocking, timeout), ticket)

    def _acquire(self, seconds: float | None, ticket: int) -> bool:
        batch = Batch(self._shared, self._locks, ticket=ticket)

        def acquire() -> bool:
            self._shared.run(self._acquiring(batch, seconds))
            return self._won(batch)

        return recovering(acquire, lambda _: batch.undo())

    def release(self, wait: bool = True) -> None:
        """Release all names. An interrupted release is still sent.

        Args:
            wait: as for `Lock.release`.

        Raises:
            LockLost: a name was lost before the call; the others are released.
            NotOwned: no name is held.
            QuorumUnavailable, ClientUnusable: as for `Lock.release`.
        """
        claims: list[tuple[Any, object]] = []
        try:
            claims += self._claims()
            batch = Batch(self._shared, self._locks)
            self._shared.run(batch.releasing(wait))
        except BaseException as error:
            # `recovering` says why this is repeated, and why it stands here.
            try:
                self._resend_release(claims, error)
            except BaseException:
                self._resend_release(claims, error)
                raise
            raise
        self._judge_release(batch)

    def extend(self, ttl: float | None = None) -> None:
        """Let the lock on all names live `ttl` seconds from now, as `Lock.extend` does.

        Args:
            ttl: as for `Lock.extend`.

        Raises:
            LockLost: a name is lost; the others are extended.
            NotOwned: no name is held.
            QuorumUnavailable, ClientUnusable, ConfigurationError, TypeError: as for `Lock.extend`.
        """
        batch = Batch(self._shared, self._locks)
        try:
            self._shared.run(batch.extending(ttl))
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
