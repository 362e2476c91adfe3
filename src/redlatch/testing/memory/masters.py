from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial

from redlatch.errors import ConfigurationError
from redlatch.guard.handshake import GuardHandshake
from redlatch.guard.marker import MARKER
from redlatch.masters.master import Master
from redlatch.testing.memory.master import MemoryMaster
from redlatch.testing.memory.timeline import Timeline
from redlatch.votes.units import SECOND, quorum_of
from redlatch.wire.dial.connect import Connection, longer

MOST = 15

TOGETHER = 100


class MemoryMasters:
    """Independent masters in memory, in virtual time, for clients that act as several processes.

    Nothing is random, so each run of a test sees the same tokens, fences and times.

    Args:
        count: the number of masters, 1 to 15. Default 3.
    """

    def __init__(self, count: int = 3) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
            raise ConfigurationError(f"masters: a number from 1 to {MOST} is needed, or MemoryMasters; got {count!r}")
        self.timeline = Timeline()
        self.list = [MemoryMaster(index, self.timeline) for index in range(count)]
        self.random = random.Random(0)
        # The names held for a test. An unreferenced lock would not be renewed.
        self.held: set[object] = set()
        self._diallers: weakref.WeakSet[MemoryDialler] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join([master.address for master in self.list])}>"

    def now(self) -> float:
        """Return the masters' time, in seconds since 1970."""
        return self.timeline.clock.wall_us() / 1_000_000

    def clear(self) -> None:
        """Remove all keys except the guard's markers, and so all locks of any holder."""
        with self.timeline.monitor:
            for master in self.list:
                master.clear(MARKER)
            self.timeline.settle()

    def perform(self, payload: bytes) -> None:
        with self.timeline.monitor:
            for master in self.list:
                master.perform(payload)
            self.timeline.settle()

    def forget(self, key: bytes) -> bool:
        with self.timeline.monitor:
            forgotten = [master.forget(key) for master in self.list]
            self.timeline.settle()
        return any(forgotten)

    @contextlib.contextmanager
    def broken_quorum(self) -> Iterator[None]:
        stopped = [master for master in self.list[: quorum_of(len(self.list))] if master.up]
        with self.timeline.monitor:
            for master in stopped:
                master.stop()
            self.timeline.settle()
        try:
            yield
        finally:
            with self.timeline.monitor:
                for master in stopped:
                    master.up = True
                for dialler in list(self._diallers):
                    dialler.hurry_all()
                self.timeline.settle()

    def draw_tokens(self) -> list[bytes]:
        return [b"%032x" % self.random.getrandbits(128) for _ in range(TOGETHER)]

    def serve(self) -> bool:
        return any([master.serve() for master in self.list])

    def dialler(
        self,
        masters: list[Master],
        timeout: float,
        ready: Callable[[int, Connection], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
    ) -> MemoryDialler:
        made = MemoryDialler(self.timeline, masters, ready, failed, tracking)
        self._diallers.add(made)
        return made


class MemoryDialler:
    def __init__(
        self,
        timeline: Timeline,
        masters: list[Master],
        ready: Callable[[int, Connection], None],
        failed: Callable[[int, Exception], None],
        tracking: bool,
    ) -> None:
        self._timeline = timeline
        self._masters = masters
        self._ready, self._failed = ready, failed
        self._tracking = tracking
        self._closed = False
        self._pending: dict[int, tuple[float, GuardHandshake | None]] = {}

    def start(self, index: int, pause: float = 0.0, handshake: GuardHandshake | None = None) -> None:
        self._pending[index] = tries = pause, handshake
        self._timeline.at(self._timeline.clock.now() + int(pause * SECOND), partial(self._try, index, tries))

    def _try(self, index: int, tries: tuple[float, GuardHandshake | None]) -> None:
        if self._closed or self._pending.get(index) is not tries:
            return
        del self._pending[index]
        pause, handshake = tries
        master = self._masters[index]
        assert isinstance(master, MemoryMaster)
        try:
            connection = master.dial(handshake, self._tracking)
        except OSError as error:
            self._failed(index, error)
            self.start(index, longer(pause), handshake and handshake.repeated())
        else:
            self._ready(index, connection)

    def hurry(self, index: int) -> None:
        if index in self._pending:
            self.start(index, 0.0, self._pending[index][1])

    def hurry_all(self) -> None:
        for index in list(self._pending):
            self.hurry(index)

    def close(self) -> None:
        self._closed = True
