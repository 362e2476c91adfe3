"""The body of an ``async with`` that the loss of its lock cancels.

It does what `asyncio.timeout` does, with the loss in place of the clock: who cancelled is told apart by the count of
requests (`Task.cancelling`), so that scopes may be nested in each other, in a TaskGroup and in a timeout.
"""

from __future__ import annotations

import asyncio


class LossScope:
    """From the entry of an ``async with`` to its exit, in the task that runs it.

    Attributes:
        lost: whether the loss has cancelled the body.
    """

    __slots__ = ("_before", "_task", "lost")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_loss: the body of an async with can be cancelled in a task only")
        self._task = task
        self._before = task.cancelling()
        self.lost = False

    def cancel(self) -> None:
        """Cancel the body: its lock is lost."""
        if not self.lost:
            self.lost = True
            self._task.cancel("redlatch: the lock was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Take the request to cancel back.

        Args:
            error: what the body raised.

        Returns:
            Whether the loss is all there is to tell: nobody else wants the task to be cancelled, and the body raised
            nothing of its own.
        """
        if not isinstance(error, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)  # the body has ended before the request reached it: it must not reach others
            except asyncio.CancelledError:
                pass
        others = self._task.uncancel() > self._before
        if others and not isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError
        return not others and (error is None or isinstance(error, asyncio.CancelledError))
