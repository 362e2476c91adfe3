"""A simulation of split votes: rivals on different machines start at one moment. It counts the rounds until one wins.

On one real machine they would not start at the same moment, and the first would usually win. So this module simulates
the masters, the network and the clock. The rivals run the real algorithm (`redlatch.quorum.acquire`), and only the
latencies decide the order of its effects. Each message takes LEAST_NS plus an exponential time. Messages of one
connection arrive in the order in which they were sent. When a key is deleted, the master sends a push to each client
that looked at it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import Any

from bench.contender import Contender, contender
from bench.order import Answer, Order, cpu_seconds, percentiles
from redlatch.options import ClientOptions
from redlatch.quorum.acquire import acquire
from redlatch.quorum.claim import HELD
from redlatch.quorum.effects import Effect, Pause, Send, Steps
from redlatch.quorum.hold import Hold
from redlatch.quorum.kinds.plain import PLAIN
from redlatch.quorum.policy import Fences, FirstMaster
from redlatch.quorum.quorum import Quorum, Tokens
from redlatch.votes.ballot import Ballot
from redlatch.votes.commands import Acquire, Look, Release
from redlatch.votes.units import SECOND, Clock

MASTERS = 5

# The shortest latency of a message, and the mean of the time on top. So the mean round trip is 90 us.
LEAST_NS = 30_000
MORE_NS = 15_000

TTL_MS = 10_000
KEY = b"hot"

Way = Callable[["Rival"], Steps]


class World(Clock):
    """The clock and the events of a simulation.

    Args:
        seed: the seed of all its random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # The token of the key on each master.
        self.owners: list[bytes | None] = [None] * MASTERS
        self.watchers: list[dict[Rival, None]] = [{} for _ in range(MASTERS)]
        self._now = SECOND
        self._count = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []

    def now(self) -> int:
        return self._now

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Schedule an event at a time."""
        heappush(self._agenda, (when_ns, next(self._count), act))

    def latency(self) -> int:
        """Return the latency of a message in ns."""
        return LEAST_NS + int(self.chance.expovariate(1 / MORE_NS))

    def tick(self) -> None:
        """Set the clock to the next event and run it."""
        self._now, _, act = heappop(self._agenda)
        act()


class Rival:
    """One client with one lock object, which it acquires.

    Args:
        world: the simulation.
        way: the algorithm of its acquire.
        ordered: whether its client asks one master before the others after a refusal.
    """

    def __init__(self, world: World, way: Way, ordered: bool) -> None:
        self.world = world
        self.hold = Hold("hot", KEY, PLAIN)
        self.quorum = Quorum(
            masters=tuple(f"master-{index}" for index in range(MASTERS)),
            options=ClientOptions("", guard=None),
            clock=world,
            random=world.chance.random,
            tokens=Tokens(lambda: [world.chance.randbytes(16)]),
            fences=Fences(lambda: 1),
        )
        if not ordered:
            self.quorum.queues.first_master = NoMaster()
        # The tokens of its attempts.
        self.tokens: set[bytes] = set()
        # The arrival times of the last message to each master, and of the last reply.
        self._latest = [[0] * MASTERS, [0] * MASTERS]
        # The number of its waits, so that no event ends the same wait twice.
        self._waits = 0
        self._awaited: Ballot | None = None
        self.hold.claim(self)
        self._steps = way(self)

    def go_on(self) -> None:
        """Run the algorithm until its next wait."""
        self._waits += 1
        self._awaited = None
        for effect in self._steps:
            if self._waits_for(effect):
                return

    def _waits_for(self, effect: Effect) -> bool:
        if isinstance(effect, Send):
            for ballot in effect.ballots:
                self._submit(ballot)
            return False
        if isinstance(effect, Pause):
            self._wake_at(effect.until_ns)
            return True
        if isinstance(effect, list):
            # `acquire` waits for one ballot at most.
            (ballot,) = effect
        else:
            assert isinstance(effect, Ballot), "each client has only one lock object, so there is no queue"
            ballot = effect
            self._submit(ballot)
        if ballot.decided:
            return False
        self._awaited = ballot
        self._wake_at(ballot.until_ns)
        return True

    def _wake_at(self, when_ns: int) -> None:
        waits = self._waits
        self.world.at(when_ns, lambda: self.go_on() if self._waits == waits else None)

    def _submit(self, ballot: Ballot) -> None:
        if isinstance(ballot.command, Acquire):
            self.tokens.add(ballot.command.token)
        for index in range(MASTERS):
            if ballot.asked >> index & 1:
                self._send(0, index, lambda index=index: self._arrive(ballot, index))  # type: ignore[misc]

    def _send(self, way: int, index: int, act: Callable[[], None]) -> None:
        """Schedule the arrival of a message after the messages sent before it."""
        line = self._latest[way]
        line[index] = max(line[index], self.world.now() + self.world.latency())
        self.world.at(line[index], act)

    def _arrive(self, ballot: Ballot, index: int) -> None:
        """Execute a command on a master, and send the reply."""
        command, owners = ballot.command, self.world.owners
        yes = owners[index] is None
        if isinstance(command, Acquire):
            owners[index] = command.token if yes else owners[index]
        elif isinstance(command, Look):
            if not yes:
                self.world.watchers[index][self] = None
        elif yes := owners[index] == command.token:
            owners[index] = None
            watchers, self.world.watchers[index] = self.world.watchers[index], {}
            for rival in watchers:
                if rival is not self:
                    rival._send(1, index, lambda rival=rival: rival._learn(index))  # type: ignore[misc]
        self._send(1, index, lambda: self._count(ballot, index, yes))

    def _count(self, ballot: Ballot, index: int, yes: bool) -> None:
        """Count a vote."""
        if yes:
            ballot.yes += 1
        else:
            ballot.no += 1
            if isinstance(ballot.command, Look):
                ballot.count_answer(index, TTL_MS, True)
        if not ballot.decided and ballot.settled():
            ballot.decided = True
        self._wake(ballot)

    def _learn(self, index: int) -> None:
        """Handle a push: the key has changed on this master."""
        self.quorum.queues.watches.changed(index, KEY)
        while self.quorum.queues.called:
            self._wake(self.quorum.queues.called.pop(0))

    def _wake(self, ballot: Any) -> None:
        if ballot.decided and ballot is self._awaited:
            self.go_on()


class NoMaster(FirstMaster):
    """No master is asked before the others."""

    def first_of(self, order: tuple[int, ...], key: bytes, now_ns: int) -> int:
        return -1


def as_redlatch(rival: Rival) -> Steps:
    """Acquire as redlatch does."""
    return acquire(rival.quorum, rival.hold, TTL_MS, None)


def by_jitter(rival: Rival) -> Steps:
    """Acquire as the Redis documentation describes: ask all masters, undo, pause for a random time, ask again."""
    quorum, hold = rival.quorum, rival.hold
    for attempt in itertools.count():
        started = quorum.clock.now()
        ballot = hold.attempt(
            quorum,
            TTL_MS,
            started,
            started + quorum.validity_ns(TTL_MS),
            started + quorum.wait_ns(TTL_MS),
        )
        yield ballot
        if ballot.yes >= ballot.quorum:
            hold.keep(quorum.clock.now() - started)
            return
        yield Send([quorum.ballot(Release(KEY, hold.token, started))])
        yield Pause(quorum.clock.now() + quorum.retry.pause_ns(attempt, quorum.random()))


@contender("split-redlatch", way=as_redlatch, ordered=True)
@contender("split-unordered", way=as_redlatch, ordered=False)
@contender("split-jitter", way=by_jitter, ordered=True)
class Split(Contender):
    """Rivals for one free name. The order's width is the number of rivals; a cycle is one contest."""

    package = "redlatch"
    modes = ("split",)
    way: Any
    ordered: bool

    def open(self, urls: list[str]) -> None:
        """Do nothing, because masters and network are simulated."""

    def run_split(self, order: Order) -> Answer:
        order.start()
        results = sorted(contest(self.way, self.ordered, order.width, seed) for seed in seeds(order))
        count = len(results)
        attempts = [attempts for attempts, _ in results]
        return {
            "mode": order.mode,
            "width": order.width,
            "cycles": count,
            "seconds": (perf_counter_ns() - order.started_ns) / 1e9,
            "cpu_s": cpu_seconds() - order.cpu_before,
            "split_share": sum(each > 1 for each in attempts) / count,
            "attempts_p50": attempts[count // 2],
            "attempts_p99": attempts[count * 99 // 100],
            **percentiles(sorted(ns for _, ns in results)),
        }


def seeds(order: Order) -> Iterator[int]:
    """Return a seed for each contest. Each order has new seeds, and all contenders have the same."""
    return iter(range(Order.count * 1_000_000, Order.count * 1_000_000 + order.amount))


def contest(way: Way, ordered: bool, rivals: int, seed: int) -> tuple[int, int]:
    """Let some rivals start at one moment, and run until one of them has won.

    Args:
        way: the algorithm of their acquires.
        ordered: as for `Rival`.
        rivals: the number of rivals.
        seed: the seed of the simulation.

    Returns:
        The largest number of attempts that a rival had begun, and the time in nanoseconds.
    """
    world = World(seed)
    everybody = [Rival(world, way, ordered) for _ in range(rivals)]
    for rival in everybody:
        rival.go_on()
    while not any(rival.hold.state == HELD for rival in everybody):
        world.tick()
    return max(len(rival.tokens) for rival in everybody), world.now() - SECOND
