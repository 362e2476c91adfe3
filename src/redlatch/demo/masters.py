"""The masters of the demo: embedded ones, of which one can be killed and brought back, or servers of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from redlatch.errors import ConfigurationError

# With two masters the quorum is two: none can be spared.
ENOUGH_TO_KILL_ONE = 3

# How long the dead master stays away, seconds. It may come back at any time: the guard keeps it from voting until every
# lease that it voted for is over.
AWAY = 0.5


class Fleet(Protocol):
    """What the demo uses of `redlatch.embedded`."""

    def kill(self, index: int) -> None:
        """Kill one master with SIGKILL."""

    def start(self, index: int) -> None:
        """Start it again, empty, at the same address."""


class Masters:
    """Some lock masters, and the accident that happens to one of them.

    Attributes:
        urls: their addresses.
        quorum: how many must agree.
        own: whether the demo started them itself.
        killable: whether one of them will be killed.
    """

    def __init__(self, urls: Sequence[str], fleet: Fleet | None = None) -> None:
        self.urls = tuple(urls)
        self.quorum = len(self.urls) // 2 + 1
        self.own = fleet is not None
        self.killable = self.own and len(self.urls) >= ENOUGH_TO_KILL_ONE
        self._fleet = fleet
        self._victim = 1
        self._killed = False
        self._back_at: float | None = None

    @property
    def away(self) -> bool:
        """Whether a master is down that will come back."""
        return self._back_at is not None

    def kill_one(self, tell: Callable[[str], None]) -> None:
        """Kill one master, once, and set the time of its return; nothing where none can be spared."""
        if not self.killable or self._killed or self._fleet is None:
            return
        self._killed = True
        self._fleet.kill(self._victim)
        self._back_at = time.perf_counter() + AWAY
        count = len(self.urls)
        tell(f"master {self._victim + 1} killed (SIGKILL): {count - 1} of {count} left, {self.quorum} must agree")

    def bring_back_when_due(self, tell: Callable[[str], None]) -> None:
        """Start the killed master again, empty."""
        if self._back_at is None or self._fleet is None or time.perf_counter() < self._back_at:
            return
        self._back_at = None
        try:
            self._fleet.start(self._victim)
        except ConfigurationError as error:  # no fault of an option
            raise RuntimeError(f"master {self._victim + 1} does not come back: {error}") from error
        tell(f"master {self._victim + 1} is back, empty; it votes again when no lease from before is left")


@contextmanager
def open_masters(count: int, servers: Sequence[str]) -> Iterator[Masters]:
    """Yield `count` embedded masters, stopped at the end, or the user's `servers`, where there are any."""
    if servers:
        yield Masters(servers)
        return
    from redlatch import embedded  # only here: with servers of one's own, no embedded server is needed

    fleet = embedded.masters(count)
    with fleet as urls:
        yield Masters(urls, fleet)
