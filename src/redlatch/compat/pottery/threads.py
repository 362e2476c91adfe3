# Generated from compat/pottery/aio.py by tests/support/threads_face.py: change the source, and run `make faces`.
"""pottery's lock for threads."""

from __future__ import annotations

import functools
from typing import Literal

from ...errors import LockError
from .. import clients, shared
from .base import BaseRedlock, QuorumNotAchieved


class Redlock(BaseRedlock):
    """pottery's lock for threads; arguments, results and errors are pottery's."""

    __slots__ = ()

    def _acquire_masters(self, *, raise_on_redis_errors: bool | None = None) -> bool:
        return self.acquire(blocking=False, raise_on_redis_errors=raise_on_redis_errors)

    def acquire(self, *, blocking: bool = True, timeout: float = -1, raise_on_redis_errors: bool | None = None) -> bool:
        """Acquire the lock.

        Args:
            blocking: if False, make only one attempt. Default True.
            timeout: seconds to wait; -1 waits without a limit.
            raise_on_redis_errors: if True, raise an error if too many masters fail. Default None: as the lock says.
        """
        trial = self._trial(blocking, timeout)
        if trial is None:
            return False
        client = clients.client_of(self.masters)
        lease = self._lease_from(client)
        if lease is None:
            return False
        if not client.settled:
            client._driver.connect()
            client.settled = True
        began = client._quorum.clock.now()
        try:
            won = trial.acquire(lease, functools.partial(self._report, raise_on_redis_errors))
            if won:
                self._won(lease)
        except BaseException as struck:
            shared.let_go(lease, struck)
            raise
        if blocking:
            self._log_if_enqueued(lease, won, began)
        return won

    def locked(self, *, raise_on_redis_errors: bool | None = None) -> float:
        """Return the seconds of validity left if a quorum confirms that this object holds the lock, otherwise 0."""
        lease = self._lease
        try:
            held = lease is not None and lease.owned()
        except LockError as error:
            self._report(raise_on_redis_errors, error)
            held = False
        return lease.remaining() if held else 0

    def extend(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """Extend the lock to `auto_release_time` seconds from now."""
        lease = self._extensible()
        try:
            lease.extend(self.auto_release_time)
        except LockError as error:
            raise self._not_extended(raise_on_redis_errors, error) from error
        self._extension_num += 1

    def release(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """Release the lock. Call it again after a ReleaseUnlockedLock because too many masters failed."""
        lease = self._held()
        try:
            lease.release()
        except LockError as error:
            raise self._not_released(lease, raise_on_redis_errors, error) from error
        self._forget(lease)

    def __enter__(self) -> Redlock:
        if self.acquire(blocking=self.context_manager_blocking, timeout=self.context_manager_timeout):
            return self
        raise QuorumNotAchieved(self.key, self.masters)

    def __exit__(self, *_: object) -> Literal[False]:
        self.release()
        return False
