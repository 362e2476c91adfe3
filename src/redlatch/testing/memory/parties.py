"""The parties of virtual time: the threads and tasks that have used a client, and whether they work."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Collection
from types import CodeType
from typing import Any

# Paces of time: it jumps at once, it jumps after a moment, it passes as fast as real time, or it stands still.
JUMP, QUIET, REAL, STILL = range(4)

# A thread whose innermost frame is in one of these modules waits for another thread.
WAITING = frozenset(["threading", "queue", "selectors", "concurrent.futures.thread", "concurrent.futures._base"])

# The same for tasks, except for "sleep".
WAITING_TASKS = frozenset(["locks", "queues", "taskgroups", "tasks", "timeouts"])


class Parties:
    def __init__(self) -> None:
        self._outside: set[int] = set()
        self._inside: set[int] = set()
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def enter(self) -> None:
        self.go_on(threading.get_ident())
        self.note_task()

    def note_task(self) -> None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            # This thread runs no event loop.
            return
        if task is not None:
            self._tasks.add(task)

    def go_on(self, thread: int) -> None:
        """Record that a thread works in a call."""
        self._outside.discard(thread)
        self._inside.add(thread)

    def go_out(self, thread: int) -> None:
        """Record that a thread is in no call and may work."""
        self._inside.discard(thread)
        self._outside.add(thread)

    def rest(self, thread: int) -> None:
        """Record that a thread waits in a call, or that its event loop is idle."""
        self._inside.discard(thread)
        self._outside.discard(thread)

    def pace(self) -> int:
        if not (self._inside or self._outside):
            return JUMP
        frames = sys._current_frames()
        self._inside.intersection_update(frames)
        self._outside.intersection_update(frames)
        if self._inside:
            return STILL
        modules = [frames[thread].f_globals.get("__name__") for thread in self._outside]
        if not modules:
            return JUMP
        return QUIET if all([module in WAITING for module in modules]) else REAL

    def pace_of_tasks(self, loop: asyncio.AbstractEventLoop, waiting: Collection[Any]) -> int:
        outside = [task for task in self._tasks if not task.done() and task.get_loop() is loop and task not in waiting]
        return JUMP if all([_waits_for_tasks(task) for task in outside]) else REAL


def _waits_for_tasks(task: asyncio.Task[Any]) -> bool:
    # Private, but anyio relies on it, too.
    future = getattr(task, "_fut_waiter", None)
    if isinstance(future, asyncio.Task) or hasattr(future, "_children"):
        return True
    code = _innermost(task.get_coro())
    if code is None:
        return False
    package, _, module = code.co_filename.removesuffix(".py").replace("\\", "/").rpartition("/")
    return package.endswith("asyncio") and module in WAITING_TASKS and code.co_name != "sleep"


def _innermost(coroutine: Any) -> CodeType | None:
    code = None
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", getattr(coroutine, "gi_code", code))
        coroutine = getattr(coroutine, "cr_await", getattr(coroutine, "gi_yieldfrom", None))
    return code
