"""An event loop for one simulated process: it reads its host's clock, and runs when the world calls it."""

from __future__ import annotations

import asyncio
import heapq
import select
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVarTuple

from .outcome import told
from .world import SECOND

if TYPE_CHECKING:
    from .task_host import TaskHost

# The types of the arguments of a callback.
Ts = TypeVarTuple("Ts")


class SimLoop(asyncio.AbstractEventLoop):
    """The parts of an event loop that asyncio's tasks and our driver need."""

    def __init__(self, host: TaskHost) -> None:
        self.host = host
        self.ready: deque[asyncio.Handle] = deque()
        # All tasks that were ever made.
        self.tasks: list[asyncio.Task[Any]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0
        self._readers: dict[int, asyncio.Handle] = {}
        self._writers: dict[int, asyncio.Handle] = {}
        self._poll = select.poll()

    # --- for asyncio ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.host.read_clock() / SECOND

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        self.host.wants_turn()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.host.dead:
            raise RuntimeError("the loop of a dead process takes no turn any more")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, handle))
        self.host.wants_turn()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave the timer in the heap; `turn` skips it."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **named)
        self.tasks.append(task)
        return task

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = asyncio.Handle(callback, args, self)
        self._watch(fd)

    def remove_reader(self, fd: int) -> bool:  # type: ignore[override]
        known = self._readers.pop(fd, None) is not None
        self._watch(fd)
        return known

    def add_writer(self, fd: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._writers[fd] = asyncio.Handle(callback, args, self)
        self._watch(fd)

    def remove_writer(self, fd: int) -> bool:  # type: ignore[override]
        known = self._writers.pop(fd, None) is not None
        self._watch(fd)
        return known

    def _watch(self, fd: int) -> None:
        events_wanted = (select.POLLIN if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        if events_wanted:
            self._poll.register(fd, events_wanted)
            self.host.wants_turn()
        else:
            try:
                self._poll.unregister(fd)
            except KeyError:
                # It was not watched.
                pass

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.host.world.violate(f"{self.host.name}: nobody caught {told(error)}: {context.get('message')}")

    default_exception_handler = call_exception_handler

    # --- for the host --------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run everything that is ready now, once."""
        events._set_running_loop(self)
        try:
            now = self.time()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if not timer.cancelled():
                    self.ready.append(timer)
            for fd, came in self._poll.poll(0):
                if came & ~select.POLLOUT and fd in self._readers:
                    self.ready.append(self._readers[fd])
                if came & ~select.POLLIN and fd in self._writers:
                    self.ready.append(self._writers[fd])
            for _ in range(len(self.ready)):
                handle = self.ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def has_input(self) -> bool:
        """Return whether a turn would find a socket ready."""
        return bool(self._poll.poll(0))
