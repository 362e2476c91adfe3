"""A process that uses locks and writes one line of JSON for each of its grants.

Its arguments: its name, the masters, the lock names, the ttl, and "threads" or "asyncio". It ends when its standard
input ends. Now and then it writes its memory and its number of descriptors.
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
from pathlib import Path
from typing import Any

from redlatch import AsyncClient, Client, Guard, LockError
from redlatch.wire.net import now_ns

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


class Use:
    """One use of a lock: its kind, its name and its duration."""

    def __init__(self, client: Any, chance: random.Random, names: list[str], ttl: float) -> None:
        self.kind = chance.choice(("plain", "fence", "fence", "fair"))
        self.name = f"{self.kind}-{chance.choice(names)}"
        long = chance.random() < 0.02
        self.rest = chance.choice((0.0, 0.001, 0.01)) if not long else ttl * chance.choice((0.5, 1.2))
        self.pause = chance.choice((0.0, 0.002, 0.02))
        renews = long and chance.random() < 0.5
        self.lock = client.lock(
            self.name, fence=self.kind == "fence", fair=self.kind == "fair", auto_renew=renews, on_lost=lambda *_: None
        )
        self.asked = now_ns()
        self.start = 0

    def begin(self) -> None:
        """Record that the lock was acquired."""
        self.start = now_ns()
        self.fence = self.lock.fence or 0

    def end(self, who: str) -> None:
        """Write the end of the grant: now, or the deadline if that is earlier."""
        end = min(now_ns(), self.lock.deadline_ns)
        line = {"who": who, "name": self.name, "kind": self.kind, "fence": self.fence, "asked": self.asked}
        say(line | {"start": self.start, "end": end})


def work(client: Client, who: str, names: list[str], ttl: float) -> None:
    """Use locks in a thread until the process ends."""
    chance = random.Random()
    while not over.is_set():
        use = Use(client, chance, names, ttl)
        try:
            if use.lock.acquire(timeout=2.0):
                use.begin()
                time.sleep(use.rest)
                use.end(who)
                use.lock.release()
        except LockError:
            time.sleep(0.05)
        time.sleep(use.pause)


async def work_soon(client: AsyncClient, who: str, names: list[str], ttl: float) -> None:
    """Use locks in a task until the process ends."""
    chance = random.Random()
    while not over.is_set():
        use = Use(client, chance, names, ttl)
        try:
            # Some tasks are cancelled at any step.
            async with asyncio.timeout(chance.choice((3.0, 3.0, 0.01))):
                if await use.lock.acquire(timeout=2.0):
                    use.begin()
                    try:
                        await asyncio.sleep(use.rest)
                    finally:
                        use.end(who)
                    await use.lock.release()
        except TimeoutError:
            if use.lock.token is not None:
                await release(use.lock)
        except LockError:
            await asyncio.sleep(0.05)
        await asyncio.sleep(use.pause)


async def release(lock: Any) -> None:
    """Release a lock, if it is held."""
    try:
        await lock.release()
    except LockError:
        pass


async def work_all(who: str, urls: list[str], names: list[str], ttl: float) -> None:
    """Use locks in some tasks until the process ends."""
    async with AsyncClient(urls, ttl=ttl, guard=Guard(max_ttl=ttl)) as client:
        await asyncio.gather(*(work_soon(client, f"{who}-{number}", names, ttl) for number in range(WIDTH)))


def main() -> None:
    """Use locks until standard input ends."""
    who, urls, names, ttl, face = sys.argv[1:]

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    for target in (wait_for_the_end, report):
        threading.Thread(target=target, daemon=True).start()
    masters, chosen, seconds = urls.split(","), names.split(","), float(ttl)
    if face == "asyncio":
        asyncio.run(work_all(who, masters, chosen, seconds))
        return
    with Client(masters, ttl=seconds, guard=Guard(max_ttl=seconds)) as client:
        each = [threading.Thread(target=work, args=(client, f"{who}-{n}", chosen, seconds)) for n in range(WIDTH)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()


if __name__ == "__main__":
    main()
