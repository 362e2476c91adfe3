"""The driver in memory for asyncio."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from redlatch.errors import WrongLoop
from redlatch.quorum.effects import Steps
from redlatch.testing.memory.driver import MemoryDriver, Performing
from redlatch.testing.memory.masters import MemoryMasters
from redlatch.testing.memory.thread_driver import iter_wait
from redlatch.testing.memory.timeline import NAP, Timeline, Wait
from redlatch.votes.units import UNBOUNDED

# The loop is idle after this many turns in which no call began, continued or ended. A task that was woken takes one
# turn for each task and each future between it and its next call.
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


class TaskMemoryDriver(MemoryDriver):
    def __init__(self, memory: MemoryMasters, *args: Any) -> None:
        super().__init__(memory, *args)
        self.home: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._watch: IdleWatch | None = None

    def stands_for(self, owner: object) -> None: ...

    async def run(self, steps: Steps) -> Any:
        return await self._perform(self._performing(steps))

    async def connect(self, all_of_them: bool = False) -> None:
        await self._perform(self._connecting())

    async def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        await self._perform(self._closing(release, drain_ns))

    async def sleep(self, ns: int) -> None:
        until_ns = self._clock.now() + ns
        self._timeline.note_timeout(until_ns)
        await self._perform(iter_wait(Wait(bool, until_ns)))

    async def _perform(self, performing: Performing) -> Any:
        watch, timeline = self._watch_here(), self._timeline
        with timeline.monitor:
            timeline.parties.enter()
            timeline.note_call()
        try:
            while True:
                with timeline.monitor:
                    wait = next(performing)
                    ended = watch.add(wait)
                timeline.report()
                try:
                    await ended
                finally:
                    with timeline.monitor:
                        timeline.remove(wait)
                if wait.error is not None:
                    raise wait.error
        except StopIteration as answer:
            return answer.value
        finally:
            with timeline.monitor:
                performing.close()
                timeline.note_call()
                timeline.parties.go_out(threading.get_ident())
            timeline.report()

    def _watch_here(self) -> IdleWatch:
        loop = asyncio.get_running_loop()
        if self.home is None or self._watch is None:
            self.home, self._watch = loop, IdleWatch(self._timeline, loop)
            self._thread = threading.get_ident()
        elif self.home is not loop:
            raise WrongLoop("client: it belongs to the event loop it was first used in; make one AsyncClient per loop")
        return self._watch

    # --- in the loop's thread ------------------------------------------------------------------------------

    def attend(self) -> None:
        # A thread that moves the time waits until the loop has done this.
        if self._is_elsewhere():
            self.due_ns = UNBOUNDED
            self._timeline.parties.go_on(self._thread)
            self._post(_attend)
        else:
            super().attend()

    def learn(self) -> None:
        if self._is_elsewhere():
            self._post(_learn)
        else:
            super().learn()

    def report(self) -> None:
        if not self.has_reports():
            return
        if self._is_elsewhere():
            self._post(_report)
        else:
            super().report()

    def attend_late(self) -> None:
        with self._timeline.monitor:
            self.attend()
            self._timeline.parties.go_out(self._thread)

    def _is_elsewhere(self) -> bool:
        return self.home is not None and self.home.is_running() and self.home is not running_loop()

    def _post(self, call: Callable[[weakref.ref[TaskMemoryDriver]], None]) -> None:
        assert self.home is not None
        self.home.call_soon_threadsafe(call, weakref.ref(self))


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _attend(reference: weakref.ref[TaskMemoryDriver]) -> None:
    driver = reference()
    if driver is not None:
        driver.attend_late()


def _learn(reference: weakref.ref[TaskMemoryDriver]) -> None:
    driver = reference()
    if driver is not None:
        with driver._timeline.monitor:
            driver.learn()
        driver.report()


def _report(reference: weakref.ref[TaskMemoryDriver]) -> None:
    driver = reference()
    if driver is not None:
        driver.report()
