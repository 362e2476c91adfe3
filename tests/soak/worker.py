"""A process that uses locks and writes one line of JSON for each of its grants.

Its arguments: its name, "threads" or "asyncio", and its `Options` in JSON. It ends when its standard input ends. Now
and then it writes its memory and its number of descriptors.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redlatch import AsyncClient, Client, Guard, LockError
from redlatch.wire.engine.net import now_ns

# The number of tasks or threads.
WIDTH = 4
REPORT_SECONDS = 5.0

over = threading.Event()
writing = threading.Lock()


def say(line: dict[str, Any]) -> None:
    """Write a line at once."""
    with writing:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def report() -> None:
    """Write the size of this process every few seconds, until it ends."""
    while not over.wait(REPORT_SECONDS):
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        say({"rss": pages * os.sysconf("SC_PAGE_SIZE"), "fds": len(os.listdir("/proc/self/fd"))})


@dataclass
class Options:
    """What a process is to do.

    Attributes:
        masters, next: the masters, and those that may replace them.
        names: of the locks. Each kind of lock has them all.
        ttl, max_ttl: of the client and of its guard, in seconds.
        timeout: of each attempt, in seconds.
        guarded: whether the client has a guard.
        long: the share of holders that keep their lock for one of `stays`.
        stays: for how many ttls they keep it. Half of them renew it.
        confirms: whether each holder asks the masters at the end whether they still have its lock.
        keeps: how many locks are held and renewed all the time, one by each of so many processes; all others want them.
    """

    masters: list[str]
    names: list[str]
    ttl: float
    max_ttl: float
    next: list[str] | None = None
    timeout: float = 2.0
    guarded: bool = True
    long: float = 0.02
    stays: Sequence[float] = (0.5, 1.2)
    confirms: bool = False
    keeps: int = 0

    def of_client(self) -> dict[str, Any]:
        """Return the arguments of a client."""
        guard = Guard(max_ttl=self.max_ttl) if self.guarded else None
        return {"masters": self.masters, "ttl": self.ttl, "guard": guard, "next": self.next}


class Use:
    """One use of a lock: its kind, its name and its duration.

    Args:
        asked: since when its thread or task has waited for a lock, in ns.
    """

    def __init__(self, client: Any, who: str, chance: random.Random, options: Options, asked: int) -> None:
        self.who = who
        self.options = options
        self.kind = chance.choice(("plain", "fence", "fence", "fair"))
        self.name = f"{self.kind}-{chance.choice(options.names)}"
        long = chance.random() < options.long
        self.rest = chance.choice((0.0, 0.001, 0.01)) if not long else options.ttl * chance.choice(options.stays)
        self.pause = chance.choice((0.0, 0.002, 0.02))
        renews = long and chance.random() < 0.5
        self.lock = client.lock(
            self.name, fence=self.kind == "fence", fair=self.kind == "fair", auto_renew=renews, on_lost=self.lose
        )
        self.asked = asked
        self.start = self.told = 0
        self.confirmed = not options.confirms

    def begin(self) -> None:
        """Record that the lock was acquired."""
        self.start = now_ns()
        self.fence = self.lock.fence or 0

    def lose(self, *_: object) -> None:
        """Record that the client has reported a loss."""
        self.told = now_ns()

    def end(self) -> None:
        """Record the end of the grant: now, or the deadline if that is earlier.

        With `confirms`, a holder may lose its lock earlier: then the report of the loss is the end.
        """
        self.until = min(now_ns(), self.lock.deadline_ns)
        if self.options.confirms and self.told:
            self.until = min(self.until, self.told)

    def write(self) -> None:
        """Write the grant."""
        line = {"who": self.who, "name": self.name, "kind": self.kind, "fence": self.fence, "asked": self.asked}
        say(line | {"start": self.start, "end": self.until, "confirmed": self.confirmed})


def work(client: Client, who: str, options: Options) -> None:
    """Use locks in a thread until the process ends."""
    chance, asked = random.Random(), now_ns()
    while not over.is_set():
        use = Use(client, who, chance, options, asked)
        try:
            if use.lock.acquire(timeout=options.timeout):
                use.begin()
                over.wait(use.rest)
                use.end()
                try:
                    if options.confirms:
                        use.lock.extend()
                        use.confirmed = True
                finally:
                    use.write()
                use.lock.release()
        except LockError:
            time.sleep(0.05)
        time.sleep(use.pause)
        if use.start:
            asked = now_ns()


async def work_soon(client: AsyncClient, who: str, options: Options) -> None:
    """Use locks in a task until the process ends."""
    chance, asked = random.Random(), now_ns()
    while not over.is_set():
        use = Use(client, who, chance, options, asked)
        try:
            # Some tasks are cancelled at any step.
            async with asyncio.timeout(chance.choice((options.timeout + 1.0, options.timeout + 1.0, 0.01))):
                if await use.lock.acquire(timeout=options.timeout):
                    use.begin()
                    await hold_soon(use)
                    await use.lock.release()
        except TimeoutError:
            if use.lock.token is not None:
                await release(use.lock)
        except LockError:
            await asyncio.sleep(0.05)
        await asyncio.sleep(use.pause)
        if use.start:
            asked = now_ns()


async def hold_soon(use: Use) -> None:
    """Hold a lock for a while, and write the grant."""
    try:
        try:
            await rest_soon(use.rest)
        finally:
            use.end()
        if use.options.confirms:
            await use.lock.extend()
            use.confirmed = True
    finally:
        use.write()


async def rest_soon(seconds: float) -> None:
    """Sleep, but not beyond the end of the process."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not over.is_set():
        await asyncio.sleep(min(left, 0.1))


async def release(lock: Any) -> None:
    """Release a lock, if it is held."""
    try:
        await lock.release()
    except LockError:
        pass


def keep(who: str, options: Options) -> None:
    """Hold one lock until the process ends, and report its loss; meanwhile ask for those of the others."""
    with Client(**options.of_client()) as client:
        mine = f"kept-{who}"
        lock = client.lock(mine, auto_renew=True, on_lost=lambda lock, why: say({"lost": lock.name, "why": why}))
        lock.acquire()
        others = [f"kept-w{number + 1}" for number in range(options.keeps)]
        others.remove(mine)
        while not over.is_set():
            for name in others:
                try:
                    # A process that begins or ends does not hold its lock.
                    with client.lock(name, timeout=options.ttl):
                        pass
                except LockError:
                    over.wait(0.01)
        lock.release()


async def work_all(who: str, options: Options) -> None:
    """Use locks in some tasks until the process ends."""
    async with AsyncClient(**options.of_client()) as client:
        await asyncio.gather(*(work_soon(client, f"{who}-{number}", options) for number in range(WIDTH)))


def main() -> None:
    """Use locks until standard input ends."""
    who, face, given = sys.argv[1:]
    options = Options(**json.loads(given))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    for target in (wait_for_the_end, report):
        threading.Thread(target=target, daemon=True).start()
    if options.keeps:
        threading.Thread(target=keep, args=(who, options)).start()
    if face == "asyncio":
        asyncio.run(work_all(who, options))
        return
    with Client(**options.of_client()) as client:
        each = [threading.Thread(target=work, args=(client, f"{who}-{n}", options)) for n in range(WIDTH)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()


if __name__ == "__main__":
    main()
