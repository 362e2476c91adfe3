"""How many rounds a split vote takes: rivals that start at one moment, each the client of another machine.

On one machine they would not start at one moment, and the first would mostly win. So the masters, the network and the
clock are acted out here, and the rivals run the algorithm itself (`redlatch.protocol.acquire`): what it yields is done
in an order that only latencies decide. Each message takes LEAST_NS and an exponential time on top; messages of one
connection arrive in the order they were sent; a master pushes to who looked at a key when it goes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import Any

from redlatch.bench.contender import Contender, contender
from redlatch.bench.order import Answer, Order, cpu_seconds, percentiles
from redlatch.protocol.acquire import acquire
from redlatch.protocol.ballot import Ballot
from redlatch.protocol.commands import Acquire, Look, Release
from redlatch.protocol.effects import Effect, Pause, Steps, Tell
from redlatch.protocol.hold import HELD, Hold
from redlatch.protocol.plain import PLAIN
from redlatch.protocol.policy import SECOND, Clock, Fences, Policy, Retry, Tokens
from redlatch.protocol.waiting import Lines

MASTERS = 5
LEAST_NS = 30_000  # one way; a round trip is 90 us in the mean
MORE_NS = 15_000
TTL_MS = 10_000
KEY = b"hot"

Way = Callable[["Rival"], Steps]


class World(Clock):
    """The clock, and what happens when.

    Args:
        seed: of all chance in it.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.owners: list[bytes | None] = [None] * MASTERS  # the token under the key, by master
        self.watchers: list[dict[Rival, None]] = [{} for _ in range(MASTERS)]
        self._now = SECOND
        self._count = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []

    def now(self) -> int:
        return self._now

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Have something happen."""
        heappush(self._agenda, (when_ns, next(self._count), act))

    def latency(self) -> int:
        """Return how long a message takes."""
        return LEAST_NS + int(self.chance.expovariate(1 / MORE_NS))

    def tick(self) -> None:
        """Let the next thing happen."""
        self._now, _, act = heappop(self._agenda)
        act()


class Rival:
    """One client, with one lock object, that acquires.

    Args:
        world: where it lives.
        way: how it acquires.
        lines: the lines of its client.
    """

    def __init__(self, world: World, way: Way, lines: Lines) -> None:
        self.world = world
        self.lines = lines
        self.hold = Hold("hot", KEY, PLAIN)
        self.policy = Policy(
            masters=tuple(f"master-{index}" for index in range(MASTERS)),
            drift_factor=0.01,
            attempt_ns=None,
            retry=Retry(),
            clock=world,
            random=world.chance.random,
            tokens=Tokens(lambda: [world.chance.randbytes(16)]),
            fences=Fences(lambda: 1),
        )
        self.tokens: set[bytes] = set()  # of its attempts
        self._latest = [[0] * MASTERS, [0] * MASTERS]  # when the last message there, and back, arrives
        self._waits = 0  # counts what it waited for, so that nothing wakes it twice
        self._awaited: Ballot | None = None
        self.hold.claim(self)
        self._steps = way(self)

    def go_on(self) -> None:
        """Do all that it asks for until it waits for something."""
        self._waits += 1
        self._awaited = None
        for effect in self._steps:
            if self._waits_for(effect):
                return

    def _waits_for(self, effect: Effect) -> bool:
        if isinstance(effect, Tell):
            for ballot in effect.ballots:
                self._submit(ballot)
            return False
        if isinstance(effect, Pause):
            self._wake_at(effect.until_ns)
            return True
        if isinstance(effect, list):  # acquire waits for no more than one
            (ballot,) = effect
        else:
            assert isinstance(effect, Ballot), "one client has one lock object here, so that there is no line"
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
        """Have a message arrive, behind those before it."""
        line = self._latest[way]
        line[index] = max(line[index], self.world.now() + self.world.latency())
        self.world.at(line[index], act)

    def _arrive(self, ballot: Ballot, index: int) -> None:
        """Do what a command says on a master, and send the reply."""
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
                ballot.tell(index, TTL_MS, True)
        if not ballot.decided and ballot.settled():
            ballot.decided = True
        self._wake(ballot)

    def _learn(self, index: int) -> None:
        """Take note of a push: the key has changed on that master."""
        self.lines.changed(index, KEY)
        while self.lines.called:
            self._wake(self.lines.called.popleft())

    def _wake(self, ballot: Ballot) -> None:
        if ballot is self._awaited and ballot.decided:
            self.go_on()


class Unordered(Lines):
    """Lines where no master is asked before the others."""

    def first_of(self, policy: Policy, key: bytes, now_ns: int) -> int:
        return -1


def as_redlatch(rival: Rival) -> Steps:
    """Acquire as redlatch does."""
    return acquire(rival.policy, rival.lines, rival.hold, TTL_MS, None)


def by_jitter(rival: Rival) -> Steps:
    """Acquire as the Redis page says: ask all, undo, pause for a random time, ask all again."""
    policy, hold = rival.policy, rival.hold
    for attempt in itertools.count():
        started = policy.clock.now()
        ballot = hold.attempt(
            policy,
            rival.lines,
            TTL_MS,
            started,
            started + policy.validity_ns(TTL_MS),
            started + policy.patience_ns(TTL_MS),
        )
        yield ballot
        if ballot.yes >= ballot.quorum:
            hold.keep(policy.clock.now() - started)
            return
        yield Tell([policy.ballot(Release(KEY, hold.token, started))])
        yield Pause(policy.clock.now() + policy.retry.pause_ns(attempt, policy.random()))


@contender("split-redlatch", way=as_redlatch, lines=Lines)
@contender("split-unordered", way=as_redlatch, lines=Unordered)
@contender("split-jitter", way=by_jitter, lines=Lines)
class Split(Contender):
    """Rivals for one name that nobody holds, as many as the order is wide; a cycle is one contest."""

    package = "redlatch"
    modes = ("split",)
    way: Any
    lines: Any

    def open(self, urls: list[str]) -> None:
        """Do nothing: masters and network are acted out."""

    def run_split(self, order: Order) -> Answer:
        order.start()
        results = sorted(contest(self.way, self.lines, order.width, seed) for seed in seeds(order))
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
    """Return a seed for each contest; each order has others, the same for every contender."""
    return iter(range(Order.count * 1_000_000, Order.count * 1_000_000 + order.amount))


def contest(way: Way, lines: Callable[[], Lines], rivals: int, seed: int) -> tuple[int, int]:
    """Let so many rivals start at one moment.

    Returns:
        How many attempts the busiest of them had begun when somebody had won, and after how many nanoseconds that was.
    """
    world = World(seed)
    everybody = [Rival(world, way, lines()) for _ in range(rivals)]
    for rival in everybody:
        rival.go_on()
    while not any(rival.hold.state == HELD for rival in everybody):
        world.tick()
    return max(len(rival.tokens) for rival in everybody), world.now() - SECOND
