"""A simulated process: an AsyncClient in a loop and with clocks of its own, which may be paused anywhere, or killed."""

from __future__ import annotations

import functools
import importlib.metadata
import random
import select
from collections.abc import Callable
from typing import Any

from redlatch import AsyncClient, impl
from redlatch.config import Master as Address
from redlatch.errors import MasterRefused
from redlatch.protocol.sighting import Errand, Sighting
from redlatch.wire.connect import SCRIPTS, Traits, longer
from redlatch.wire.connect import Connection as Dialled

from .loop import SimLoop
from .master import Master
from .network import Connection, Route
from .world import EPOCH_MS, MICROSECOND, MILLISECOND, SECOND, Drifting, World

TEXTS = {script.sha: script.text for script in SCRIPTS}

# redis-py, which our URLs go through, reads the metadata of its own package for every master: a quarter of a schedule.
importlib.metadata.version = functools.cache(importlib.metadata.version)  # type: ignore[assignment]

# How long the steps of a process take: from one look at the clock to the next, and from one turn to the next.
STEP_NS = 1 * MICROSECOND
TURN_NS = 10 * MICROSECOND

# How long a client dials a master that does not respond.
DIAL_TIMEOUT_NS = 2 * SECOND


class Host:
    """One process.

    Args:
        clock: for deadlines, since boot.
        wall: since 1970.
        pauses: how likely a step is to be the last for a while.
        killed: is told when it is killed.

    Attributes:
        local: the time of the world that this process has reached; it is ahead within a turn, when it was paused there.
    """

    def __init__(
        self,
        world: World,
        number: int,
        masters: list[Master],
        clock: Drifting,
        wall: Drifting,
        pauses: float,
        killed: Callable[[Host], object],
    ) -> None:
        self.world = world
        self.number = number
        self.name = f"client {number}"
        self.masters = masters
        self.clock, self.wall = clock, wall
        self.pauses = pauses
        self.local = 0
        self.dead = False
        self.closing = False  # its client closes
        self.dials_patiently = False  # whether dialling waits for a master that does not respond
        self._killed = killed
        self._written = select.poll()  # by which the bytes that the client has written are found
        self._by_fd: dict[int, Connection] = {}
        self._made: list[Connection] = []
        self.connections: dict[Connection, None] = {}
        self.routes: list[Route] = []
        self.loop = SimLoop(self)
        self.tokens: set[bytes] = set()
        self._turn_ns = -1  # when the next turn is due

    # --- time ----------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """Return nanoseconds since boot; now and then the process is paused before it sees them."""
        self.local += STEP_NS
        if self.pauses and self.world.chance.random() < self.pauses:
            self.pause(int(self.world.chance.expovariate(1.0) * 150 * MILLISECOND))
        return self.clock.read(self.local)

    def pause(self, ns: int) -> None:
        """Stand still, as after SIGSTOP."""
        self.world.note(self.local, self.name, f"is paused for {ns / MILLISECOND:.3f} ms")
        self.local = max(self.local, self.world.now) + ns

    def read_wall(self) -> int:
        """Return microseconds since 1970."""
        return EPOCH_MS * 1000 + self.wall.read(self.local) // 1000

    def draw_tokens(self) -> list[bytes]:
        """Return some tokens that nobody has had, each with its client's number."""
        first = len(self.tokens)
        drawn = [b"t%02d-%06d" % (self.number, place) for place in range(first, first + 50)]
        self.tokens.update(drawn)
        return drawn

    # --- turns ---------------------------------------------------------------------------------------------

    def wants_turn(self) -> None:
        """Take note that there is something to do."""
        self._turn_at(max(self.world.now, self.local))

    def _turn_at(self, ns: int) -> None:
        if not self.dead and (self._turn_ns < 0 or ns < self._turn_ns):
            self._turn_ns = ns
            self.world.at(ns, self._turn, ns)

    def _turn(self, due_ns: int) -> None:
        if self.dead or due_ns != self._turn_ns:
            return  # it has had an earlier one
        self._turn_ns = -1
        if self.local > self.world.now:  # it was paused
            self._turn_at(self.local)
            return
        self.local = self.world.now
        self.loop.turn()
        self.local += TURN_NS
        self._collect()
        if self.loop.ready or self.loop.has_input():
            self._turn_at(self.local)
            return
        self._turn_ns = -1
        timer = self.loop.next_timer()
        if timer is not None:
            self._turn_at(max(self.local, self.clock.when(int(timer * SECOND) + 1)))

    def _collect(self) -> None:
        """Send on what the client has written."""
        for fd, _ in self._written.poll(0):
            self._by_fd[fd].collect()

    def gain(self, connection: Connection) -> None:
        """Take note of a new connection."""
        self.connections[connection] = None
        self._made.append(connection)
        fd = connection.far.fileno()
        self._by_fd[fd] = connection
        self._written.register(fd, select.POLLIN)

    def lose(self, connection: Connection) -> None:
        """Take note that a connection is over."""
        if self.connections.pop(connection, connection) is None:
            fd = connection.far.fileno()
            del self._by_fd[fd]
            self._written.unregister(fd)

    def kill(self) -> None:
        """Die as after SIGKILL: the kernel closes what was open, and sends what was written."""
        self.world.note(self.world.now, self.name, "is killed")
        self._collect()
        self.dead = True
        self._killed(self)
        for connection in list(self.connections):
            connection.finish()

    def end(self) -> None:
        """Close what is open still, when the schedule is over."""
        self.dead = True
        for connection in self._made:
            connection.far.close()
            connection.near.close()  # where no client has taken it over

    def answers_at(self, index: int) -> int:
        """Return the time from which a master answers this process."""
        route = self.routes[index]
        return max(route.there.blocked_until, route.back.blocked_until, self.masters[index].stopped_until)

    # --- connecting ----------------------------------------------------------------------------------------

    def connect(self, index: int, errand: Errand | None, sent_ns: int) -> Dialled:
        """Make a connection to a master whose handshake is over.

        Args:
            errand: what that was to do about the master's marker.
            sent_ns: when it began, by the client's clock.

        Raises:
            OSError, MasterRefused: why it has no vote.
        """
        master, route = self.masters[index], self.routes[index]
        now = self.world.now
        if self.answers_at(index) > now:
            raise TimeoutError(f"{master.name} does not answer")
        if not master.up:
            raise ConnectionRefusedError(f"{master.name} is down")
        if master.loading:
            raise ConnectionError(f"{master.name} is loading")
        traits = Traits(master.info(), 3, master.pushes)
        if traits.role != "master":
            raise MasterRefused(f"{master.name} is a {traits.role}")
        connection = Connection(self.world, self, master, route)
        self.gain(connection)
        master.welcome(connection, TEXTS)
        if errand is not None:
            marker, server_us = master.shake(errand)
            came_ns = self.clock.read(max(now, self.local))
            identity = f"{traits.run_id} {master.info()['master_replid']}"
            sighting = Sighting(identity, marker, server_us, sent_ns, came_ns, True, master.promoted)
            if "backlog_ms" in Sighting._fields:
                sighting = sighting._replace(backlog_ms=master.backlog_ms)
            traits.sighting = sighting
        self.world.note(now, self.name, f"has {master.name}")
        return Dialled(connection.near, traits)


