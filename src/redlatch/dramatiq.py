"""A backend for dramatiq's rate limiters, on redlatch's semaphores and rate limits (docs/dramatiq.md).

dramatiq's own backends keep a counter for each key. Here each unit of the counter is a slot or permit with its own ttl,
so that of a killed worker expires, and none is released twice.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from dramatiq.rate_limits import RateLimiterBackend

from .client import Client, Semaphore
from .errors import LockLost, NotOwned
from .locks.owner import of_threads, running_task
from .loss import Loss, LossKind
from .quorum.policy import Retry
from .votes.units import SECOND
from .wire.engine.net import now_ns

__all__ = ["RedlatchBackend"]

# The key of a bucket or window: the limiter's key and its beginning.
_TIMED = re.compile(r"(.*)@(\d+)", re.DOTALL)


class RedlatchBackend(RateLimiterBackend):
    """A backend for all limiters of `dramatiq.rate_limits`. Calls of no limiter raise NotImplementedError.

    Args:
        client: has the masters of the slots. A worker process needs its own client, so make it in the module of the
            actors.
        retry: the pauses of a party that polls a barrier. Default `Retry()`: up to 0.05 s.
    """

    def __init__(self, client: Client, *, retry: Retry | None = None) -> None:
        self._client = client
        self._retry = retry or Retry()
        self._thread = of_threads()
        self._one_at_a_time = threading.Lock()
        self._slots: dict[str, list[tuple[weakref.ref[Any], Semaphore]]] = {}

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Acquire the first slot of a key (`value` is 1), or create a barrier for `value` parties.

        Returns:
            True if the slot was free, or there was no such barrier.

        Raises:
            QuorumUnavailable: too many masters failed.
            ConfigurationError: the ttl of a bucket or barrier (in milliseconds) is above the guard's `max_ttl`.
        """
        if value == 1:
            return self._take(key, 1, ttl)
        return self._leave([f"{key}@barrier", f"{key}@barrier/{value}"], ttl)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        """Acquire a slot of a key that has `maximum` slots; result and errors as for `add`."""
        _only(amount=amount, of=1)
        return self._take(key, maximum, ttl)

    def incr_and_sum(self, key: str, keys: Callable[[], list[str]], amount: int, maximum: int, ttl: int) -> bool:
        """Acquire a slot of a window that has `maximum` slots; result and errors as for `add`."""
        _only(amount=amount, of=1)
        window = {found[1] if (found := _TIMED.fullmatch(each)) else None for each in [key, *keys()]}
        if len(window) != 1 or None in window:
            raise NotImplementedError("incr_and_sum: the keys of dramatiq's WindowRateLimiter are needed")
        return self._count(str(window.pop()), maximum, ttl)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        """Release the caller's slot (`minimum` is 0), or arrive at a barrier (1).

        The release of a slot does not wait for the masters. If they cannot be reached, the slot expires. For an
        arrival, the ttl is at least that of the barrier, in milliseconds.

        Returns:
            For a slot, True if it was still held. For a barrier, True if other parties are missing.

        Raises:
            QuorumUnavailable: too many masters failed; only at a barrier.
            LockTimeout: other parties were arriving for the whole ttl; only at a barrier.
        """
        _only(amount=amount, of=1)
        if minimum == 0:
            return self._give_back(key)
        _only(minimum=minimum, of=1)
        return self._arrive(key, ttl)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Return True if the event of a key came within `timeout` milliseconds (None: no limit)."""
        event = self._client.lock(key)
        end = None if timeout is None else now_ns() / SECOND + timeout / 1000
        for attempt in itertools.count():
            if event.locked():
                return True
            pause = self._retry.pause_ns(attempt, random.random()) / SECOND
            left = pause if end is None else end - now_ns() / SECOND
            if left <= 0:
                return False
            time.sleep(min(pause, left))
        raise AssertionError("count() never ends")

    def wait_notify(self, key: str, ttl: int) -> None:
        """Publish the event of a key for `ttl` milliseconds."""
        self._leave([key], ttl)

    # --- slots -------------------------------------------------------------------------------------------

    def _take(self, key: str, slots: int, ttl: int) -> bool:
        if _is_bucket(key, ttl):
            return self._count(key, slots, ttl)
        if ttl <= self._client._quorum.max_ttl_ms:
            slot = self._client.semaphore(key, slots, ttl / 1000)
        else:
            slot = self._client.semaphore(key, slots, auto_renew=True, max_hold=ttl / 1000)
        try:
            won = slot.acquire(blocking=False)
            if won:
                self._note(key, slot)
        except BaseException:
            # dramatiq raises TimeLimitExceeded and Shutdown between any two lines of an actor.
            if slot.token is not None:
                slot.release(wait=False)
            raise
        return won

    def _count(self, key: str, permits: int, ttl: int) -> bool:
        return self._client.rate_limit(key, permits, ttl / 1000).acquire(blocking=False)

    def _note(self, key: str, slot: Semaphore) -> None:
        with self._one_at_a_time:
            # Forget expired slots that their thread or task will never release.
            kept = [each for each in self._slots.get(key, []) if each[0]() is not None or each[1].remaining()]
            self._slots[key] = [*kept, (weakref.ref(self._caller()), slot)]

    def _give_back(self, key: str) -> bool:
        caller = self._caller()
        with self._one_at_a_time:
            slots = self._slots.get(key, [])
            # Without a slot of its own, the caller releases one that another thread has acquired for it.
            mine = [each for each in slots if each[0]() is caller] or slots
            if not mine:
                return False
            taken = mine[-1]
            slots.remove(taken)
            if not slots:
                del self._slots[key]
        slot = taken[1]
        try:
            slot.release(wait=False)
        except (LockLost, NotOwned) as error:
            # A renewed slot has reported its loss already.
            if slot._upkeep is None:
                slot._report_loss(error.reason if isinstance(error, LockLost) else Loss(LossKind.OTHER, ""))
            return False
        return True

    def _caller(self) -> Any:
        return running_task() or self._thread()

    # --- barriers ----------------------------------------------------------------------------------------

    # A barrier of N parties is two locks, ``key@barrier`` and ``key@barrier/N``. The party that arrives as number n
    # acquires the lock ``key@arrived/n``, except for the last one: it finds the lock ``key@barrier/n``.

    def _arrive(self, key: str, ttl: int) -> bool:
        # One party at a time: if two tried for one number, both could fail, and the number would be lost.
        with self._client.lock(f"{key}@arriving", timeout=ttl / 1000):
            while self._is_locked(f"{key}@barrier"):
                number = self._next_arrival(key)
                if self._is_locked(f"{key}@barrier/{number}"):
                    return False
                if self._leave([f"{key}@arrived/{number}"], ttl):
                    return True
            return False

    def _next_arrival(self, key: str) -> int:
        # Double, then halve.
        taken, free = 0, 1
        while self._is_locked(f"{key}@arrived/{free}"):
            taken, free = free, free * 2
        while free - taken > 1:
            middle = (taken + free) // 2
            if self._is_locked(f"{key}@arrived/{middle}"):
                taken = middle
            else:
                free = middle
        return free

    def _leave(self, names: list[str], ttl: int) -> bool:
        # These locks are never released. A client remembers plain locks, but not a multi-lock.
        return self._client.multi_lock(names, ttl / 1000).acquire(blocking=False)

    def _is_locked(self, name: str) -> bool:
        return self._client.lock(name).locked()


def _only(of: int, **given: int) -> None:
    [(name, value)] = given.items()
    if value != of:
        raise NotImplementedError(f"{name}: only {of} can be had from slots of a semaphore, not {value}")


def _is_bucket(key: str, ttl: int) -> bool:
    # BucketRateLimiter never releases its slots.
    found = _TIMED.fullmatch(key)
    return found is not None and int(found[2]) % ttl == 0 and abs(time.time() * 1000 - int(found[2])) < 2 * ttl
