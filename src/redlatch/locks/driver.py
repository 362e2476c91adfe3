"""The seam between locks and drivers: what a lock needs of the driver that runs its calls.

The drivers for threads and for asyncio share the session (`drivers.session`), which makes the steps of each call in the
driver's own build, compiled or pure. They differ in how they run steps: one blocks the calling thread, the other one
returns an awaitable.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from ..errors import LockError
from ..health import Health
from ..quorum.condition import CallQueue, Waiter
from ..quorum.effects import Steps
from ..quorum.hold import Hold
from ..quorum.latch import Counts
from ..quorum.upkeep import Term
from ..quorum.waiting.queues import WaitQueues
from ..stats import Stats
from ..votes.commands import Command


class Driver(Protocol):
    """The methods that all locks use."""

    @property
    def queues(self) -> WaitQueues:
        """The queues of the client."""

    @property
    def forked(self) -> bool:
        """True if this is a child of the process that the client was connected in."""

    @property
    def state(self) -> str:
        """True if the client can be used, in a few words for its repr."""

    def causes(self) -> dict[str, BaseException]:
        """Return why masters do not vote, by their names; without I/O."""

    def stats(self) -> Stats:
        """Return the figures of the client."""

    def health(self) -> Health:
        """Return what is known of the masters, without I/O."""

    def send(self, commands: list[Command]) -> None:
        """Send commands to every master without waiting for an answer."""

    def resend_release(self, hold: Hold, ticket: object, error: BaseException) -> None:
        """Have an interrupted release go on without its caller; raise LockLost if `close` has released the lock."""

    def leave_queue(self, hold: Hold) -> None:
        """Make the next waiter the head of the queue, and call it."""

    def add_upkeep(self, term: Term) -> None:
        """Renew a lock, or report its loss, from now on."""

    def condition(self, hold: Hold, key: bytes, ttl_ms: int) -> CallQueue:
        """Return the waiters of the condition with this key, for the lock of a hold."""

    def leave_condition(self, waiter: Waiter, used: int) -> None:
        """Have a waiter leave its condition, without waiting."""

    def counts(self, hold: Hold, count: int, ttl_ms: int) -> Counts:
        """Return one use of a latch that opens after `count` counts."""

    def take_back(self, counts: Counts) -> None:
        """Take back the count of a call that failed or was interrupted."""

    # --- the steps of a call, for `run` ------------------------------------------------------------

    def acquiring(self, hold: Hold, ttl_ms: int, timeout: float | None) -> Steps: ...

    def extending(self, hold: Hold, ttl_ms: int) -> Steps: ...

    def releasing_nowait(self, hold: Hold, released_lock: object) -> Steps: ...

    def locked(self, hold: Hold, ttl_ms: int) -> Steps: ...

    def owned(self, hold: Hold, ttl_ms: int) -> Steps: ...

    def holder(self, hold: Hold, ttl_ms: int) -> Steps: ...

    def blockers(self, holds: list[Hold], timeout: float) -> Steps: ...

    def awaiting_call(self, waiter: Waiter, timeout: float | None) -> Steps: ...

    def awaiting_counts(self, counts: Counts, timeout: float | None) -> Steps: ...

    def acquiring_many(self, holds: list[Hold], ticket: object, ttl_ms: int) -> Steps: ...

    def acquiring_all(self, holds: list[Hold], ticket: object, ttl_ms: int, timeout: float | None) -> Steps: ...

    def releasing_many(self, holds: list[Hold], ttl_ms: int, errors: dict[int, LockError]) -> Steps: ...

    def together(self, many: list[Steps], errors: dict[int, LockError]) -> Steps: ...

    def tickets(self, holds: list[Hold]) -> list[object]: ...


class ThreadDriver(Driver, Protocol):
    """The methods that only the locks for threads use."""

    def run(self, steps: Steps) -> Any: ...

    def acquire(self, hold: Hold, ttl_ms: int, timeout: float | None, ticket: object) -> bool: ...

    def abandon(self, hold: Hold, ticket: object) -> None: ...

    def release(self, hold: Hold, ttl_ms: int) -> None: ...

    def release_nowait(self, hold: Hold, released_lock: object) -> None: ...

    def connect(self, all_of_them: bool = False) -> None: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> None: ...


class TaskDriver(Driver, Protocol):
    """The methods that only the locks for asyncio use. An interrupted call recovers inside `run`."""

    @property
    def home(self) -> Any:
        """The event loop, once the client is connected."""

    def run(
        self, steps: Steps, hold: Hold | None = None, ticket: object = None, lock: Any = None
    ) -> Coroutine[Any, Any, Any]: ...

    def acquire(self, hold: Hold, ttl_ms: int, timeout: float | None, lock: Any) -> Coroutine[Any, Any, bool]: ...

    def release(self, hold: Hold, ttl_ms: int) -> Coroutine[Any, Any, Any]: ...

    def release_nowait(self, hold: Hold, released_lock: object) -> Coroutine[Any, Any, Any]: ...

    def stands_for(self, owner: object) -> None: ...

    def connect(self, all_of_them: bool = False) -> Coroutine[Any, Any, None]: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> Coroutine[Any, Any, None]: ...

    def drop(self) -> None: ...
