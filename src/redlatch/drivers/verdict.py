"""What a task of asyncio awaits until its ballot is decided. Compiled, too (see `redlatch._c`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Verdict:
    """Awaited by one task, once, as an asyncio.Future is; it costs a third of one.

    A task knows what it may wait for by the attribute `_asyncio_future_blocking` and calls what else is here (see
    `asyncio.futures.isfuture` and `Task.__step`); so this is a Future to it, and to whoever cancels the task. What it
    spares is the way through the loop's queue: `wake` lets the task go on at once, with its own context, as the loop
    would have done a moment later.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_loop", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._callback: Callable[[Verdict], object] | None = None
        self._context: Context | None = None
        self._cancelled: tuple[Any, ...] | None = None
        self.done = False

    # --- for the driver ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the task go on now; only where no task is running."""
        if not self.done:
            self.done = True
            callback, context = self._callback, self._context
            if callback is not None and context is not None:
                self._callback = self._context = None  # no cycle with the task is left
                context.run(callback, self)

    def wake_soon(self) -> None:
        """Let the task go on in the loop's next turn."""
        if not self.done:
            self.done = True
            self._schedule()

    def _schedule(self) -> None:
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
            self._callback = self._context = None

    # --- for the task ------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        return self  # type: ignore[return-value]  # an iterator is enough

    def __iter__(self) -> Verdict:
        return self

    def __next__(self) -> Verdict:
        if self.done:
            raise StopIteration
        self._asyncio_future_blocking = True
        return self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that its task must belong to."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Verdict], object], *, context: Context) -> None:
        """Note how to wake the task."""
        self._callback, self._context = callback, context
        if self.done:
            self._schedule()

    def cancel(self, msg: object = None) -> bool:
        """Wake the task with CancelledError; False if it is awake already."""
        if self.done:
            return False
        self._cancelled = () if msg is None else (msg,)
        self.wake_soon()
        return True

    def result(self) -> None:
        """Raise what the task is to be told, if anything."""
        if self._cancelled is not None:
            raise asyncio.CancelledError(*self._cancelled)
