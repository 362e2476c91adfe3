"""pottery's lock for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ...errors import LockError
from .. import clients, shared
from .base import BaseRedlock, QuorumNotAchieved


class AIORedlock(BaseRedlock):
    """pottery's lock for asyncio; arguments, results and errors are pottery's."""

    __slots__ = ()

    def __init__(self, *, key: str, masters: Iterable[Any], **options: Any) -> None:
        super().__init__(key=key, masters=masters, **options)

    async def _acquire_masters(self, *, raise_on_redis_errors: bool | None = None) -> bool:
        return await self.acquire(blocking=False, raise_on_redis_errors=raise_on_redis_errors)

    async def acquire(
        self, *, blocking: bool = True, timeout: float = -1, raise_on_redis_errors: bool | None = None
    ) -> bool:
        """Acquire the lock.

        Args:
            blocking: if False, make only one attempt. Default True.
            timeout: seconds to wait; -1 waits without a limit.
            raise_on_redis_errors: if True, raise an error if too many masters fail. Default None: as the lock says.
        """
        trial = self._trial(blocking, timeout)
        if trial is None:
            return False
        client = clients.async_client_of(self.masters)
        lease = self._lease_from(client)
        if lease is None:
            return False
        if not client.settled:
            await client._driver.connect()
            client.settled = True
        began = client._quorum.clock.now()
        try:
            won = await trial.acquire_async(lease, functools.partial(self._report, raise_on_redis_errors))
            if won:
                self._won(lease)
        except BaseException as struck:
            shared.let_go(lease, struck)
            raise
        if blocking:
            self._log_if_enqueued(lease, won, began)
        return won

    async def locked(self, *, raise_on_redis_errors: bool | None = None) -> float:
        """Return the seconds of validity left if a quorum confirms that this object holds the lock, otherwise 0."""
        lease = self._lease
        try:
            held = lease is not None and await lease.owned()
        except LockError as error:
            self._report(raise_on_redis_errors, error)
            held = False
        return lease.remaining() if held else 0

    async def extend(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """Extend the lock to `auto_release_time` seconds from now."""
        lease = self._extensible()
        try:
            await lease.extend(self.auto_release_time)
        except LockError as error:
            raise self._not_extended(raise_on_redis_errors, error) from error
        self._extension_num += 1

    async def release(self, *, raise_on_redis_errors: bool | None = None) -> None:
        """Release the lock. Call it again after a ReleaseUnlockedLock because too many masters failed."""
        lease = self._held()
        try:
            await lease.release()
        except LockError as error:
            raise self._not_released(lease, raise_on_redis_errors, error) from error
        self._forget(lease)

    async def __aenter__(self) -> AIORedlock:
        if await self.acquire(blocking=self.context_manager_blocking, timeout=self.context_manager_timeout):
            return self
        raise QuorumNotAchieved(self.key, self.masters)

    async def __aexit__(self, *_: object) -> None:
        await self.release()
