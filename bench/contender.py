"""The base of all contenders: the orders that they obey, and the registry of their names.

A contender is a lock client with `open`, `acquire`, `release` and `close`; a cycle is one acquire and one release. It
runs in its own process (`serve.py`) and obeys orders, one per line, with these modes:

    cycle       one caller                              threads, tasks      WIDTH callers at once, on distinct names
    batch       one caller, WIDTH locks in one call     memory              AMOUNT locks, all held
    beside      one caller, beside a computing thread   spin                the computing thread alone
    hot         WIDTH callers in each process, all for one name
    hold        the same, and each owner keeps the lock for a millisecond
    relay       the same for 2 ms, and a caller asks again only after another caller has had the lock
    rested      one caller that rests before each cycle for as long as an owner in a relay keeps the lock

A cycle that does not get its lock ends the process, because a refusal in microseconds must not improve the figures.

Each run of a contender for threads must match a run of the one for asyncio.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, ClassVar, TextIO, TypeVar

from bench.ledger import Caller
from bench.order import HOT, NAP, Answer, Order, Spinner, timed, timed_async

REGISTRY: dict[str, tuple[type[Contender], dict[str, Any]]] = {}
TTL = 10.0
TTL_MS = 10_000

# The number of locks that the mode "memory" acquires at once.
TOGETHER = 64

AnyContender = TypeVar("AnyContender", bound="Contender")


class Refused(Exception):
    """A lock that has no other holder was not granted."""


class Absent(Exception):
    """A contender or a mode is not available; the message gives the reason. This is not a failure."""


def contender(name: str, **attributes: Any) -> Callable[[type[AnyContender]], type[AnyContender]]:
    """Register a class under the name that scenarios use, with the attributes of its objects under this name."""

    def register(cls: type[AnyContender]) -> type[AnyContender]:
        REGISTRY[name] = cls, attributes
        return cls

    return register


class Contender:
    """A lock client for threads.

    Attributes:
        module: the module that it imports; if the import fails, the contender is absent.
        package: the name of its package for pip.
        limit: the requirements of the package, for the message that it is absent.
        modes: the modes that it has.
        client: the client that `open` connects; it is kept for all rounds.
    """

    module: ClassVar[str] = ""
    package: ClassVar[str] = ""
    limit: ClassVar[str] = ""
    modes: tuple[str, ...] = ("cycle", "threads", "batch", "memory", "beside", "spin", "rested", *HOT)

    client: Any

    def open(self, urls: list[str]) -> Any:
        """Connect to the masters."""
        raise NotImplementedError

    def lock(self, name: str) -> Any:
        """Return an object with `acquire(blocking=)` and `release()`, if the client has such objects."""
        raise NotImplementedError

    def acquire(self, name: str) -> Any:
        """Acquire the lock with this name and return the argument for `release`, or raise Refused."""
        lock = self.lock(name)
        if not lock.acquire(blocking=False):
            raise Refused(name)
        return lock

    def take(self, name: str) -> Any:
        """Wait for the lock with this name without a limit, and return the argument for `release`."""
        lock = self.lock(name)
        lock.acquire()
        return lock

    def release(self, held: Any) -> Any:
        """Release a lock; the argument is the result of `acquire` or `take`."""
        held.release()

    def acquire_many(self, names: list[str]) -> Any:
        """Acquire many locks in one call, or raise Absent if the client has no such call."""
        raise Absent(f"{self.package} has no call for many locks")

    def release_many(self, held: Any) -> Any:
        """Release many locks; the argument is the result of `acquire_many`."""
        raise NotImplementedError

    def close(self) -> Any:
        """Close the client, if it needs that."""

    def serve(self, urls: list[str], lines: TextIO, answer: Callable[[Answer], None]) -> None:
        """Run the order of each line until the lines end."""
        self.open(urls)
        for line in lines:
            try:
                answer(self.run(Order(line)))
            except Absent as reason:
                answer({"absent": str(reason)})
        self.close()

    def run(self, order: Order) -> Answer:
        """Run one order."""
        run: Callable[[Order], Answer] = getattr(self, f"run_{self.known(order.mode)}")
        return run(order)

    def known(self, mode: str) -> str:
        """Return the mode if this contender has it, else raise Absent."""
        if mode not in self.modes:
            raise Absent(f"it has no mode {mode}")
        return mode

    def cycle(self, name: str) -> None:
        """Acquire and release the lock with this name."""
        self.release(self.acquire(name))

    def run_cycle(self, order: Order) -> Answer:
        names = order.start()
        return order.summary([timed(self.cycle, order, names[0])])

    run_rested = run_cycle

    def run_threads(self, order: Order) -> Answer:
        names = order.start()
        line = threading.Barrier(order.width, action=order.begin)

        def work(name: str) -> list[int]:
            line.wait()
            return timed(self.cycle, order, name)

        with ThreadPoolExecutor(order.width) as pool:
            return order.summary(list(pool.map(work, names)))

    def run_hot(self, order: Order) -> Answer:
        name, callers = order.contest()
        inside = HOT[order.mode]

        def compete(caller: Caller) -> None:
            time.sleep(order.until_start())
            while caller.running:
                held = self.take(name)
                caller.enter()
                if inside or caller.looks_round():
                    time.sleep(inside)
                caller.leave()
                self.release(held)
                while order.mode == "relay" and caller.was_last():
                    time.sleep(NAP)

        with ThreadPoolExecutor(order.width) as pool:
            list(pool.map(compete, callers))
        return order.hot_answer(callers)

    run_hold = run_relay = run_hot

    def run_batch(self, order: Order) -> Answer:
        # This raises Absent before the clock runs, if the client has no such call.
        self.cycle_many(order, "first")
        names = order.start()
        latencies = timed(lambda name: self.cycle_many(order, name), order, names[0])
        return order.summary([latencies], order.width)

    def cycle_many(self, order: Order, name: str) -> None:
        """Acquire and release as many locks as the order is wide."""
        self.release_many(self.acquire_many([f"{name}:{i}" for i in range(order.width)]))

    def run_beside(self, order: Order) -> Answer:
        with Spinner() as spinner:
            # Wait until the thread spins.
            time.sleep(0.02)
            names = order.start()
            before = spinner.spins
            latencies = timed(self.cycle, order, names[0])
            return order.summary([latencies]) | {"spins_per_s": rate(spinner, before, order)}

    def run_spin(self, order: Order) -> Answer:
        with Spinner() as spinner:
            time.sleep(0.02)
            order.start()
            before = spinner.spins
            time.sleep(order.seconds)
            return {"mode": order.mode, "spins_per_s": rate(spinner, before, order)}

    def run_memory(self, order: Order) -> Answer:
        first, second = order.holds()
        held = [self.acquire(name) for name in first]
        before = resident_bytes()
        held += [self.acquire(name) for name in second]
        return {"mode": order.mode, "bytes_per_lock": (resident_bytes() - before) / len(second)}


class AsyncContender(Contender):
    """A lock client whose open, acquire, release and close are coroutines; its loop keeps running between rounds."""

    loop = "asyncio"
    modes = ("cycle", "tasks", "batch", "memory", "rested", *HOT)

    def serve(self, urls: list[str], lines: TextIO, answer: Callable[[Answer], None]) -> None:
        with asyncio.Runner(loop_factory=loop_factory(self.loop)) as runner:
            runner.run(self._serve(urls, lines, answer))

    async def _serve(self, urls: list[str], lines: TextIO, answer: Callable[[Answer], None]) -> None:
        await self.open(urls)
        while line := await asyncio.to_thread(lines.readline):
            order = Order(line)
            try:
                answer(await getattr(self, f"run_{self.known(order.mode)}_async")(order))
            except Absent as reason:
                answer({"absent": str(reason)})
        await self.close()

    async def acquire(self, name: str) -> Any:
        """Acquire the lock with this name and return the argument for `release`, or raise Refused."""
        lock = self.lock(name)
        if not await lock.acquire(blocking=False):
            raise Refused(name)
        return lock

    async def take(self, name: str) -> Any:
        """Wait for the lock with this name without a limit, and return the argument for `release`."""
        lock = self.lock(name)
        await lock.acquire()
        return lock

    async def release(self, held: Any) -> None:
        """Release a lock; the argument is the result of `acquire` or `take`."""
        await held.release()

    async def cycle_async(self, name: str) -> None:
        """Acquire and release the lock with this name, with as few stack frames as a user's code has."""
        lock = self.lock(name)
        if not await lock.acquire(blocking=False):
            raise Refused(name)
        await lock.release()

    async def run_tasks_async(self, order: Order) -> Answer:
        names = order.start()
        line = asyncio.Barrier(order.width + 1)

        async def work(name: str) -> list[int]:
            await line.wait()
            return await timed_async(self.cycle_async, order, name)

        tasks = [asyncio.create_task(work(name)) for name in names]
        # After this, all tasks wait at the barrier.
        await asyncio.sleep(0)
        order.begin()
        await line.wait()
        return order.summary(await asyncio.gather(*tasks))

    run_cycle_async = run_rested_async = run_tasks_async

    async def run_hot_async(self, order: Order) -> Answer:
        name, callers = order.contest()
        inside = HOT[order.mode]

        async def compete(caller: Caller) -> None:
            await asyncio.sleep(order.until_start())
            while caller.running:
                caller.waiting = True
                held = await self.take(name)
                caller.enter()
                if inside or caller.looks_round():
                    await asyncio.sleep(inside)
                caller.leave()
                await self.release(held)
                while order.mode == "relay" and caller.was_last():
                    await asyncio.sleep(NAP)

        tasks = [asyncio.create_task(compete(caller)) for caller in callers]

        # With the fixed pauses of some peers, it takes seconds until each caller has had its turn.
        def dismiss() -> None:
            for task, caller in zip(tasks, callers, strict=True):
                caller.running = False
                if caller.waiting:
                    task.cancel()

        asyncio.get_running_loop().call_later((order.end_ns - time.perf_counter_ns()) / 1e9, dismiss)
        for failure in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failure, Exception):
                raise failure
        return order.hot_answer(callers)

    run_hold_async = run_relay_async = run_hot_async

    async def run_batch_async(self, order: Order) -> Answer:
        async def cycle(name: str) -> None:
            await self.release_many(await self.acquire_many([f"{name}:{i}" for i in range(order.width)]))

        await cycle("first")
        names = order.start()
        return order.summary([await timed_async(cycle, order, names[0])], order.width)

    async def run_memory_async(self, order: Order) -> Answer:
        first, second = order.holds()
        held = await self._hold(first)
        before = resident_bytes()
        held += await self._hold(second)
        return {"mode": order.mode, "bytes_per_lock": (resident_bytes() - before) / len(second)}

    async def _hold(self, names: list[str]) -> list[Any]:
        """Acquire all these locks, TOGETHER at a time."""
        held = []
        for begin in range(0, len(names), TOGETHER):
            held += await asyncio.gather(*(self.acquire(name) for name in names[begin : begin + TOGETHER]))
        return held

    async def close(self) -> None:
        """Close the client, if it needs that."""


def rate(spinner: Spinner, before: int, order: Order) -> float:
    """Return the spins per second since the order began."""
    return (spinner.spins - before) / ((time.perf_counter_ns() - order.started_ns) / 1e9)


def resident_bytes() -> int:
    """Return the bytes of RAM that this process uses, after a garbage collection."""
    gc.collect()
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        raise Absent("this system has no /proc/self/statm with the memory of a process") from None


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes event loops: "asyncio", or the `new_event_loop` of the named module."""
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        new_loop: Callable[[], asyncio.AbstractEventLoop] = import_module(name).new_event_loop
    except ImportError as error:
        raise Absent(f"{name} cannot be imported: {error}") from error
    return new_loop
