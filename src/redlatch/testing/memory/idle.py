"""Moves virtual time for an event loop: if the loop is idle, all its tasks may be waiting."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from redlatch.testing.memory.timeline import NAP, Timeline, Wait

# If the loop has called us this often in a row, while no call began, continued or ended, it is idle. A task that was
# woken takes one turn for each task and each future between it and its next call.
TURNS = 16


class IdleWatch:
    def __init__(self, timeline: Timeline, loop: asyncio.AbstractEventLoop) -> None:
        self._timeline = timeline
        self._loop = loop
        self._waits: dict[Wait, None] = {}
        self._watches = False
        self._seen = -1, -1
        self._turns = 0

    def add(self, wait: Wait) -> asyncio.Future[None]:
        """Return a future that ends with the wait of the running task. The caller has the monitor."""
        ended: asyncio.Future[None] = self._loop.create_future()
        wait.thread, wait.task = threading.get_ident(), asyncio.current_task()
        wait.wake = partial(self._end, wait, ended)
        self._waits[wait] = None
        self._timeline.add(wait)
        if not self._watches and not wait.over:
            self._watches = True
            self._loop.call_soon(self._turn)
        return ended

    def _end(self, wait: Wait, ended: asyncio.Future[None]) -> None:
        self._waits.pop(wait, None)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_set, ended)

    def _turn(self) -> None:
        with self._timeline.monitor:
            self._watches = bool(self._waits)
            if self._watches:
                self._look()
        self._timeline.report()

    def _look(self) -> None:
        timeline = self._timeline
        if self._seen != (timeline.calls, timeline.wakes):
            self._seen = timeline.calls, timeline.wakes
            self._turns = 0
        self._turns += 1
        if self._turns <= TURNS:
            self._loop.call_soon(self._turn)
            return
        timeline.parties.rest(threading.get_ident())
        of_tasks = timeline.parties.pace_of_tasks(self._loop, timeline.waiting_tasks())
        pace = max(timeline.parties.pace(), of_tasks)
        if timeline.moves(pace):
            self._loop.call_soon(self._turn)
        else:
            timeline.nap()
            self._loop.call_later(NAP, self._turn)


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
