"""The numbers of the algorithm: quorum, drift, validity, how long an attempt waits, when it is tried again.

All arithmetic is on integers of nanoseconds since boot (`wire.net.now_ns`). One text, twice: it is compiled as
`redlatch._c.protocol.policy` (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redlatch.errors import ConfigurationError

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def quorum_of(masters: int) -> int:
    """Return how many of `masters` must agree: more than half."""
    return masters // 2 + 1


@dataclass(frozen=True, slots=True)
class Retry:
    """Jittered exponential back-off between two attempts on a lock that somebody else holds.

    The n-th pause is drawn evenly from 0 to min(longest, first * 2**n) ("full jitter": contenders that
    started together do not meet again, see the Redis documentation on distributed locks).

    Args:
        first: seconds, the bound of the first pause. Default 0.004.
        longest: seconds, the bound that the others grow to. Default 0.050.

    Raises:
        ConfigurationError, TypeError: a bound cannot work.
    """

    first: float = 0.004
    longest: float = 0.050

    def __post_init__(self) -> None:
        for bound in (self.first, self.longest):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(f"retry: seconds as numbers are needed, not {type(bound).__name__}")
        if not 0 < self.first <= self.longest < float("inf"):
            raise ConfigurationError(
                f"retry: 0 < first <= longest is needed, in seconds; got first={self.first}, longest={self.longest}"
            )

    def pause_ns(self, attempt: int, random: float) -> int:
        """Return the pause after attempt number `attempt` (from 0); `random` is even in [0, 1)."""
        bound = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        return int(bound * random * SECOND)


class Clock:
    """Tells the time that every deadline is measured with; `wire.net` has the real one."""

    def now(self) -> int:
        """Return nanoseconds since boot."""
        raise NotImplementedError


class Tokens:
    """Values that are never used twice, for every attempt one.

    Args:
        draw: returns some more of them.
    """

    def __init__(self, draw: Callable[[], list[bytes]]) -> None:
        self._draw = draw
        self._stock: list[bytes] = []

    def take(self) -> bytes:
        """Return the next one."""
        while True:
            try:
                return self._stock.pop()
            except IndexError:
                self._stock.extend(self._draw())


class Policy:
    """What one client's locks have in common.

    Args:
        masters: their addresses, for messages.
        drift_factor: the share of the ttl that clocks may go wrong by.
        attempt_ns: how long one attempt waits for answers; None takes 5 % of the ttl, at least 100 ms.
        retry: the pauses between attempts.
        clock: tells the time.
        random: a float in [0, 1).
        tokens: where the token of every attempt comes from.

    Attributes:
        size, quorum: how many masters there are, and how many must agree.
    """

    __slots__ = ("attempt_ns", "clock", "drift_factor", "masters", "quorum", "random", "retry", "size", "tokens")

    def __init__(
        self,
        *,
        masters: tuple[str, ...],
        drift_factor: float,
        attempt_ns: int | None,
        retry: Retry,
        clock: Clock,
        random: Callable[[], float],
        tokens: Tokens,
    ) -> None:
        self.masters = masters
        self.size = len(masters)
        self.quorum = quorum_of(self.size)
        self.drift_factor = drift_factor
        self.attempt_ns = attempt_ns
        self.retry = retry
        self.clock = clock
        self.random = random
        self.tokens = tokens

    def validity_ns(self, ttl_ms: int) -> int:
        """Return for how long after its first byte was sent a ttl may be believed: ttl - drift."""
        return ttl_ms * 1_000_000 - drift_ns(ttl_ms, self.drift_factor)

    def patience_ns(self, ttl_ms: int) -> int:
        """Return how long one round of commands waits for answers (the Redis page: small against the ttl)."""
        if self.attempt_ns is not None:
            return self.attempt_ns
        return max(100_000_000, ttl_ms * 1_000_000 // 20)


def drift_ns(ttl_ms: int, drift_factor: float) -> int:
    """Return what is taken off a ttl for clocks that run at different rates: drift_factor of it, and 2 ms.

    "1 % + 2 ms" is the allowance of redlock-py, pottery, RedLock.net and aioredlock; 2 ms also cover the
    1 ms grain of Redis' expiry.
    """
    return int(ttl_ms * 1_000_000 * drift_factor) + 2_000_000
