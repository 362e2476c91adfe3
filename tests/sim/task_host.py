"""A process with an event loop, and an AsyncClient in it."""

from __future__ import annotations

import functools
import importlib.metadata
import select
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from redlatch import AsyncClient
from redlatch.guard.handshake import GuardHandshake
from redlatch.masters.master import Master as Address
from redlatch.wire.dial.connect import Connection as Dialled
from redlatch.wire.dial.connect import longer

from .host import Host, Killed
from .loop import SimLoop
from .master import Master
from .network import Connection
from .world import MICROSECOND, MILLISECOND, SECOND, Drifting, World

# Our URLs go through redis-py, which reads its own package metadata for every master. That takes a quarter of a
# schedule.
importlib.metadata.version = functools.cache(importlib.metadata.version)

# The duration of a process's steps: between two reads of the clock, and between two turns of the loop.
STEP_NS = 1 * MICROSECOND
TURN_NS = 10 * MICROSECOND

# How long a client dials a master that does not respond.
DIAL_TIMEOUT_NS = 2 * SECOND

T = TypeVar("T")


class TaskHost(Host):
    """One process with an event loop. It can be paused anywhere.

    Args:
        ahead: by how many seconds its wall clock is ahead.
        rate: the rate of its other clock.
        pauses: the probability that the process pauses after a step.

    Attributes:
        local: the world's time that this process has reached. It is ahead of the world within a turn, if it was paused
            there.
        dials_patiently: whether dialling waits for a master that does not respond.
        turned: called at the end of each turn, with the time at which it began.
    """

    def __init__(
        self,
        world: World,
        number: int,
        masters: list[Master],
        killed: Killed,
        ahead: float = 0.0,
        rate: float = 1.0,
        pauses: float = 0.0,
    ) -> None:
        wall = Drifting(int(ahead * SECOND), 1.0)
        super().__init__(world, number, masters, Drifting(SECOND, rate), wall, killed)
        self.pauses = pauses
        self.local = 0
        self.dials_patiently = False
        self.turned: Callable[[TaskHost, int], object] | None = None
        # Reports the sockets to which the client has written bytes.
        self._written = select.poll()
        self._by_fd: dict[int, Connection] = {}
        self._made: list[Connection] = []
        # At run time, asyncio lets a loop leave out methods that nobody calls.
        self.loop = SimLoop(self)  # type: ignore[abstract]
        # When the next turn is due.
        self._turn_ns = -1

    # --- time ----------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """Return nanoseconds since boot; sometimes the process is paused before it gets them."""
        self.local += STEP_NS
        if self.pauses and self.world.chance.random() < self.pauses:
            self.pause(int(self.world.chance.expovariate(1.0) * 150 * MILLISECOND))
        return self.clock.read(self.local)

    def at_no_time(self, call: Callable[[], T]) -> T:
        """Return the result of a call that reads the clock, as if that took no time."""
        local, pauses, self.pauses = self.local, self.pauses, 0.0
        try:
            return call()
        finally:
            self.local, self.pauses = local, pauses

    def pause(self, ns: int) -> None:
        """Pause the process, as after SIGSTOP."""
        self.world.note(self.local, self.name, f"is paused for {ns / MILLISECOND:.3f} ms")
        self.local = max(self.local, self.world.now) + ns

    # --- turns ---------------------------------------------------------------------------------------------

    def wants_turn(self) -> None:
        """Record that the loop has something to do."""
        self._turn_at(max(self.world.now, self.local))

    def _turn_at(self, ns: int) -> None:
        if not self.dead and (self._turn_ns < 0 or ns < self._turn_ns):
            self._turn_ns = ns
            self.world.at(ns, self._turn, ns)

    def _turn(self, due_ns: int) -> None:
        if self.dead or due_ns != self._turn_ns:
            # An earlier turn has taken its place.
            return
        self._turn_ns = -1
        # The process was paused.
        if self.local > self.world.now:
            self._turn_at(self.local)
            return
        self.local = began_ns = self.world.now
        self.loop.turn()
        self.local += TURN_NS
        self.collect()
        if self.turned is not None:
            self.turned(self, began_ns)
        if self.loop.ready or self.loop.has_input():
            self._turn_at(self.local)
            return
        self._turn_ns = -1
        timer = self.loop.next_timer()
        if timer is not None:
            self._turn_at(max(self.local, self.clock.when(int(timer * SECOND) + 1)))

    def collect(self) -> None:
        """Send the bytes that the client has written."""
        for fd, _ in self._written.poll(0):
            self._by_fd[fd].collect()

    # --- connections ---------------------------------------------------------------------------------------

    def gain(self, connection: Connection) -> None:
        super().gain(connection)
        self._made.append(connection)
        fd = connection.far.fileno()
        self._by_fd[fd] = connection
        self._written.register(fd, select.POLLIN)

    def lose(self, connection: Connection) -> bool:
        lost = super().lose(connection)
        if lost:
            fd = connection.far.fileno()
            del self._by_fd[fd]
            self._written.unregister(fd)
        return lost

    def end(self) -> None:
        """Close all tasks and sockets that are still open, about which the garbage collector would warn."""
        super().end()
        for task in self.loop.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # The errors of a task that is closed here do not matter.
                with suppress(BaseException):
                    task.get_coro().close()
        for connection in self._made:
            connection.far.close()
            # No client closes this end if none has taken it over.
            connection.near.close()


