"""The client in memory for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from redlatch.aio import AsyncClient
from redlatch.config import seconds_of
from redlatch.testing.memory.control import MemoryControl
from redlatch.testing.memory.task_driver import TaskMemoryDriver
from redlatch.votes.units import SECOND


class AsyncMemoryClient(MemoryControl, AsyncClient):
    """An `AsyncClient` without a server: its masters are in memory, and its time is virtual.

    It has all calls, locks and errors of an `AsyncClient`. Time stands still while your code runs. It jumps when all
    tasks that use the client wait, so a timeout takes no real time.

    Args:
        masters: the number of masters, 1 to 15; or the `memory` of another client, to act as another process with the
            same masters and time. Default 3.
        options: as for `AsyncClient`.

    Attributes:
        memory: the masters, which can be passed to another client.

    Raises:
        ConfigurationError, TypeError: an argument is invalid; the message names it.
    """

    _driver: TaskMemoryDriver

    def _driver_of(self, name: str) -> Callable[..., Any]:
        return partial(TaskMemoryDriver, self.memory)

    async def advance(self, seconds: float) -> None:
        """Wait for some seconds of virtual time. Meanwhile keys expire, renewals happen and losses are reported."""
        await self._driver.sleep(int((seconds_of("seconds", seconds) or 0.0) * SECOND))

    def drop(self) -> None:
        """Close the client at once, without an event loop. Locks stay on the masters until their ttl expires."""
        self._driver.drop()
