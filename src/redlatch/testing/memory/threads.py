"""The client in memory for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from redlatch.client import Client
from redlatch.config import seconds_of
from redlatch.quorum.effects import Steps
from redlatch.testing.memory.control import MemoryControl
from redlatch.testing.memory.driver import MemoryDriver, Performing
from redlatch.testing.memory.masters import MemoryMasters
from redlatch.testing.memory.timeline import Wait
from redlatch.votes.units import SECOND


class ThreadMemoryDriver(MemoryDriver):
    def run(self, steps: Steps) -> Any:
        return self._perform(self._performing(steps))

    def connect(self, all_of_them: bool = False) -> None:
        self._perform(self._connecting())

    def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        self._perform(self._closing(release, drain_ns))

    def sleep(self, ns: int) -> None:
        until_ns = self._clock.now() + ns
        self._timeline.note_timeout(until_ns)
        self._perform(iter_wait(Wait(bool, until_ns)))

    def _perform(self, performing: Performing) -> Any:
        timeline = self._timeline
        try:
            with timeline.monitor:
                timeline.parties.enter()
                timeline.note_call()
                try:
                    while True:
                        timeline.rest(next(performing))
                except StopIteration as ended:
                    return ended.value
                finally:
                    performing.close()
                    timeline.note_call()
                    timeline.parties.go_out(threading.get_ident())
        finally:
            timeline.report()


def iter_wait(wait: Wait) -> Performing:
    yield wait


class MemoryClient(MemoryControl, Client):
    """A `Client` without a server: its masters are in memory, and its time is virtual.

    It has all calls, locks and errors of a `Client`. Time stands still while your code runs. It jumps when all threads
    that use the client wait for something, so a timeout takes no real time. It does no I/O: a test takes some
    milliseconds.

    Args:
        masters: the number of masters, 1 to 15; or the `memory` of another client, to act as another process with the
            same masters and the same time. Default 3.
        options: as for `Client`.

    Attributes:
        memory: the masters, which can be passed to another client.

    Raises:
        ConfigurationError, TypeError: an argument is invalid; the message names it.
    """

    _driver: ThreadMemoryDriver

    def __init__(self, masters: int | MemoryMasters = 3, **options: Any) -> None:
        self.memory = masters if isinstance(masters, MemoryMasters) else MemoryMasters(masters)
        shared = {name: options[name] for name in ("prefix", "guard", "drift_factor") if name in options}
        self._strangers = partial(MemoryClient, self.memory, **shared)
        self.memory.timeline.parties.go_out(threading.get_ident())
        super().__init__(self.memory, **options)  # type: ignore[arg-type]

    def _driver_of(self, name: str) -> Callable[..., Any]:
        return partial(ThreadMemoryDriver, self.memory)

    def advance(self, seconds: float) -> None:
        """Wait for some virtual time. It takes no real time if all other threads also wait.

        Meanwhile keys expire, renewals happen and losses are reported, each at its time.

        Args:
            seconds: the virtual time to wait.

        Raises:
            ConfigurationError, TypeError: the number is negative, or no number.
        """
        self._driver.sleep(int((seconds_of("seconds", seconds) or 0.0) * SECOND))
