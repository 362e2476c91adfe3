# cython: nonecheck=True
"""The fields of a lock object, its making, the two calls of every cycle, and what a batch asks each of its locks.

Compiled: a constructor in Python costs four times as much, and each field that Python reads of a compiled object costs
150 instructions. With `nonecheck`, a lock that was never initialised raises an AttributeError instead of a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redlatch.config import timeout_of


class SharedFields:
    """The fields of `Shared`."""

    __slots__ = ("__weakref__", "driver", "no_scripts", "on_lost", "quorum", "run", "wait_release")

    def __init__(self, driver: Any, quorum: Any, wait_release: bool, on_lost: Any, no_scripts: str = "") -> None:
        self.driver = driver
        # A field costs less than the attribute of an attribute.
        self.run: Any = driver.run
        self.quorum = quorum
        self.wait_release = wait_release
        self.on_lost = on_lost
        self.no_scripts = no_scripts


class Core:
    """The fields of every lock object. They take objects of both builds, so one build serves all clients."""

    __slots__ = ("__weakref__", "_hold", "_shared", "_timeout", "_ttl_ms", "_upkeep")

    def __init__(self, shared: SharedFields, hold: Any, ttl_ms: int, timeout: float | None) -> None:
        self._open(shared, hold, ttl_ms, timeout)

    def _open(self, shared: SharedFields, hold: Any, ttl_ms: int, timeout: float | None) -> None:
        self._shared = shared
        self._hold = hold
        self._ttl_ms = ttl_ms
        self._timeout = timeout
        self._upkeep: Any = None

    def _acquire(self, blocking: bool, timeout: float | None, ticket: object) -> bool:
        shared, hold = self._shared, self._hold
        timeout = self._timeout_of(blocking, timeout)
        won: bool = shared.run(shared.quorum.acquire(hold, self._ttl_ms, timeout, ticket, self))
        return won

    def _acquire_in_task(self, blocking: bool, timeout: float | None, ticket_of: Callable[[], object]) -> Any:
        """Return a coroutine that acquires the lock; `ticket_of` makes the ticket while a ``with`` is open."""
        shared, hold = self._shared, self._hold
        timeout = self._timeout_of(blocking, timeout)
        call = shared.run(shared.quorum.acquire_in_task(hold, self._ttl_ms, timeout, ticket_of, self))
        # Python's warning of a forgotten await shows this name.
        call.__qualname__ = "AsyncLock.acquire"
        return call

    def _timeout_of(self, blocking: bool, timeout: float | None) -> float | None:
        if timeout is not None:
            return timeout_of(timeout, blocking)
        if blocking is True:
            return self._timeout
        return 0.0 if blocking is False else timeout_of(timeout, blocking)

    def _release(self, wait: bool) -> Any:
        shared = self._shared
        if wait:
            return shared.run(shared.quorum.release(self._hold, self._ttl_ms))
        return shared.run(shared.quorum.release_nowait(self._hold, self))

    def _release_in_task(self, wait: bool) -> Any:
        call = self._release(wait)
        call.__qualname__ = "AsyncLock.release"
        return call


def new_lock(
    lock_of: type[Core],
    shared: SharedFields,
    hold_named: Callable[[bytes, Any, Any], Any],
    prefix: bytes,
    name: Any,
    kind: Any,
    ttl_ms: int,
    timeout: float | None,
) -> Any:
    """Return a lock of this class on a name. One call costs less than that of the constructor."""
    lock = lock_of.__new__(lock_of)
    lock._open(shared, hold_named(prefix, name, kind), ttl_ms, timeout)
    return lock


def new_locks(
    lock_of: type[Core],
    shared: SharedFields,
    hold_named: Callable[[bytes, Any, Any], Any],
    prefix: bytes,
    names: list[Any],
    kind: Any,
    ttl_ms: int,
) -> list[Any]:
    return [new_lock(lock_of, shared, hold_named, prefix, name, kind, ttl_ms, None) for name in names]


def present(elements: list[Any]) -> list[Any]:
    return [element for element in elements if element is not None]


def holds_of(locks: Sequence[Core]) -> list[Any]:
    holds: list[Any] = []
    for lock in locks:
        holds.append(lock._hold)
    return holds


def longest_ttl_ms(locks: Sequence[Core]) -> int:
    longest = 0
    for lock in locks:
        longest = lock._ttl_ms if lock._ttl_ms > longest else longest
    return longest


def first_foreign(elements: list[Any], shared: Any) -> int:
    """Return the place of the first element that is neither None nor a lock with this `shared`; or -1."""
    for place in range(len(elements)):
        if elements[place] is None:
            continue
        if not isinstance(elements[place], Core):
            return place
        lock = elements[place]
        if lock._shared is not shared:
            return place
    return -1
