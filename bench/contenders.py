"""Run one contender as a process of its own, told on stdin how much to do.

    python bench/contenders.py NAME URL...

A line of stdin is "MODE AMOUNT [WIDTH]", as it is for bench/floor: MODE is "cycle" (one caller), "threads" or "tasks"
(WIDTH callers at once), AMOUNT is a number of cycles ("2000") or of seconds ("0.5s"). The answer is one line of JSON.
A cycle that does not get its lock ends the process: a lock refused in microseconds must not improve anybody's figure.

To add a peer, write a class with `open` and `cycle`, and register it by name:

    @contender("peer")      # and keyword arguments, which become attributes of the object
    class Peer(Contender):
        def open(self, urls): ...
        def cycle(self, name): ...
"""

import asyncio
import json
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns

REGISTRY = {}
TTL = 10.0
TTL_MS = 10_000


class Refused(Exception):
    """A lock that nobody else holds was not granted."""


def contender(name, **attributes):
    """Register a class under the name that `race.py` asks for, with what is special about its objects there."""

    def register(cls):
        REGISTRY[name] = cls, attributes
        return cls

    return register


class Contender:
    """A lock client whose cycle, one acquire and one release, returns when it is over."""

    def open(self, urls):
        """Connect to the masters, kept open for all rounds."""
        raise NotImplementedError

    def cycle(self, name):
        """Acquire and release the lock called name, or raise Refused."""
        raise NotImplementedError

    def close(self):
        """Close what open opened, where the client asks for it."""

    def serve(self, urls, lines, answer):
        """Obey the lines until they end."""
        self.open(urls)
        for line in lines:
            answer(self.run(Order(line)))
        self.close()

    def run(self, order):
        """Run one order with as many threads as its width says."""
        if order.mode not in ("cycle", "threads"):
            raise SystemExit(f"no mode {order.mode} here")
        names = order.start()
        if order.width == 1:
            return order.summary([timed(self.cycle, order, names[0])])
        return order.summary(self._by_threads(order, names))

    def _by_threads(self, order, names):
        line = threading.Barrier(order.width, action=order.begin)

        def work(name):
            line.wait()
            return timed(self.cycle, order, name)

        with ThreadPoolExecutor(order.width) as pool:
            return list(pool.map(work, names))


class AsyncContender(Contender):
    """A lock client whose open, cycle and close are coroutines; its loop keeps running between rounds."""

    loop = "asyncio"

    def serve(self, urls, lines, answer):
        with asyncio.Runner(loop_factory=loop_factory(self.loop)) as runner:
            runner.run(self._serve(urls, lines, answer))

    async def _serve(self, urls, lines, answer):
        await self.open(urls)
        while line := await asyncio.to_thread(lines.readline):
            answer(await self._run(Order(line)))
        await self.close()

    async def _run(self, order):
        if order.mode not in ("cycle", "tasks"):
            raise SystemExit(f"no mode {order.mode} here")
        names = order.start()
        return order.summary(await asyncio.gather(*(timed_async(self.cycle, order, name) for name in names)))


