"""The fields of a lock object, and the two calls of every cycle.

Compiled, too (see `redlatch._c`): a constructor in Python costs four times as much, and each field that Python reads of
a compiled object costs 150 instructions.
"""

from __future__ import annotations

from typing import Any


class Core:
    """What every lock object has; `BaseLock` describes the fields.

    The fields take objects of both builds, so one build of this class serves all clients of the process.
    """

    __slots__ = ("__weakref__", "_hold", "_shared", "_timeout", "_ttl_ms", "upkeep")

    def __init__(self, shared: Any, hold: Any, ttl_ms: int, timeout: float | None) -> None:
        self._shared = shared
        self._hold = hold
        self._ttl_ms = ttl_ms
        self._timeout = timeout
        self.upkeep: Any = None

    def _acquiring(self, timeout: float | None, ticket: object) -> Any:
        """Begin an acquire; `timeout` and `ticket` are as for the driver's `acquire`."""
        return self._shared.driver.acquire(self._hold, self._ttl_ms, timeout, ticket)

    def _releasing(self) -> Any:
        """Begin a release that waits for the answer."""
        return self._shared.driver.release(self._hold, self._ttl_ms)
