"""Units of time, the clock, and the arithmetic that all layers share: quorum and drift.

All times are integers: nanoseconds since boot (`wire.engine.net.now_ns`).
"""

from __future__ import annotations

MILLISECOND = 1_000_000
SECOND = 1_000_000_000

# Larger than any count of waiters and any time in nanoseconds.
UNBOUNDED = 1 << 62


class Clock:
    """The clock of all deadlines, in nanoseconds since boot. Tests inject others than `wire.engine.net.BootClock`."""

    def now(self) -> int:
        raise NotImplementedError


def quorum_of(masters: int) -> int:
    return masters // 2 + 1


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """Return what is taken off a ttl for clocks that run at different rates.

    "1 % + 2 ms" is the allowance of redlock-py, pottery, RedLock.net and aioredlock; 2 ms also cover the
    1 ms grain of Redis' expiry.
    """
    return int(ttl_ms * 1_000_000 * drift_factor) + 2_000_000
