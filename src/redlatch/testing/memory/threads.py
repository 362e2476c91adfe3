# Generated from testing/memory/aio.py by tests/support/threads_face.py: change the source, and run `make faces`.
"""The client in memory for threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from redlatch.client import Client
from redlatch.config import seconds_of
from redlatch.testing.memory.control import MemoryControl
from redlatch.testing.memory.thread_driver import ThreadMemoryDriver
from redlatch.votes.units import SECOND


class MemoryClient(MemoryControl, Client):
    """A `Client` without a server: its masters are in memory, and its time is virtual.

    It has all calls, locks and errors of a `Client`. Time stands still while your code runs. It jumps when all
    threads that use the client wait, so a timeout takes no real time.

    Args:
        masters: the number of masters, 1 to 15; or the `memory` of another client, to act as another process with the
            same masters and time. Default 3.
        options: as for `Client`.

    Attributes:
        memory: the masters, which can be passed to another client.

    Raises:
        ConfigurationError, TypeError: an argument is invalid; the message names it.
    """

    _driver: ThreadMemoryDriver

    def _driver_of(self, name: str) -> Callable[..., Any]:
        return partial(ThreadMemoryDriver, self.memory)

    def advance(self, seconds: float) -> None:
        """Wait for some seconds of virtual time. Meanwhile keys expire, renewals happen and losses are reported."""
        self._driver.sleep(int((seconds_of("seconds", seconds) or 0.0) * SECOND))
