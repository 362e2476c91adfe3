"""The condition of a lock: a holder waits until another holder calls it, in any process.

`quorum.condition` has the algorithm.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NoReturn

from ..config import seconds_of
from ..errors import ConfigurationError
from .lock import BaseLock
from .recovering import recovering, recovering_task

# The suffix of the key. The digest of the name follows if there is one.
SUFFIX = b"\0cond"


class BaseCondition:
    """The part of a condition that the sync and the asyncio class share.

    Args:
        lock: the lock; it must exclude all other holders.
        name: the name of the condition, for locks that have several.
    """

    def __init__(self, lock: Any, name: str | bytes = "") -> None:
        if lock._hold.kind.shares:
            raise ConfigurationError(
                f"condition: {lock.name!r} may have several holders at a time; only an exclusive lock has a condition",
                name=lock.name,
            )
        if lock._shared.no_scripts:
            raise ConfigurationError(lock._shared.no_scripts, name=lock.name)
        self._lock: Any = lock
        self._name = name
        self._driver: Any = lock._shared.driver
        self._queue = self._driver.condition(lock._hold, lock._hold.key + SUFFIX + _digest(name), lock._ttl_ms)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one lock object")

    def __repr__(self) -> str:
        named = f" {self._name!r}" if self._name else ""
        return f"<{type(self).__name__}{named} of {self._lock!r}>"

    @property
    def lock(self) -> BaseLock:
        """The lock of this condition."""
        return self._lock  # type: ignore[no-any-return]

    def _count_of(self, n: object) -> int:
        """Return how many waiters to call; raise unless the lock is held and the number is one."""
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f"n: a whole number is needed, not {type(n).__name__}")
        if n < 1:
            raise ConfigurationError(f"n: at least 1 is needed; got {n}")
        self._lock.check()
        return n


def _digest(name: object) -> bytes:
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"name: str or bytes is needed, not {type(name).__name__}")
    raw = name.encode() if isinstance(name, str) else name
    return blake2b(raw, digest_size=8).hexdigest().encode() if raw else b""


class Condition(BaseCondition):
    """A condition for threads; made by `Lock.condition`. It belongs to one lock object."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until a holder of the lock calls `notify`, and acquire the lock again.

        The lock is released only when the masters know this waiter, so no later `notify` is missed. A wait may also end
        without a call, so check again what you wait for. If this raises, or if the process dies, a call that the waiter
        had goes to another one. If it raises after the release, also if it is cancelled, it does not acquire again.

        Args:
            timeout: how long to wait for the call, in seconds. None: no limit. The acquire that follows has no time
                limit.

        Returns:
            False if the timeout passed before a call came, otherwise True. In both cases the lock is held again.

        Raises:
            NotOwned, LockLost: the lock is not held, or was lost before this released it.
            LockBusy: `max_waiters` of this client wait for the lock already. It is not held.
            QuorumUnavailable: too many masters failed. `check` of the lock says whether it is held.
            ConfigurationError, TypeError: the timeout is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        seconds = seconds_of("timeout", timeout)
        self._lock.check()
        driver, waiter = self._driver, self._queue.waiter()

        def wait() -> bool:
            driver.run(waiter.entering())
            self._lock.release()
            called = bool(driver.run(driver.awaiting_call(waiter, seconds)))
            self._lock._acquire_again(waiter.claim)
            if called:
                driver.leave_condition(waiter, waiter.used())
            return called

        return recovering(wait, lambda _: driver.leave_condition(waiter, 0))

    def notify(self, n: int = 1) -> None:
        """Call waiters: they go on when they have the lock, one after another.

        The waiters that have waited longest are called first. A call without a waiter is lost. The lock must be held:
        change what the waiters wait for, call them, then release the lock.

        Args:
            n: how many waiters to call. More than 1,000 calls all. Default 1.

        Raises:
            NotOwned: the lock is not held.
            LockLost: the validity of the lock is over.
            QuorumUnavailable: too many masters failed. The call may have reached a waiter.
            ConfigurationError, TypeError: the number is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        self._driver.run(self._queue.notifying(self._count_of(n)))

    def notify_all(self) -> None:
        """Call all waiters; see `notify`.

        Raises:
            NotOwned, LockLost, QuorumUnavailable, ClientUnusable: as for `notify`.
        """
        self._lock.check()
        self._driver.run(self._queue.notifying(0))


class AsyncCondition(BaseCondition):
    """A condition for asyncio tasks; made by `AsyncLock.condition`. It belongs to one lock object."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until a holder of the lock calls `notify`, and acquire the lock again.

        The lock is released only when the masters know this waiter, so no later `notify` is missed. A wait may also end
        without a call, so check again what you wait for. If this raises, or if the process dies, a call that the waiter
        had goes to another one. If it raises after the release, also if it is cancelled, it does not acquire again.

        Args:
            timeout: how long to wait for the call, in seconds. None: no limit. The acquire that follows has no time
                limit.

        Returns:
            False if the timeout passed before a call came, otherwise True. In both cases the lock is held again.

        Raises:
            NotOwned, LockLost: the lock is not held, or was lost before this released it.
            LockBusy: `max_waiters` of this client wait for the lock already. It is not held.
            QuorumUnavailable: too many masters failed. `check` of the lock says whether it is held.
            ConfigurationError, TypeError: the timeout is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        seconds = seconds_of("timeout", timeout)
        self._lock.check()
        driver, waiter = self._driver, self._queue.waiter()

        async def wait() -> bool:
            await driver.run(waiter.entering())
            await self._lock.release()
            called = bool(await driver.run(driver.awaiting_call(waiter, seconds)))
            await self._lock._acquire_again(waiter.claim)
            if called:
                driver.leave_condition(waiter, waiter.used())
            return called

        return await recovering_task(wait, lambda _: driver.leave_condition(waiter, 0))

    async def notify(self, n: int = 1) -> None:
        """Call waiters: they go on when they have the lock, one after another.

        The waiters that have waited longest are called first. A call without a waiter is lost. The lock must be held:
        change what the waiters wait for, call them, then release the lock.

        Args:
            n: how many waiters to call. More than 1,000 calls all. Default 1.

        Raises:
            NotOwned: the lock is not held.
            LockLost: the validity of the lock is over.
            QuorumUnavailable: too many masters failed. The call may have reached a waiter.
            ConfigurationError, TypeError: the number is invalid.
            ClientUnusable: the client is closed, or belongs to another process or event loop.
        """
        await self._driver.run(self._queue.notifying(self._count_of(n)))

    async def notify_all(self) -> None:
        """Call all waiters; see `notify`.

        Raises:
            NotOwned, LockLost, QuorumUnavailable, ClientUnusable: as for `notify`.
        """
        self._lock.check()
        await self._driver.run(self._queue.notifying(0))
