"""Units of time, the clock, counts of durations, and the arithmetic that all layers share: quorum and drift.

All times are integers: nanoseconds since boot (`wire.engine.net.now_ns`).
"""

from __future__ import annotations

from redlatch.stats import BUCKETS, Histogram

MILLISECOND = 1_000_000
SECOND = 1_000_000_000

# Larger than any count of waiters and any time in nanoseconds.
UNBOUNDED = 1 << 62


class Clock:
    """The clock of all deadlines, in nanoseconds since boot. Tests inject others than `wire.engine.net.BootClock`."""

    def now(self) -> int:
        raise NotImplementedError


class Durations:
    """A histogram of durations, whose counting needs no memory."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        # The numbers are written out: in the compiled build this is an array of C integers.
        self._counts = [0] * 40
        self._sum_ns = 0

    def count(self, duration_ns: int) -> None:
        """Count a duration. The first bucket is up to 1 us, and each next one up to twice as much."""
        place = 0
        bound = 1000
        # Most are a round trip or more.
        if duration_ns > 16_384_000:
            place = 14
            bound = 16_384_000
        elif duration_ns > 128_000:
            place = 7
            bound = 128_000
        while bound < duration_ns and place < 39:
            bound = bound + bound
            place = place + 1
        self._counts[place] = self._counts[place] + 1
        self._sum_ns = self._sum_ns + duration_ns

    def histogram(self) -> Histogram:
        return Histogram(tuple([self._counts[place] for place in range(BUCKETS)]), self._sum_ns / SECOND)


def quorum_of(masters: int) -> int:
    return masters // 2 + 1


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """Return what is taken off a ttl for clocks that run at different rates.

    "1 % + 2 ms" is the allowance of redlock-py, pottery, RedLock.net and aioredlock; 2 ms also cover the
    1 ms grain of Redis' expiry.
    """
    return int(ttl_ms * 1_000_000 * drift_factor) + 2_000_000
