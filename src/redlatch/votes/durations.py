"""Counts of durations, in buckets whose upper bounds are powers of two."""

from __future__ import annotations

from redlatch.stats import BUCKETS, Histogram

from .units import SECOND


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