class Order:
    """One line of stdin, and the clock that its run is measured with.

    Args:
        line: "MODE AMOUNT [WIDTH]".
    """

    count = 0

    def __init__(self, line):
        mode, amount, *width = line.split()
        self.mode = mode
        self.width = int(width[0]) if width else 1
        timed_run = amount.endswith("s")
        self.seconds = float(amount[:-1]) if timed_run else None
        self.cycles_each = None if timed_run else max(1, int(amount) // self.width)

    def begin(self):
        """Start the clock: now, and again when all threads stand at the line."""
        self.started_ns = perf_counter_ns()
        self.end_ns = self.started_ns + int(self.seconds * 1e9) if self.seconds else None

    def start(self):
        """Start all counters and return the prefix of each caller's names, used by nobody before."""
        Order.count += 1
        self.cpu_before = cpu_seconds()
        self.begin()
        return [f"bench:{os.getpid()}:{Order.count}:{i}:" for i in range(self.width)]

    def summary(self, results):
        """Return the figures of a run from each caller's latencies in nanoseconds."""
        seconds = (perf_counter_ns() - self.started_ns) / 1e9
        cpu = cpu_seconds() - self.cpu_before
        latencies = sorted(ns for result in results for ns in result)
        count = len(latencies)
        return {
            "mode": self.mode,
            "width": self.width,
            "cycles": count,
            "seconds": seconds,
            "p50_us": latencies[count // 2] / 1e3,
            "p99_us": latencies[count * 99 // 100] / 1e3,
            "cycles_per_s": count / seconds,
            "cpu_s": cpu,
        }


def cpu_seconds():
    """Return the CPU time of this process so far, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(cycle, order, prefix):
    """Call cycle with a new name each time until the order is done; return the nanoseconds of each."""
    latencies = []
    number = 0
    while True:
        name = f"{prefix}{number}"
        before = perf_counter_ns()
        cycle(name)
        after = perf_counter_ns()
        latencies.append(after - before)
        number += 1
        if (after >= order.end_ns) if order.end_ns else (number == order.cycles_each):
            return latencies


async def timed_async(cycle, order, prefix):
    """Await cycle with a new name each time until the order is done; return the nanoseconds of each."""
    latencies = []
    number = 0
    while True:
        name = f"{prefix}{number}"
        before = perf_counter_ns()
        await cycle(name)
        after = perf_counter_ns()
        latencies.append(after - before)
        number += 1
        if (after >= order.end_ns) if order.end_ns else (number == order.cycles_each):
            return latencies


@contender("redlatch-c", implementation="c")
@contender("redlatch-python", implementation="python")
class Redlatch(Contender):
    """redlatch.Client: a new Lock per cycle, as a service would write it."""

    def open(self, urls):
        self.client = import_redlatch(self.implementation).Client(urls)

    def cycle(self, name):
        lock = self.client.lock(name, ttl=TTL)
        if not lock.acquire(blocking=False):
            raise Refused(name)
        lock.release()

    def close(self):
        self.client.close()


@contender("redlatch-aio-c", implementation="c")
@contender("redlatch-aio-python", implementation="python")
@contender("redlatch-uvloop-c", implementation="c", loop="uvloop")
class AsyncRedlatch(AsyncContender):
    """redlatch.AsyncClient, the same."""

    async def open(self, urls):
        self.client = import_redlatch(self.implementation).AsyncClient(urls)

    async def cycle(self, name):
        lock = self.client.lock(name, ttl=TTL)
        if not await lock.acquire(blocking=False):
            raise Refused(name)
        await lock.release()

    async def close(self):
        await self.client.close()


def import_redlatch(implementation):
    """Import redlatch with the implementation asked for, and make sure that it is the one that runs."""
    os.environ["REDLATCH_IMPL"] = implementation
    import redlatch

    if implementation != redlatch.IMPL:
        raise SystemExit(f"asked for REDLATCH_IMPL={implementation}, got {redlatch.IMPL}")
    return redlatch


def loop_factory(name):
    """Return what makes event loops of the kind that is named."""
    if name == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


@contender("redlock-py")
class RedlockPy(Contender):
    """redlock-py 1.0.8: asks one master after the other and waits for all of them."""

    def open(self, urls):
        from redlock import Redlock

        self.manager = Redlock(urls)

    def cycle(self, name):
        lock = self.manager.lock(name, TTL_MS)
        if not lock:
            raise Refused(name)
        self.manager.unlock(lock)


def main(arguments):
    """Serve the contender named first on the masters named after it."""
    name, *urls = arguments
    cls, attributes = REGISTRY[name]
    peer = cls()
    for attribute, value in attributes.items():
        setattr(peer, attribute, value)
    peer.serve(urls, sys.stdin, lambda answer: print(json.dumps(answer), flush=True))


if __name__ == "__main__":
    main(sys.argv[1:])
