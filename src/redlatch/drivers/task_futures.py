"""The awaitable on which an asyncio task waits, and the ends of such waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from ..votes.units import MILLISECOND

# After so many new futures, those that are done are removed.
SWEEP = 256


class LightFuture:
    """A future that one task awaits once. It costs a third of an asyncio.Future.

    asyncio recognises a future by `_asyncio_future_blocking`, and a task calls the methods that are here (see
    `asyncio.futures.isfuture` and `Task.__step`). So a task can await this class, and can be cancelled. `wake` lets the
    task go on at once, in the task's own context, instead of through the loop's queue.
    """

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_loop", "done", "until_ns")

    def _begin(self, loop: asyncio.AbstractEventLoop, until_ns: int) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._cancelled: tuple[Any, ...] | None = None
        self.done = False
        self.until_ns = until_ns

    # --- for the driver ----------------------------------------------------------------------------

    def wake(self, ended: asyncio.Future[None]) -> None:
        """Let the task go on now. The caller must not be a task.

        Args:
            ended: any future of asyncio with the result None. The task asks it for the result, which costs 1,200
                instructions less than to ask this object, because asyncio's C code knows the class.
        """
        if not self.done:
            self.done = True
            callback, context = self._callback, self._context
            if callback is not None and context is not None:
                # Without this a cycle with the task would be left.
                self._callback = self._context = None
                context.run(callback, ended)

    def wake_soon(self) -> None:
        if not self.done:
            self.done = True
            self._schedule()

    def _schedule(self) -> None:
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
            self._callback = self._context = None

    # --- for the task ------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> LightFuture:
        return self

    def __next__(self) -> LightFuture:
        if self.done:
            raise StopIteration
        self._asyncio_future_blocking = True
        return self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        self._callback, self._context = callback, context
        if self.done:
            self._schedule()

    def cancel(self, msg: object = None) -> bool:
        if self.done:
            return False
        self._cancelled = () if msg is None else (msg,)
        self.wake_soon()
        return True

    def result(self) -> None:
        if self._cancelled is not None:
            raise asyncio.CancelledError(*self._cancelled)


def new_light_future(loop: asyncio.AbstractEventLoop, until_ns: int) -> LightFuture:
    """Return a new future. A function costs less than a constructor (see `new_ballot`)."""
    future: LightFuture = LightFuture.__new__(LightFuture)
    future._begin(loop, until_ns)
    return future


class Deadlines:
    """The futures that tasks wait for, by the length of the wait. Equal waits end in the order in which they began.

    So each queue is sorted by construction, and adding is O(1), without a timer or a heap entry for each. Futures that
    are done are removed from the heads now and then, and from everywhere when the queues have doubled.
    """

    def __init__(self) -> None:
        self._queues: dict[int, list[LightFuture]] = {}
        # The queue that was appended to last, and its ttl.
        self._wait_ms = -1
        self._queue: list[LightFuture] = []
        self._added = 0
        self._most = SWEEP
        # Fields, because the compiled build knows their C types.
        self._tick_ns, self._often = MILLISECOND, SWEEP

    def add(self, future: LightFuture, now_ns: int) -> None:
        wait_ms = 0 if future.until_ns < now_ns else (future.until_ns - now_ns) // self._tick_ns
        if wait_ms != self._wait_ms:
            self._wait_ms = wait_ms
            self._queue = self._queues.setdefault(wait_ms, [])
        self._queue.append(future)
        self._added += 1
        if self._added >= self._often:
            self._sweep()

    def _sweep(self) -> None:
        self._added = 0
        self._wait_ms, self._queue = -1, []
        left = 0
        for wait_ms, queue in list(self._queues.items()):
            over = 0
            for future in queue:
                if not future.done:
                    break
                over += 1
            del queue[:over]
            left += len(queue)
            if not queue:
                del self._queues[wait_ms]
        # Most of them are behind a long wait.
        if left > self._most:
            for queue in self._queues.values():
                queue[:] = [future for future in queue if not future.done]
            self._most = SWEEP + 2 * sum([len(queue) for queue in self._queues.values()])

    def earliest(self) -> int | None:
        self._sweep()
        return min((queue[0].until_ns for queue in self._queues.values()), default=None)

    def due(self, now_ns: int) -> list[LightFuture]:
        over: list[LightFuture] = []
        for queue in self._queues.values():
            late = 0
            while late < len(queue) and queue[late].until_ns <= now_ns:
                late += 1
            over += queue[:late]
            del queue[:late]
        return over

    def clear(self) -> list[LightFuture]:
        futures = [future for queue in self._queues.values() for future in queue]
        self._queues.clear()
        self._wait_ms, self._queue = -1, []
        return futures