class SimDialler:
    """Dials in the world's time, as `redlatch.wire.dial.connect.Dialler` does in threads."""

    def __init__(
        self,
        host: TaskHost,
        masters: list[Address],
        timeout: float,
        ready: Callable[[int, Dialled], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
    ) -> None:
        self._host = host
        self._ready, self._failed = ready, failed
        # The address of each is "master-N:6379".
        self._indexes = [int(master.address[len("master-") :].partition(":")[0]) for master in masters]
        self._closed = False

    def start(self, index: int, pause: float = 0.0, handshake: GuardHandshake | None = None) -> None:
        """Begin to dial master `index`, after `pause` seconds."""
        host = self._host
        begin_ns = max(host.world.now, host.local) + int(pause * SECOND * host.world.chance.uniform(0.5, 1.0))
        shake_ns = 3 * host.routes[self._indexes[index]].there.usual_ns
        host.world.at(begin_ns + shake_ns, self._try, index, pause, handshake, host.clock.read(begin_ns))

    def _try(self, index: int, pause: float, handshake: GuardHandshake | None, sent_ns: int) -> None:
        host = self._host
        if self._closed or host.dead:
            return
        answers_ns, late_ns = host.answers_at(self._indexes[index]), sent_ns + DIAL_TIMEOUT_NS
        if host.dials_patiently and answers_ns > host.world.now and host.clock.read(host.world.now) < late_ns:
            again_ns = min(answers_ns, host.clock.when(late_ns))
            host.world.at(again_ns, self._try, index, pause, handshake, sent_ns)
            return
        try:
            dialled = host.connect(self._indexes[index], handshake, sent_ns)
        except Exception as error:
            self._failed(index, error)
            self.start(index, longer(pause), handshake and handshake.repeated())
        else:
            self._ready(index, dialled)

    def close(self) -> None:
        """Stop dialling."""
        self._closed = True


def _urls(indexes: Iterable[int]) -> list[str]:
    return [f"redis://master-{index}" for index in indexes]


class SimClient(AsyncClient):
    """An `AsyncClient` that takes time, random numbers and connections from its host."""

    def __init__(self, host: TaskHost, **options: Any) -> None:
        self._host = host
        old, new = host.lists or (range(len(host.masters)), ())
        super().__init__(_urls(old), next=_urls(new) if new else None, **options)

    def _quorum_of(self, **numbers: Any) -> Any:
        return self._host.quorum(**numbers)

    def _dialler(self, *args: Any) -> SimDialler:
        return SimDialler(self._host, *args)
