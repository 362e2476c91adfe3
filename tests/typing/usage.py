"""What a type checker accepts of a user's code, and what it refuses. `make lint` checks this file; nothing runs it.

Each `type: ignore` names an error that must occur: mypy reports an ignore that is not needed.
"""

from __future__ import annotations

import redis
import redis.asyncio

import redlatch


def accepted() -> None:
    urls = ["redis://10.0.0.1", "redis://10.0.0.2"]
    client = redlatch.Client(urls, wakeups="poll")
    redlatch.Client("redis://10.0.0.1")
    redlatch.Client([redis.Redis(), "redis://10.0.0.2"])
    redlatch.AsyncClient((redis.asyncio.Redis(), "redis://10.0.0.2"))
    lock: redlatch.Lock = client.lock("name")
    nested: redlatch.RLock = client.rlock("name")
    shared: redlatch.RWLock[redlatch.Lock] = client.rw_lock("name")
    place: redlatch.Semaphore = client.semaphore("name", 3)
    many: redlatch.MultiLock = client.multi_lock(["one", "two"])
    won: bool = lock.acquire(timeout=1.0)
    print(nested, shared.read(), place, many, won)


async def accepted_with_await() -> None:
    async with redlatch.AsyncClient("redis://10.0.0.1") as client:
        lock: redlatch.AsyncLock = client.lock("name")
        nested: redlatch.AsyncRLock = client.rlock("name")
        place: redlatch.AsyncSemaphore = client.semaphore("name", 3)
        many: redlatch.AsyncMultiLock = client.multi_lock(["one", "two"])
        won: bool = await lock.acquire(timeout=1.0)
        print(nested, place, many, won)


def refused(client: redlatch.Client) -> None:
    redlatch.Client(5)  # type: ignore[arg-type]
    redlatch.Client(["redis://10.0.0.1", 5])  # type: ignore[list-item]
    redlatch.AsyncClient(None)  # type: ignore[arg-type]
    redlatch.Client("redis://10.0.0.1", wakeups="push")  # type: ignore[arg-type]
    client.lock("name", ttl="5")  # type: ignore[arg-type]
    client.semaphore("name", 3, fence=True)  # type: ignore[call-arg]
