"""The latch: callers wait until a number of counts have come, by the algorithm of `quorum.latch`."""

from __future__ import annotations

from typing import Any, NoReturn

from ..config import check_count
from ..quorum.hold import Hold
from .lock import Shared

# Unless the guard's `max_ttl` is smaller.
TTL_MS = 60_000

# A client that gives a forgetful master its counts back reads them one by one.
MOST_COUNTS = 10_000


class BaseLatch:
    """The part of a latch that both faces share; its hold is never claimed."""

    def __init__(self, shared: Shared[Any], hold: Hold, count: int, ttl_ms: int) -> None:
        check_count("count", count, MOST_COUNTS)
        self._shared: Shared[Any] = shared
        self._hold = hold
        self._count = count
        self._ttl_ms = ttl_ms

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one client")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._count}>"

    @property
    def name(self) -> str | bytes:
        """The name as you gave it."""
        return self._hold.name

    @property
    def count(self) -> int:
        """The number of counts that open the latch."""
        return self._count

    def _use(self) -> Any:
        return self._shared.quorum.counts(self._hold, self._count, self._ttl_ms)
