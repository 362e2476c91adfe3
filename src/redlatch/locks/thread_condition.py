# Generated from locks/task_condition.py by tests/support/threads_face.py: change the source, and run `make faces`.
"""The condition for threads."""

from __future__ import annotations

from ..config import seconds_of
from .condition import BaseCondition
from .recovering import recovering


class Condition(BaseCondition):
    """A condition for threads; made by `Lock.condition`. It belongs to one lock object."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until a holder of the lock calls `notify`, and acquire the lock again.

        The lock is released only when the masters know this waiter, so no later `notify` is missed. A wait may also end
        without a call, so check again what you wait for. If this raises, or if the process dies, a call that the waiter
        had goes to another one. If it raises after the release, or is cancelled then, it does not acquire again.

        Args:
            timeout: how long to wait for the call, in seconds. None: no limit. The acquire that follows has none.

        Returns:
            False if the timeout passed before a call came. In both cases the lock is held again.

        Raises:
            NotOwned, LockLost: the lock is not held, or was lost before this released it.
            LockBusy: `max_waiters` of this client wait for the lock already. It is not held.
            QuorumUnavailable: too many masters failed. `check` of the lock says whether it is held.
            ConfigurationError, TypeError, ClientUnusable: as for `Lock.acquire`.
        """
        seconds = seconds_of("timeout", timeout)
        self._lock.check()
        shared, waiter = self._shared, self._queue.waiter()

        def wait() -> bool:
            shared.run(waiter.entering())
            self._lock.release()
            called = bool(shared.run(shared.quorum.await_call(waiter, seconds)))
            self._lock._acquire_again(waiter.claim)
            if called:
                shared.quorum.leave_condition(shared.driver, waiter, waiter.used())
            return called

        return recovering(wait, lambda _: shared.quorum.leave_condition(shared.driver, waiter, 0))

    def notify(self, n: int = 1) -> None:
        """Call waiters: they go on when they have the lock, one after another.

        The waiters that have waited longest are called first. A call without a waiter is lost. The lock must be held:
        change what the waiters wait for, call them, then release the lock.

        Args:
            n: how many waiters to call. More than 1,000 calls all. Default 1.

        Raises:
            NotOwned, LockLost: as for `Lock.check`.
            QuorumUnavailable: too many masters failed. The call may have reached a waiter.
            ConfigurationError, TypeError, ClientUnusable: as for `Lock.acquire`.
        """
        self._shared.run(self._queue.notifying(self._count_of(n)))

    def notify_all(self) -> None:
        """Call all waiters; see `notify`.

        Raises:
            NotOwned, LockLost, QuorumUnavailable, ClientUnusable: as for `notify`.
        """
        self._lock.check()
        self._shared.run(self._queue.notifying(0))
