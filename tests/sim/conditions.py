"""Random histories of conditions and latches, with faults and crashes, and the rule that no wake-up is lost.

Consumers take items from a store that a lock protects, and wait in a condition of the lock while the store is empty.
Producers put items in and call one waiter for each. If an item is left for which a call succeeded, while a living
consumer waits, a wake-up was lost. Counters count a latch down, and others wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redlatch import Guard, LockError

from .faults import Faults
from .host import Host
from .logs import taken
from .master import Master
from .network import Route
from .parts import Fault
from .task_host import SimClient, TaskHost
from .world import MICROSECOND, SECOND, Drifting, World, without_collector

# The faults happen within this time, in seconds.
FAULTY = 12.0
# All clients connect to new masters, which takes all of them; then the tasks begin, at this time in seconds.
BEGIN = 1.0
# A waiter may be without a wake-up for so long after the last fault: the longest lock, and the longest pause of a call.
QUIET = 30

NAME, TTL = "store", 2.0
MAX_TTL = 20.0


@dataclass(frozen=True)
class Story:
    """One history.

    Attributes:
        masters: the number of masters.
        pushes: whether they push.
        clients: for each, by how many seconds its wall clock is ahead.
        consumers: the client of each.
        producers: for each, its client and how many items it puts in, one after another.
        impatient: whether consumers wait with a timeout, and wait again.
        counters: for each, its client.
        count: the count of the latch.
        waiters: the client of each task that waits for the latch.
        faults: the faults.
        cancels: for each, the seconds and the number of the task that is cancelled and begins again.
        strikes: faults that follow a call: for each, the number of the call, and the fault with the seconds after it.
    """

    seed: int
    masters: int
    pushes: bool
    clients: tuple[float, ...]
    consumers: tuple[int, ...]
    producers: tuple[tuple[int, int], ...]
    impatient: bool
    counters: tuple[int, ...]
    count: int
    waiters: tuple[int, ...]
    faults: tuple[Fault, ...]
    cancels: tuple[tuple[float, int], ...]
    strikes: tuple[tuple[int, Fault], ...] = ()


def draw(seed: int) -> Story:
    """Draw a history: every second one is a hunt."""
    chance = random.Random(seed)
    if seed % 2:
        return _hunt(seed, chance)
    masters = chance.choice((1, 3, 3, 3, 5))
    clients = tuple(chance.choice((0.0, 0.0, chance.uniform(-0.05, 0.05), 3.0)) for _ in range(chance.randint(2, 4)))

    def some(least: int, most: int) -> tuple[int, ...]:
        return tuple(chance.randrange(len(clients)) for _ in range(chance.randint(least, most)))

    counters = some(1, 5)
    return Story(
        seed=seed,
        masters=masters,
        pushes=chance.random() < 0.8,
        clients=clients,
        consumers=some(1, 5),
        producers=tuple((client, chance.randint(1, 3)) for client in some(1, 3)),
        impatient=chance.random() < 0.2,
        counters=counters,
        count=max(1, len(counters) - chance.choice((0, 0, 1))),
        waiters=some(1, 3),
        faults=_faults(chance, masters, len(clients)) if chance.random() < 0.8 else (),
        cancels=tuple((chance.uniform(0, FAULTY), chance.randrange(20)) for _ in range(chance.choice((0, 0, 1, 3)))),
    )


def _hunt(seed: int, chance: random.Random) -> Story:
    """Draw a history whose faults hit waiters and masters right when waiters are called.

    Each task has a client of its own. At first, some of them do not reach a minority of the masters.
    """
    masters = chance.choice((3, 3, 5))
    lost = (masters - 1) // 2
    consumers, items = chance.randint(2, 3), chance.randint(1, 2)
    clients = consumers + 1
    forgetful = chance.sample(range(masters), lost)
    blocks = [
        Fault(BEGIN / 2, "block", (client, master, "both", chance.choice((1.0, 4.0, 9.0))))
        for client in range(clients)
        if chance.random() < 0.6
        for master in chance.sample(range(masters), lost)
    ]

    def strike() -> tuple[int, Fault]:
        hunted, master = chance.randrange(consumers), chance.choice(forgetful)
        delay = chance.choice((0.0, 0.0005, 0.001, 0.002, 0.1, 1.0))
        what, details = chance.choice(
            [
                ("kill", (hunted,)),
                ("kill", (hunted,)),
                ("pause", (hunted, chance.choice((3.0, 7.0, 15.0)))),
                ("block", (hunted, master, "both", 30.0)),
                ("stop", (master, 30.0)),
                ("restart_empty", (master, 0.01)),
                ("reset", (hunted, master)),
            ]
        )
        return chance.randrange(items), Fault(delay, what, details)

    return Story(
        seed=seed,
        masters=masters,
        pushes=chance.random() < 0.8,
        clients=tuple(chance.choice((0.0, 0.0, 0.05, -0.05)) for _ in range(clients)),
        consumers=tuple(range(consumers)),
        producers=tuple([(consumers, 1)] * items),
        impatient=False,
        counters=(consumers, 0),
        count=2,
        waiters=(1,),
        faults=tuple(blocks),
        cancels=tuple((chance.uniform(1, 6), chance.randrange(consumers)) for _ in range(chance.choice((0, 0, 1)))),
        strikes=tuple(strike() for _ in range(chance.randint(1, 2))),
    )


def _faults(chance: random.Random, masters: int, clients: int) -> tuple[Fault, ...]:
    """Draw faults of which only a minority of the masters forgets anything."""
    forgetful = chance.sample(range(masters), (masters - 1) // 2)

    def one() -> Fault:
        at, master, client = chance.uniform(0, FAULTY), chance.randrange(masters), chance.randrange(clients)
        seconds = chance.choice((0.01, 0.3, 2.0, 4.0))
        kinds: list[tuple[str, tuple[Any, ...]]] = [
            ("reset", (client, master)),
            ("cut", (client, master, chance.randrange(200))),
            ("block", (client, master, chance.choice(("there", "back", "both")), seconds)),
            ("stop", (master, seconds)),
            ("restart", (master, seconds)),
            ("forget_scripts", (master,)),
            ("full", (master, seconds)),
            ("pause", (client, chance.choice((0.2, 3.0, 7.0)))),
            ("kill", (client,)),
        ]
        if forgetful:
            kinds += [("restart_empty", (chance.choice(forgetful), seconds))] * 2
        what, details = chance.choice(kinds)
        return Fault(at, what, details)

    return tuple(one() for _ in range(chance.randint(1, 4)))


def simulate(seed: int, tracing: bool = False) -> tuple[list[str], World, History]:
    """Run the history of a seed; return the broken rules."""
    return run(draw(seed), tracing)


def run(story: Story, tracing: bool = False) -> tuple[list[str], World, History]:
    """Run a history; return the broken rules."""
    with without_collector(), taken(logging.NullHandler(logging.CRITICAL + 1)):
        history = History(story, tracing)
        history.run()
        return history.world.wrong, history.world, history


def _close(loop: Any, client: SimClient) -> None:
    loop.create_task(client.close())


class History:
    """A history that runs.

    Attributes:
        items: how many items are in the store.
        called: how many items were put in whose call succeeded.
        taken: how many items were taken.
        waiting: the consumers that wait, by number, with their process.
    """

    def __init__(self, story: Story, tracing: bool) -> None:
        self.story = story
        self.world = world = World(story.seed, tracing)
        self.masters = [
            Master(world, index, Drifting(0, 1.0), "valkey", story.pushes, lambda *_: None)
            for index in range(story.masters)
        ]
        self.hosts = [
            TaskHost(world, number, self.masters, self._killed, ahead) for number, ahead in enumerate(story.clients)
        ]
        for host in self.hosts:
            host.routes = [
                Route(ns, ns) for ns in (int(world.chance.uniform(100, 900) * MICROSECOND) for _ in self.masters)
            ]
        self.clients = [SimClient(host, guard=Guard(max_ttl=MAX_TTL), ttl=TTL) for host in self.hosts]
        self.items = self.called = self.taken = 0
        self.calls = self.returned = 0
        self.waiting: dict[int, Host] = {}
        self.begun = self.counted = 0
        self.latched: dict[int, Host] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        # By number: the process of each task that has not ended.
        self.working: dict[int, Host] = {}

    def run(self) -> None:
        """Run everything, and judge it."""
        story, world = self.story, self.world
        self.faults = faults = Faults(world, self.hosts, self.masters)
        for fault in story.faults:
            faults.plan(fault)
        number = 0
        for kind, clients in (
            (self._consume, [(client,) for client in story.consumers]),
            (self._produce, list(story.producers)),
            (self._count, [(client,) for client in story.counters]),
            (self._await_latch, [(client,) for client in story.waiters]),
        ):
            for place, *rest in clients:
                self._start(number, self.hosts[place], partial(kind, number, place, *rest))
                number += 1
        for at, index in story.cancels:
            world.at(int(at * SECOND), self._cancel, index % number)
        world.run(int((FAULTY + QUIET) * SECOND), self.working)
        self._judge()
        for host, client in zip(self.hosts, self.clients, strict=True):
            if not host.dead:
                host.closing = True
                host.loop.call_soon(_close, host.loop, client)
        world.run(world.now + 5 * SECOND)
        for master in self.masters:
            for key in master.has_no_ttl():
                world.violate(f"{key!r} on {master.name} has no ttl")
        for host in self.hosts:
            host.end()

    def _killed(self, host: Host) -> None:
        for number in [number for number, other in self.working.items() if other is host]:
            del self.working[number]

    def _start(self, number: int, host: TaskHost, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def begin() -> None:
            task = host.loop.create_task(work())
            if number < len(self.tasks):
                self.tasks[number] = task
            else:
                self.tasks.append(task)
            task.add_done_callback(partial(self._ended, number, host, work))

        self.working[number] = host
        host.loop.call_soon(begin)

    def _ended(self, number: int, host: TaskHost, work: Any, task: asyncio.Task[None]) -> None:
        if host.dead or host.closing:
            return
        del self.working[number]
        if task.cancelled():
            self._start(number, host, work)
        elif task.exception() is not None:
            self.world.violate(f"task {number}: {task.exception()!r}")

    def _cancel(self, number: int) -> None:
        host = self.hosts[self._client_of(number)]
        if number < len(self.tasks) and not host.dead and not self.tasks[number].done():
            self._say(host, f"task {number} is cancelled")
            self.tasks[number].cancel()
            host.wants_turn()

    def _client_of(self, number: int) -> int:
        story = self.story
        clients = [*story.consumers, *[client for client, _ in story.producers], *story.counters, *story.waiters]
        return clients[number]

    def _say(self, host: Host, what: str) -> None:
        self.world.note(max(self.world.now, host.local), host.name, what)

    def _judge(self) -> None:
        """Judge the end: no item with a call is left while a consumer waits, and an open latch lets all go on."""
        world, story = self.world, self.story
        waiting = [number for number, host in self.waiting.items() if not host.dead]
        if waiting and self.called > self.taken:
            world.violate(f"tasks {waiting} wait, but {self.called - self.taken} items with a call are left")
        latched = [number for number, host in self.latched.items() if not host.dead]
        if latched and self.counted >= story.count:
            world.violate(f"tasks {latched} wait for a latch that was counted down {self.counted} times")

    def _strike(self) -> None:
        """Make the faults happen that follow this call."""
        for nth, fault in self.story.strikes:
            if nth == self.calls:
                self.faults.plan(replace(fault, at=self.world.now / SECOND + fault.at))
        self.calls += 1

    # --- the tasks -----------------------------------------------------------------------------------------

    async def _begin(self, client: int) -> None:
        await self.clients[client].connect()
        await asyncio.sleep(max(0.0, BEGIN - self.world.now / SECOND))

    async def _consume(self, number: int, client: int) -> None:
        """Take one item."""
        await self._begin(client)
        # They come one after another.
        await asyncio.sleep(0.02 * number)
        host, done = self.hosts[client], False
        while not done:
            lock = self.clients[client].lock(NAME)
            condition = lock.condition()
            try:
                async with lock:
                    while not self.items:
                        self.waiting[number] = host
                        self._say(host, f"task {number} waits")
                        self.returned += await condition.wait(1.0 if self.story.impatient else None)
                        self._say(host, f"task {number} goes on, {self.items} items")
                    lock.check()
                    if self.items:
                        self.items -= 1
                        self.taken += 1
                        done = True
            except LockError as error:
                if host.closing:
                    return
                self._say(host, f"task {number}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.05)
            finally:
                self.waiting.pop(number, None)

    async def _produce(self, number: int, client: int, items: int) -> None:
        """Put items in, and call a waiter for each."""
        host = self.hosts[client]
        chance = random.Random(self.story.seed * 100 + number)
        left = items
        await self._begin(client)
        while left:
            await asyncio.sleep(chance.uniform(0, 4.0))
            lock = self.clients[client].lock(NAME)
            condition = lock.condition()
            try:
                async with lock:
                    many = chance.randint(1, left)
                    lock.check()
                    self.items += many
                    left -= many
                    self._say(host, f"task {number} puts {many} items in")
                    self._strike()
                    await (condition.notify_all() if chance.random() < 0.1 else condition.notify(many))
                    self.called += many
                    self._say(host, f"task {number} has called")
            except LockError as error:
                self._say(host, f"task {number}: {type(error).__name__}: {error}")

    async def _count(self, number: int, client: int) -> None:
        """Count once."""
        chance = random.Random(self.story.seed * 100 + number)
        await self._begin(client)
        await asyncio.sleep(chance.uniform(0, 8.0))
        latch = self.clients[client].latch(NAME, self.story.count)
        self.begun += 1
        try:
            await latch.count_down()
            self.counted += 1
            self._say(self.hosts[client], f"task {number} has counted")
        except LockError as error:
            self._say(self.hosts[client], f"task {number}: {type(error).__name__}: {error}")

    async def _await_latch(self, number: int, client: int) -> None:
        """Wait for the latch."""
        host = self.hosts[client]
        await self._begin(client)
        latch = self.clients[client].latch(NAME, self.story.count)
        while True:
            self.latched[number] = host
            try:
                if await latch.wait():
                    if self.begun < self.story.count:
                        self.world.violate(f"the latch is open after {self.begun} of {self.story.count} counts")
                    del self.latched[number]
                    return
            except LockError as error:
                if host.closing:
                    return
                self._say(host, f"task {number}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.05)
