"""The masters of the demo: embedded ones, of which the demo kills and restarts one, or the user's own servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redlatch.errors import ConfigurationError

if TYPE_CHECKING:
    from redlatch.testing import embedded

ENOUGH_TO_KILL_ONE = 3

# Seconds until the killed master comes back.
AWAY = 0.5


class Masters:
    """The lock masters. If they are the demo's own and enough, one of them will be killed."""

    def __init__(self, urls: Sequence[str], fleet: embedded.Masters | None = None) -> None:
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
        return self._back_at is not None

    def kill_one(self, tell: Callable[[str], None]) -> None:
        if not self.killable or self._killed or self._fleet is None:
            return
        self._killed = True
        self._fleet.kill(self._victim)
        self._back_at = time.perf_counter() + AWAY
        count = len(self.urls)
        tell(f"master {self._victim + 1} killed (SIGKILL): {count - 1} of {count} left, {self.quorum} must agree")

    def bring_back_when_due(self, tell: Callable[[str], None]) -> None:
        if self._back_at is None or self._fleet is None or time.perf_counter() < self._back_at:
            return
        self._back_at = None
        try:
            self._fleet.start(self._victim)
        except ConfigurationError as error:
            raise RuntimeError(f"master {self._victim + 1} does not come back: {error}") from error
        tell(f"master {self._victim + 1} is back, empty; it votes again when no lease from before is left")


@contextmanager
def open_masters(count: int, servers: Sequence[str]) -> Iterator[Masters]:
    if servers:
        yield Masters(servers)
        return
    from redlatch.testing import embedded

    fleet = embedded.masters(count)
    with fleet as urls:
        yield Masters(urls, fleet)
