"""A Fleet whose only master is a cluster, whose nodes the test plays byte by byte."""

from __future__ import annotations

import itertools
from typing import Any

from redlatch import impl
from redlatch.votes.key import slot_of
from redlatch.wire.server_traits import Traits
from support.far_ends import FarEnds

HOST = "10.0.0.1"


class Source:
    """Records which nodes were to be asked for the topology; None for any."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int] | None] = []

    def refresh(self, address: tuple[str, int] | None = None) -> None:
        self.asked.append(address)


class ClusterEnds(FarEnds):
    """The nodes of one cluster, at HOST and the ports 7000, 7001 and so on; the first one has all slots.

    Args:
        count: the number of nodes that are connected.
    """

    def __init__(self, build: impl.Implementation, count: int = 3) -> None:
        self.commands = build.module("votes.commands")
        self.ballot: Any = build.module("votes.ballot").Ballot
        self.watch: Any = build.module("quorum.waiting.watches").Watch
        self.clock = build.module("wire.engine.net").BootClock()
        self.source = Source()
        fleet = build.module("wire.engine.fleet").Fleet([], 1, self.clock)
        fleet.become_cluster(self.source)
        super().__init__(fleet)
        self.tokens = (b"token-%d" % number for number in itertools.count(1))
        for index in range(count):
            fleet.add_node(HOST, 7000 + index, f"{HOST}:{7000 + index}")
            self.adopt(index)
        if count:
            self.give_all_to(0)

    def adopt(self, index: int, tracking: bool = False) -> None:
        traits = Traits({"run_id": f"run-{index}", "role": "master", "redis_version": "7.0.0"}, 3, tracking)
        self.fleet.adopt(index, self.connect(index), traits, traits.dialect)

    def give_all_to(self, index: int, asked_ns: int | None = None) -> None:
        self.fleet.route([(0, 16383, index)], self.clock.now() if asked_ns is None else asked_ns)
        self.fleet.flush()

    def command(self, kind: str = "Acquire", key: bytes = b"the-key", token: bytes = b"") -> Any:
        more = {"Acquire": (0, 10_000), "Extend": (0, 10_000), "Release": (0,), "Owned": (0,)}
        if kind in more:
            return getattr(self.commands, kind)(key, token or next(self.tokens), *more[kind])
        return getattr(self.commands, kind)(key)

    def submit(self, command: Any, until_ns: int = 0) -> Any:
        """Submit a command with a waiter and a minute of time, and send it."""
        make = self.watch if command.meaning == self.commands.NO else self.ballot
        ballot = make(command, 1, 1, until_ns or self.clock.now() + 60_000_000_000)
        ballot.waiter = object()
        self.fleet.submit(ballot)
        self.fleet.flush()
        return ballot

    def got(self, index: int) -> list[str]:
        """Return the names of the commands that a node received since the last call."""
        return [command[0].decode() for command in self.commands_of(index)]

    def answer(self, index: int, *replies: bytes) -> None:
        """Have a node answer, and the fleet send what follows from that."""
        self.reply(index, *replies)
        self.fleet.flush()

    def let_pass(self, seconds: float = 5.0) -> None:
        """Let the fleet send what is delayed; with a limit, because nothing may be."""
        until = self.clock.now() + int(seconds * 1e9)
        while self.fleet.routes.delayed and self.clock.now() < until:
            self.fleet.pump(10_000_000)
            self.fleet.flush()


def moved(index: int, key: bytes = b"the-key", host: str = HOST) -> bytes:
    return b"-MOVED %d %b:%d\r\n" % (slot_of(key), host.encode(), 7000 + index)


def ask(index: int, key: bytes = b"the-key", host: str = HOST) -> bytes:
    return b"-ASK %d %b:%d\r\n" % (slot_of(key), host.encode(), 7000 + index)
