"""A real process that uses locks and writes one line of JSON for each of its grants.

Its arguments: its name, the masters, the lock names, seconds, ttl, "threads" or "asyncio", and the kind of lock.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from typing import Any

from redlatch import AsyncClient, Client, LockError
from redlatch.wire.engine.net import now_ns

# The number of tasks or threads in one process.
WIDTH = 4
lines: list[dict[str, Any]] = []


def grant(who: str, lock: Any, kind: str, asked: int) -> dict[str, Any]:
    """Record that a lock was acquired."""
    fence = lock.fence if kind == "fence" else 0
    return {"who": who, "name": lock.name, "kind": kind, "fence": fence, "asked": asked, "start": now_ns()}


def done(line: dict[str, Any], lock: Any) -> None:
    """Record the end of the grant: now, or the deadline if that is earlier."""
    lines.append(line | {"end": min(now_ns(), lock.deadline_ns)})


def main() -> None:
    """Use locks for the given seconds."""
    who, urls, names, seconds, ttl, face, kind = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    chance = random.Random(who)
    options = {"fence": kind == "fence", "fair": kind == "fair"}

    def choose(client: Any) -> tuple[Any, float]:
        rest = chance.choice((0.0, 0.0005, 0.002, float(ttl) * 1.2 if chance.random() < 0.02 else 0.0))
        return client.lock(chance.choice(names.split(",")), ttl=float(ttl), **options), rest

    def use(client: Client, me: str) -> None:
        while time.monotonic() < until:
            lock, rest = choose(client)
            asked = now_ns()
            try:
                if lock.acquire(timeout=1.0):
                    line = grant(me, lock, kind, asked)
                    time.sleep(rest)
                    done(line, lock)
                    lock.release()
            except LockError:
                time.sleep(0.001)

    async def use_soon(client: AsyncClient, me: str) -> None:
        while time.monotonic() < until:
            lock, rest = choose(client)
            asked = now_ns()
            try:
                if await lock.acquire(timeout=1.0):
                    line = grant(me, lock, kind, asked)
                    await asyncio.sleep(rest)
                    done(line, lock)
                    await lock.release()
            except LockError:
                await asyncio.sleep(0.001)

    async def all_soon() -> None:
        async with AsyncClient(urls.split(",")) as client:
            await asyncio.gather(*(use_soon(client, f"{who}-{number}") for number in range(WIDTH)))

    if face == "asyncio":
        asyncio.run(all_soon())
        return
    with Client(urls.split(",")) as client:
        threads = [threading.Thread(target=use, args=(client, f"{who}-{number}")) for number in range(WIDTH)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
    for line in lines:
        print(json.dumps(line))
