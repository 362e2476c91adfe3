"""The latch for asyncio."""

from __future__ import annotations

from ..config import seconds_of
from .latch import BaseLatch
from .recovering import recovering_task


class AsyncLatch(BaseLatch):
    """A latch for asyncio tasks; made by `AsyncClient.latch`. One object may have any number of users."""

    async def count_down(self) -> None:
        """Count once. The last count opens the latch; later ones change nothing.

        Raises:
            QuorumUnavailable: too many masters failed. The count is taken back, so it may be repeated; but if another
                client has copied it meanwhile, it counts.
            ClientUnusable: as for `AsyncLock.acquire`.
        """
        shared, use = self._shared, self._use()
        await recovering_task(lambda: shared.run(use.counting()), lambda _: shared.quorum.take_back(shared.driver, use))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latch is open. The masters keep the latch while this waits.

        Args:
            timeout: how long to wait, in seconds. None means no limit, 0 only asks.

        Returns:
            Whether the latch is open.

        Raises:
            QuorumUnavailable, ConfigurationError, TypeError, ClientUnusable: as for `AsyncLock.acquire`.
        """
        shared, seconds, use = self._shared, seconds_of("timeout", timeout), self._use()
        opened = await recovering_task(
            lambda: shared.run(shared.quorum.await_counts(use, seconds)), lambda _: use.end_watch()
        )
        return bool(opened)

    async def remaining(self) -> int:
        """Ask the masters how many counts are missing; 0 if the latch is open.

        Raises:
            QuorumUnavailable, ClientUnusable: as for `AsyncLock.acquire`.
        """
        use = self._use()
        await self._shared.run(use.asking())
        return int(use.left)