class SimDialler:
    """Dials in the world's time; as `redlatch.wire.connect.Dialler` does in threads."""

    def __init__(
        self,
        host: Host,
        masters: list[Address],
        timeout: float,
        ready: Callable[[int, Dialled], None],
        failed: Callable[[int, Exception], None],
        tracking: bool = True,
    ) -> None:
        self._host = host
        self._ready, self._failed = ready, failed
        self._closed = False

    def start(self, index: int, pause: float = 0.0, errand: Errand | None = None) -> None:
        """Begin to dial master `index`, after `pause` seconds."""
        host = self._host
        begin_ns = max(host.world.now, host.local) + int(pause * SECOND * host.world.chance.uniform(0.5, 1.0))
        shake_ns = 3 * host.routes[index].there.usual_ns
        host.world.at(begin_ns + shake_ns, self._try, index, pause, errand, host.clock.read(begin_ns))

    def _try(self, index: int, pause: float, errand: Errand | None, sent_ns: int) -> None:
        host = self._host
        if self._closed or host.dead:
            return
        answers_ns, late_ns = host.answers_at(index), sent_ns + DIAL_TIMEOUT_NS
        if host.dials_patiently and answers_ns > host.world.now and host.clock.read(host.world.now) < late_ns:
            again_ns = min(answers_ns, host.clock.when(late_ns))
            host.world.at(again_ns, self._try, index, pause, errand, sent_ns)
            return
        try:
            dialled = host.connect(index, errand, sent_ns)
        except Exception as error:
            self._failed(index, error)
            self.start(index, longer(pause), errand and errand.reading())
        else:
            self._ready(index, dialled)

    def close(self) -> None:
        """Dial no more."""
        self._closed = True


class SimClient(AsyncClient):
    """An `AsyncClient` whose time, chance and connections are its host's."""

    def __init__(self, host: Host, **options: Any) -> None:
        self._host = host
        super().__init__([f"redis://master-{master.index}" for master in host.masters], **options)

    def _policy_of(self, **numbers: Any) -> Any:
        policies = impl.current.module("protocol.policy")
        host = self._host

        class HostClock(policies.Clock):  # type: ignore[misc,name-defined]
            def now(self) -> int:
                return host.read_clock()

        return policies.Policy(
            clock=HostClock(),
            random=random.Random(host.world.chance.random()).random,
            tokens=policies.Tokens(host.draw_tokens),
            fences=policies.Fences(host.read_wall),
            **numbers,
        )

    def _dialler(self, *args: Any) -> SimDialler:
        return SimDialler(self._host, *args)
