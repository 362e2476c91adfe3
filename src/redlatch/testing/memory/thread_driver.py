"""The driver in memory for threads."""

from __future__ import annotations

import threading
from typing import Any

from redlatch.quorum.effects import Steps
from redlatch.testing.memory.driver import MemoryDriver, Performing
from redlatch.testing.memory.masters import MemoryMasters
from redlatch.testing.memory.timeline import Wait


class ThreadMemoryDriver(MemoryDriver):
    def __init__(self, memory: MemoryMasters, *args: Any, **options: Any) -> None:
        memory.timeline.parties.go_out(threading.get_ident())
        super().__init__(memory, *args, **options)

    def run(self, steps: Steps) -> Any:
        return self._perform(self._performing(steps))

    def connect(self, all_of_them: bool = False) -> None:
        self._perform(self._connecting())

    def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        self._perform(self._closing(release, drain_ns))

    def sleep(self, ns: int) -> None:
        until_ns = self._clock.now() + ns
        self._timeline.note_timeout(until_ns)
        self._perform(iter_wait(Wait(bool, until_ns)))

    def _perform(self, performing: Performing) -> Any:
        timeline = self._timeline
        try:
            with timeline.monitor:
                timeline.parties.enter()
                timeline.note_call()
                try:
                    while True:
                        timeline.rest(next(performing))
                except StopIteration as ended:
                    return ended.value
                finally:
                    performing.close()
                    timeline.note_call()
                    timeline.parties.go_out(threading.get_ident())
        finally:
            timeline.report()


def iter_wait(wait: Wait) -> Performing:
    yield wait
