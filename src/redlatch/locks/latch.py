"""The latch: callers wait until a number of counts have come, from any process.

`quorum.latch` has the algorithm.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..config import seconds_of
from ..errors import ConfigurationError
from ..quorum.hold import Hold
from .lock import Shared
from .recovering import recovering, recovering_task

# The suffix of the key. It makes the latch independent of a lock with the same name.
SUFFIX = b"\0latch"

# The default of the ttl, in milliseconds, unless the guard's `max_ttl` is smaller.
TTL_MS = 60_000

# A client that gives a forgetful master its counts back reads them one by one, so their number is bounded.
MOST_COUNTS = 10_000


def check_count(count: object) -> None:
    """Check the number of counts that open a latch.

    Raises:
        TypeError: it is not a whole number.
        ConfigurationError: it is below 1 or above 10,000.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count: a whole number is needed, not {type(count).__name__}")
    if not 1 <= count <= MOST_COUNTS:
        raise ConfigurationError(f"count: 1 to {MOST_COUNTS:,} are needed; got {count}")


class BaseLatch:
    """The part of a latch that the sync and the asyncio class share.

    Args:
        shared: what all locks of the client have in common.
        hold: a hold with the name and the key; it is never claimed.
        count: how many counts open the latch.
        ttl_ms: for how long the masters keep the latch after its last use, in milliseconds.
    """

    def __init__(self, shared: Shared[Any], hold: Hold, count: int, ttl_ms: int) -> None:
        check_count(count)
        self._shared: Shared[Any] = shared
        self._hold = hold
        self._count = count
        self._ttl_ms = ttl_ms

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one client")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._count}>"

    @property
    def name(self) -> str | bytes:
        """The name as you gave it."""
        return self._hold.name

    @property
    def count(self) -> int:
        """How many counts open the latch."""
        return self._count

    def _use(self) -> Any:
        return self._shared.driver.counts(self._hold, self._count, self._ttl_ms)


class Latch(BaseLatch):
    """A latch for threads; made by `Client.latch`. One object may have any number of users."""

    def count_down(self) -> None:
        """Count once. The last count opens the latch; later ones change nothing.

        Raises:
            QuorumUnavailable: too many masters failed. The count is taken back, so it may be repeated; but if another
                client has copied it meanwhile, it counts.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        driver, use = self._shared.driver, self._use()
        recovering(lambda: driver.run(use.counting()), lambda _: driver.take_back(use))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latch is open. The masters keep the latch while this waits.

        Args:
            timeout: how long to wait, in seconds. None means no limit, 0 only asks.

        Returns:
            Whether the latch is open.

        Raises:
            QuorumUnavailable: too many masters failed.
            ConfigurationError, TypeError: the timeout is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        driver = self._shared.driver
        return bool(driver.run(driver.awaiting_counts(self._use(), seconds_of("timeout", timeout))))

    def remaining(self) -> int:
        """Ask the masters how many counts are missing.

        Returns:
            The number; 0 if the latch is open.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        use = self._use()
        self._shared.driver.run(use.asking())
        return int(use.left)


class AsyncLatch(BaseLatch):
    """A latch for asyncio tasks; made by `AsyncClient.latch`. One object may have any number of users."""

    async def count_down(self) -> None:
        """Count once. The last count opens the latch; later ones change nothing.

        Raises:
            QuorumUnavailable: too many masters failed. The count is taken back, so it may be repeated; but if another
                client has copied it meanwhile, it counts.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        driver, use = self._shared.driver, self._use()
        await recovering_task(lambda: driver.run(use.counting()), lambda _: driver.take_back(use))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latch is open. The masters keep the latch while this waits.

        Args:
            timeout: how long to wait, in seconds. None means no limit, 0 only asks.

        Returns:
            Whether the latch is open.

        Raises:
            QuorumUnavailable: too many masters failed.
            ConfigurationError, TypeError: the timeout is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        driver = self._shared.driver
        return bool(await driver.run(driver.awaiting_counts(self._use(), seconds_of("timeout", timeout))))

    async def remaining(self) -> int:
        """Ask the masters how many counts are missing.

        Returns:
            The number; 0 if the latch is open.

        Raises:
            QuorumUnavailable: too many masters failed.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        use = self._use()
        await self._shared.driver.run(use.asking())
        return int(use.left)
