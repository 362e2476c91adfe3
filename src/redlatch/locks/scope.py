"""Cancel the body of an ``async with`` when its lock is lost.

The scope works like `asyncio.timeout`, with the loss in place of the clock. It counts the cancellation requests of the
task (`Task.cancelling`) to tell its own request from those of others. So scopes may be nested in each other, in a
TaskGroup and in a timeout.
"""

from __future__ import annotations

import asyncio


class LossScope:
    """The scope of one ``async with``, from its entry to its exit, in the task that runs it.

    Attributes:
        lost: whether this scope has cancelled the body because of the loss.
    """

    __slots__ = ("_before", "_task", "lost")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_loss: it cancels the running task, and no task is running")
        self._task = task
        self._before = task.cancelling()
        self.lost = False

    def cancel(self) -> None:
        """Cancel the body, because its lock is lost."""
        if not self.lost:
            self.lost = True
            self._task.cancel("redlatch: the lock was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Withdraw the request to cancel.

        Args:
            error: the exception of the body, or None.

        Returns:
            True if the loss is the only thing to report: no other code requested a cancellation, and the body raised
            no exception of its own.
        """
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body ended before the request reached it. Let the request arrive here, so that it does not
                # cancel the code after the scope.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        others = self._task.uncancel() > self._before
        if others and not isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError
        return not others and (error is None or isinstance(error, asyncio.CancelledError))
