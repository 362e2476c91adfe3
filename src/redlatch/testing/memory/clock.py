"""The clock that masters in memory and their clients share. It moves only when the timeline moves it.

Masters and clients have no clocks of their own, so no clock drifts or jumps. The wall clock begins at a fixed date:
fences, labels and tickets are the same in each run.
"""

from __future__ import annotations

import itertools

from redlatch.votes.units import SECOND, Clock

# The first values: nanoseconds since boot, and microseconds since 1970.
START_NS = 1_000 * SECOND
START_US = 1_800_000_000_000_000


class VirtualClock(Clock):
    """A clock that stands still, except that each reading adds a nanosecond. So no two readings are equal."""

    def __init__(self) -> None:
        self._base_ns = START_NS
        # A counter, because threads read the clock without a lock.
        self._readings = itertools.count()

    def now(self) -> int:
        """Return nanoseconds since boot."""
        return self._base_ns + next(self._readings)

    def move_to(self, ns: int) -> None:
        """Move forward to a time, unless it has passed. Only one thread at a time may call this."""
        self._base_ns = max(self._base_ns, ns - next(self._readings))

    def wall_us(self) -> int:
        """Return microseconds since 1970, for every master and client."""
        return START_US + (self.now() - START_NS) // 1000

    def first_ns(self, wall_ms: int) -> int:
        """Return the first time, in nanoseconds since boot, at which the wall clock shows a later millisecond."""
        return ((wall_ms + 1) * 1000 - START_US) * 1000 + START_NS
