"""The parts of the driver for threads on one real master, without a client and without its background thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from redlatch import impl
from redlatch.drivers.background import BackgroundThread
from redlatch.drivers.closing import Closing
from redlatch.drivers.connections import Connections
from redlatch.drivers.lifetime import HeldLocks
from redlatch.options import ClientOptions
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.wire.dial.connect import dial

from .dialling import PATIENCE, master_of
from .faces import in_thread
from .scripted_votes import SECOND, Play, clock_of


class Crew:
    """A leader, its followers and what they share. Every thread of a test may call them."""

    def __init__(self, build: impl.Implementation, url: str) -> None:
        self.closed = False
        self.commands: ModuleType = build.module("votes.commands")
        self.sleepers: ModuleType = build.module("drivers.sleeper")
        self.queue_module: ModuleType = build.module("quorum.waiting.queues")
        self.boot = build.module("wire.engine.net").BootClock()
        # A test may replace the way in which the clock is read.
        self.read = self.boot.now
        self.clock = clock_of(build, lambda: self.read())
        # The holds of the play; its quorum has a scripted clock and is not used.
        self.play = Play(1, build=build)
        self.quorum = build.module("quorum.calls").Calls(
            masters=self.play.quorum.masters,
            options=ClientOptions("", guard=None),
            clock=self.clock,
            random=self.play.quorum.random,
            tokens=self.play.quorum.tokens,
            fences=self.play.quorum.fences,
        )
        self.queues = self.quorum.queues
        self.connections = Connections(
            [master_of(url)],
            1,
            self.clock,
            build.module("wire.engine.fleet").Fleet,
            lambda index, outcome: None,
            lifecycle=build.module("drivers.lifecycle").Lifecycle(),
        )
        self.background = BackgroundThread(self)
        chains = build.module("drivers.wake_chain")
        self.chain = chains.WakeChain(self.clock)
        self.watchers = chains.Watchers(self.clock)
        self.leader = build.module("drivers.leader").Leader(
            self.connections, self.quorum, self.chain, self.watchers, self.background, -1
        )
        self.followers = build.module("drivers.followers").Followers(
            self.leader, self.chain, self.connections, self.background, self.clock
        )
        self.schedule = UpkeepSchedule(self.quorum)
        self.held_locks = HeldLocks(self.quorum)
        self.closing = Closing(
            self.leader,
            self.chain,
            self.watchers,
            self.connections,
            self.background,
            self.quorum,
            self.schedule,
            self.held_locks,
        )
        self.url = url

    def connect(self) -> None:
        """Connect the master."""
        self.leader.fleet = self.connections.make_fleet()
        self.connections.arrive(0, dial(master_of(self.url), PATIENCE))

    def hung_up(self) -> bool:
        """Return whether the sockets are closed."""
        return self.connections.lifecycle.closed

    def ballot(self, command: Any, seconds: float = PATIENCE) -> Any:
        """Return a ballot of the one master."""
        return self.quorum.ballot(command, self.boot.now() + int(seconds * SECOND))

    def acquiring(self, name: str, token: bytes = b"token") -> Any:
        return self.ballot(self.commands.Acquire(name.encode(), token, self.boot.now(), 60_000))

    def releasing(self, name: str, token: bytes = b"token") -> Any:
        return self.ballot(self.commands.Release(name.encode(), token, self.boot.now()))

    def strike_once(self, after: int = 0) -> None:
        """Raise KeyboardInterrupt the next time the clock is read, or `after` readings later."""
        left = [None] * after

        def strike() -> Any:
            if left:
                left.pop()
                return self.boot.now()
            self.read = self.boot.now
            raise KeyboardInterrupt

        self.read = strike

    @contextmanager
    def led_by_another(self) -> Iterator[Any]:
        """Let another thread have the role; the event makes it leave."""
        taken, leave = threading.Event(), threading.Event()

        def lead() -> None:
            assert self.leader.take_role()
            taken.set()
            assert leave.wait(PATIENCE)
            self.leader.leave()

        other = in_thread(lead)
        assert taken.wait(PATIENCE)
        try:
            yield leave
        finally:
            leave.set()
            other.result(PATIENCE)

    def attend(self) -> None:
        """Do nothing; the background thread calls it."""

    def read_late_replies(self) -> None:
        self.leader.read_late_replies()
