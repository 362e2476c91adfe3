"""The calls of one client: a lock asks for a call, and a driver runs its steps or recovers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redlatch.errors import LockError

from ..votes.units import SECOND, UNBOUNDED
from . import batch, inquiry, recovery
from .acquire import acquire
from .condition import CallQueue, Waiter
from .effects import Steps
from .extend import extend
from .hold import Hold, those_held
from .latch import Counts
from .quorum import Quorum
from .release import release, release_nowait


class Calls(Quorum):
    """The quorum of one client, with the calls that its locks make. Timeouts are in seconds; None means no limit."""

    __slots__ = ()

    # --- one lock ----------------------------------------------------------------------------------

    def acquire(
        self,
        hold: Hold,
        ttl_ms: int,
        timeout: float | None,
        ticket: object,
        lock: Any = None,
    ) -> Steps:
        """Claim a hold and try to win its lock, once if the timeout is 0.

        The calling task owns it, even if another one runs this. When it is held, the upkeep of the lock object begins.
        """
        return acquire(self, hold, ttl_ms, self._give_up_ns(timeout), ticket, lock)

    def acquire_in_task(
        self, hold: Hold, ttl_ms: int, timeout: float | None, ticket_of: Callable[[], object], lock: Any
    ) -> Steps:
        """As `acquire`; `ticket_of` makes the ticket while a ``with`` is open."""
        ticket = object() if hold.entered is None else ticket_of()
        return self.acquire(hold, ttl_ms, timeout, ticket, lock)

    def release(self, hold: Hold, ttl_ms: int) -> Steps:
        return release(self, hold, self.wait_ns(ttl_ms))

    def release_nowait(self, hold: Hold, released_lock: object) -> Steps:
        """Release without waiting; the lock is notified if it had been lost before."""
        return release_nowait(self, hold, released_lock)

    def extend(self, hold: Hold, ttl_ms: int) -> Steps:
        return extend(self, hold, ttl_ms)

    def locked(self, hold: Hold, ttl_ms: int) -> Steps:
        return inquiry.locked(self, hold, self.wait_ns(ttl_ms))

    def owned(self, hold: Hold, ttl_ms: int) -> Steps:
        return inquiry.owned(self, hold, self.wait_ns(ttl_ms))

    def holder(self, hold: Hold, ttl_ms: int) -> Steps:
        return inquiry.holder(self, hold, self.wait_ns(ttl_ms))

    # --- many locks --------------------------------------------------------------------------------

    def acquire_many(self, holds: list[Hold], ticket: object, ttl_ms: int) -> Steps:
        return batch.acquire_many(self, holds, ticket, ttl_ms)

    def acquire_all(self, holds: list[Hold], ticket: object, ttl_ms: int, timeout: float | None) -> Steps:
        return batch.acquire_all(self, holds, ticket, ttl_ms, self._give_up_ns(timeout))

    def release_many(self, holds: list[Hold], ttl_ms: int, errors: dict[int, LockError]) -> Steps:
        return batch.release_many(self, holds, self.wait_ns(ttl_ms), errors)

    def together(self, many: list[Steps], errors: dict[int, LockError]) -> Steps:
        return batch.together(many, errors)

    def tickets(self, holds: list[Hold]) -> list[object]:
        return batch.tickets(holds)

    def those_held(self, locks: list[Any], holds: list[Hold]) -> list[Any]:
        return those_held(locks, holds)

    def blockers(self, holds: list[Hold], timeout: float) -> Steps:
        return inquiry.blockers(self, holds, int(timeout * SECOND))

    def extend_all(self, wanted: list[tuple[Hold, int, bytes]], errors: dict[int, LockError]) -> Steps:
        return batch.together([extend(self, hold, ttl_ms, token) for hold, ttl_ms, token in wanted], errors)

    def ask_about_keys(self, terms: list[Any]) -> Steps:
        return inquiry.ask_about_keys(self, terms)

    # --- conditions and latches --------------------------------------------------------------------

    def condition(self, hold: Hold, key: bytes, ttl_ms: int) -> CallQueue:
        return CallQueue(self, hold, key, ttl_ms)

    def await_call(self, waiter: Waiter, timeout: float | None) -> Steps:
        return waiter.awaiting(self._until_ns(timeout))

    def counts(self, hold: Hold, count: int, ttl_ms: int) -> Counts:
        """Return one use of a latch that opens after `count` counts."""
        return Counts(self, hold, count, ttl_ms)

    def await_counts(self, counts: Counts, timeout: float | None) -> Steps:
        return counts.awaiting(self._until_ns(timeout))

    def _give_up_ns(self, timeout: float | None) -> int | None:
        """Return until when to try; 0 means once."""
        return None if timeout is None else self.clock.now() + int(timeout * SECOND) if timeout else 0

    def _until_ns(self, timeout: float | None) -> int:
        return UNBOUNDED if timeout is None else self.clock.now() + int(timeout * SECOND)

    # --- recovery (see `recovery`) -----------------------------------------------------------------

    def abandon(self, driver: Any, hold: Hold, ticket: object) -> None:
        recovery.abandon(self, driver, hold, ticket)

    def resend_release(self, driver: Any, hold: Hold, ticket: object, error: BaseException) -> None:
        recovery.resend_release(self, driver, hold, ticket, error)

    def leave_queue(self, driver: Any, hold: Hold) -> None:
        recovery.leave_queue(self, driver, hold)

    def leave_condition(self, driver: Any, waiter: Waiter, used: int) -> None:
        recovery.leave_condition(self, driver, waiter, used)

    def take_back(self, driver: Any, counts: Counts) -> None:
        recovery.take_back(driver, counts)
