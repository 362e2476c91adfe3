"""The rate limit: at most so many acquires in any window of a period, in all processes together.

`quorum.kinds.semaphore.Permit` has the algorithm. No call releases, extends or loses a permit, so each acquire makes a
lock of its own, which is forgotten when it was won.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ..config import check_count, timeout_of
from ..errors import ConfigurationError, LockBusy, LockTimeout, Retryable
from ..quorum.claim import HELD
from ..quorum.quorum import Quorum
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED, drift_ns
from .lock import Shared

MOST_PERMITS = 1_000_000

# After so many late permits in a row, a call without a timeout raises.
MOST_LATE = 10


def period_ms_of(period: object, quorum: Quorum) -> int:
    # In milliseconds, the unit of the masters.
    if isinstance(period, bool) or not isinstance(period, (int, float)):
        raise TypeError(f"period: seconds as a number are needed, not {type(period).__name__}")
    # The comparison also refuses NaN.
    if not 0.01 <= period < UNBOUNDED // SECOND:
        raise ConfigurationError(f"period: a finite number of seconds, at least 0.01, is needed; got {period}")
    if period * 1000 > quorum.max_ttl_ms:
        raise ConfigurationError(
            f"period: {period} s is above the {quorum.max_ttl_ms / 1000:g} s of the guard; use a shorter one, or "
            f"guard=Guard(max_ttl={period})"
        )
    return math.ceil(period * 1000)


class BaseRateLimit:
    """The part of a rate limit that both faces share; `make` makes a lock of the kind `permit`."""

    def __init__(
        self, shared: Shared[Any], make: Callable[..., Any], permit: Callable[..., Any], limit: int, period: float
    ) -> None:
        check_count("limit", limit, MOST_PERMITS)
        self._shared: Shared[Any] = shared
        self._period_ms = period_ms_of(period, shared.quorum)
        self._limit = limit
        self._make = make
        self._kind = permit
        # The time that an attempt may take (see `Permit`). It grows if the masters are slower.
        self._slack_ns = drift_ns(self._period_ms, shared.quorum.drift_factor)
        model = self._permit()
        self._name: str | bytes = model.name
        self._timeout: float | None = model._timeout

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one client")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._limit} in {self.period:g} s>"

    @property
    def name(self) -> str | bytes:
        """The name as you gave it."""
        return self._name

    @property
    def limit(self) -> int:
        """The largest number of acquires in any window of the period."""
        return self._limit

    @property
    def period(self) -> float:
        """The length of the window in seconds, in whole milliseconds."""
        return self._period_ms / 1000

    def _permit(self) -> Any:
        quorum, slack_ns = self._shared.quorum, self._slack_ns
        counted_ms = self._period_ms + -(-slack_ns // MILLISECOND)
        # As long as a ttl must be that gives this validity: the clocks of masters may be faster than ours.
        lives_ms = math.ceil((counted_ms + 2) / (1 - quorum.drift_factor))
        kind = partial(self._kind, permits=self._limit, lives_ms=lives_ms, slack_ns=slack_ns)
        lock = self._make(make=kind)
        # A master that has forgotten its slots is kept out for this ttl and its drift. If the period is just below
        # `max_ttl`, the slack is the drift of the period (`_longest_slack_ns`), and `max_ttl` is enough. The ttl also
        # bounds the attempt, which may take longer than a short period.
        wait_ms = quorum.wait_ns(counted_ms) // MILLISECOND
        lock._ttl_ms = min(counted_ms + wait_ms, quorum.max_ttl_ms)
        # A permit is neither renewed nor lost, even if the client has an `on_lost`.
        lock._upkeep = None
        return lock

    def _until_ns(self, blocking: bool, timeout: float | None) -> int:
        seconds = self._timeout if timeout is None and blocking is True else timeout_of(timeout, blocking)
        if seconds is None:
            return UNBOUNDED
        return self._shared.quorum.clock.now() + int(seconds * SECOND) if seconds else 0

    def _left(self, until_ns: int) -> float:
        if until_ns >= UNBOUNDED:
            return math.inf
        return max(0, until_ns - self._shared.quorum.clock.now()) / SECOND

    def _counts(self, lock: Any) -> bool:
        # A permit that came too late is given back.
        hold = lock._hold
        slack_ns: int = hold.kind.slack_ns
        if hold.elapsed_ns <= slack_ns:
            # Nothing releases it.
            hold.free()
            return True
        self._shared.quorum.abandon(self._shared.driver, hold, hold.ticket)
        self._slack_ns = max(self._slack_ns, min(2 * slack_ns, self._longest_slack_ns()))
        return False

    def _give_back(self, lock: Any) -> None:
        """Give a permit back whose acquire was interrupted just after it was given."""
        hold = lock._hold
        if hold.state == HELD:
            self._shared.quorum.abandon(self._shared.driver, hold, hold.ticket)

    def _gives_up(self, lock: Any, until_ns: int, late: int) -> bool:
        """Return whether a permit that came too late is the last: the time is over, and no attempt may take longer.

        Args:
            lock: the lock of the permit.
            late: how many permits in a row came too late in this call.

        Raises:
            ConfigurationError: a call without a timeout would never end, because the guard leaves no time.
        """
        quorum, hold = self._shared.quorum, lock._hold
        if hold.kind.slack_ns < self._longest_slack_ns():
            return False
        if until_ns < UNBOUNDED:
            return bool(quorum.clock.now() >= until_ns)
        if late >= MOST_LATE and self._room_ns() <= hold.kind.slack_ns:
            raise ConfigurationError(
                f"period: {self.period:g} s leaves no time for an attempt within the {quorum.max_ttl_ms / 1000:g} s of "
                f"the guard: {_too_slow(hold)}; use a shorter one, or "
                f"guard=Guard(max_ttl={math.ceil(self.period + 4 * hold.elapsed_ns / SECOND)})"
            )
        return False

    def _longest_slack_ns(self) -> int:
        quorum = self._shared.quorum
        least_ns = drift_ns(self._period_ms, quorum.drift_factor)
        return max(least_ns, min(2 * quorum.wait_ns(self._period_ms), self._room_ns()))

    def _room_ns(self) -> int:
        """Return the time that the guard leaves beside the period."""
        return (self._shared.quorum.max_ttl_ms - self._period_ms) * MILLISECOND

    def _refused(self, lock: Any) -> Retryable:
        quorum, hold, waited = self._shared.quorum, lock._hold, self._timeout or 0.0
        left_ns = max(0, hold.kind.free_ns - quorum.clock.now())
        taken = f"all {self._limit} permits of {self.period:g} s are taken"
        taken += f", and one is free in {left_ns / SECOND:.3f} s" if left_ns else ""
        if hold.elapsed_ns > hold.kind.slack_ns:
            taken = _too_slow(hold)
        retry_after = max(left_ns / SECOND, quorum.retry.first)
        if not waited:
            return LockBusy(f"{self.name!r} is busy: {taken}", name=self.name, retry_after=retry_after)
        return LockTimeout(
            f"{self.name!r} was not acquired within {waited:g} s: {taken}",
            name=self.name,
            elapsed=waited,
            retry_after=retry_after,
        )


def _too_slow(hold: Any) -> str:
    return f"the masters took {hold.elapsed_ns / SECOND:.3f} s, and {hold.kind.slack_ns / SECOND:.3f} s count"
