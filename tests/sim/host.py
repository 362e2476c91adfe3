"""A simulated process: its clocks, its connections and the tokens of its client. It can be paused, or killed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from redlatch import impl
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.wire.bridge.scriptless import TraitsWithoutScripts
from redlatch.wire.dial.connect import Connection as Dialled
from redlatch.wire.dial.scripting import SCRIPTS
from redlatch.wire.server_traits import Traits

from .master import Master
from .network import Connection, Route
from .world import EPOCH_MS, Drifting, World

TEXTS = {script.sha: script.text for script in SCRIPTS}

T = TypeVar("T")

Killed = Callable[["Host"], object]


class Host:
    """One process.

    Args:
        clock: the clock for deadlines, since boot.
        wall: the clock since 1970.
        killed: called when the process is killed.

    Attributes:
        local: the world's time that this process has reached.
        closing: whether its client is closing.
        lists: the masters that its client uses, and those that it goes over to; all masters if that is empty.
        default_ttl_ms: the default ttl of its client.
        left: by master, when connections to it ended, each with the memory that was behind it when it was made.
    """

    local: int

    def __init__(
        self, world: World, number: int, masters: list[Master], clock: Drifting, wall: Drifting, killed: Killed
    ) -> None:
        self.world = world
        self.number = number
        self.name = f"client {number}"
        self.masters = masters
        self.clock, self.wall = clock, wall
        self.dead = self.closing = False
        self.lists: tuple[tuple[int, ...], ...] = ()
        self.default_ttl_ms = 0
        self._killed = killed
        self.connections: dict[Connection, None] = {}
        self.left: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.routes: list[Route] = []
        self.tokens: set[bytes] = set()

    # --- time ----------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """Return nanoseconds since boot."""
        raise NotImplementedError

    def read_clock_of_client(self) -> int:
        """Return the same, when the client reads its clock."""
        return self.read_clock()

    def at_no_time(self, call: Callable[[], T]) -> T:
        """Return the result of a call that reads the clock, as if that took no time."""
        raise NotImplementedError

    def pause(self, ns: int) -> None:
        """Pause the process, as after SIGSTOP."""
        raise NotImplementedError

    def read_wall(self) -> int:
        """Return microseconds since 1970."""
        return EPOCH_MS * 1000 + self.wall.read(self.local) // 1000

    def draw_tokens(self) -> list[bytes]:
        """Return new tokens that no other process draws, each with its client's number."""
        first = len(self.tokens)
        drawn = [b"t%02d-%06d" % (self.number, place) for place in range(first, first + 50)]
        self.tokens.update(drawn)
        return drawn

    def quorum(self, **numbers: Any) -> Any:
        """Return the quorum of a client that takes time, random numbers and tokens from this process."""
        calls, policy = [impl.current.module(f"quorum.{name}") for name in ("calls", "policy")]
        host = self

        class HostClock(impl.current.module("votes.units").Clock):  # type: ignore[misc]
            def now(self) -> int:
                return host.read_clock_of_client()

        return calls.Calls(
            clock=HostClock(),
            random=random.Random(self.world.chance.random()).random,
            tokens=impl.current.module("quorum.quorum").Tokens(self.draw_tokens),
            fences=policy.Fences(self.read_wall),
            **numbers,
        )

    # --- life ----------------------------------------------------------------------------------------------

    def wants_turn(self) -> None:
        """Record that there is something to do, if the process cannot see that by itself."""

    def collect(self) -> None:
        """Send the bytes that the client has written, unless they are sent at once."""

    def kill(self) -> None:
        """Die as after SIGKILL: the kernel closes the open sockets and sends the bytes that were written."""
        self.world.note(self.world.now, self.name, "is killed")
        self.collect()
        self.dead = True
        self._killed(self)
        for connection in list(self.connections):
            connection.finish()

    def end(self) -> None:
        """End the process when the schedule is over."""
        self.dead = True

    # --- connections ---------------------------------------------------------------------------------------

    def gain(self, connection: Connection) -> None:
        """Record a new connection."""
        self.connections[connection] = None

    def lose(self, connection: Connection) -> bool:
        """Record that a connection is over; return whether it was not before."""
        lost = self.connections.pop(connection, connection) is None
        if lost:
            self.note_end(connection)
        return lost

    def connections_to(self, index: int) -> list[Connection]:
        """Return the connections to a master."""
        return [connection for connection in self.connections if connection.master.index == index]

    def note_end(self, connection: Connection) -> None:
        """Record when a connection ended."""
        self.left[connection.master.index].append((self.world.now, connection.memory))

    def answers_at(self, index: int) -> int:
        """Return the time from which a master answers this process."""
        route = self.routes[index]
        return max(route.there.blocked_until, route.back.blocked_until, self.masters[index].stopped_until)

    def connect(self, index: int, handshake: GuardHandshake | None, sent_ns: int) -> Dialled:
        """Make a connection to a master whose handshake is over.

        Args:
            handshake: what it does for the guard; None without a guard.
            sent_ns: when it began, by the client's clock.

        Raises:
            Exception: why the master has no vote.
        """
        master, route = self.masters[index], self.routes[index]
        now = self.world.now
        if self.answers_at(index) > now:
            raise TimeoutError(f"{master.name} does not answer")
        if not master.up:
            raise ConnectionRefusedError(f"{master.name} is down")
        if master.loading:
            raise ConnectionError(f"{master.name} is loading")
        kind = Traits if master.scripts else TraitsWithoutScripts
        traits = kind(master.info(), 3, master.pushes)
        if traits.role != "master":
            raise master.wrong_role(traits.role)
        connection = Connection(self.world, self, master, route)
        self.gain(connection)
        master.welcome(connection, TEXTS if master.scripts else {})
        if handshake is not None:
            marker, server_us = master.shake(handshake)
            came_ns = self.clock.read(max(now, self.local))
            identity = f"{traits.run_id} {master.info()['master_replid']}"
            seen = True, master.promoted, master.backlog_ms
            traits.report = HandshakeReport(identity, marker, server_us, sent_ns, came_ns, *seen)
        self.world.note(now, self.name, f"has {master.name}")
        return Dialled(connection.near, traits)
