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
    calls: redlatch.RateLimit = client.rate_limit("name", 3, 1.0)
    many: redlatch.MultiLock = client.multi_lock(["one", "two"])
    filled: redlatch.Condition = lock.condition("filled")
    ready: redlatch.Latch = client.latch("name", 3)
    won: bool = lock.acquire(timeout=1.0)
    called: bool = filled.wait(timeout=1.0)
    missing: int = ready.remaining()
    print(called, missing)
    found: list[redlatch.Lock | None] = client.acquire_many(["one", b"two"])
    held: list[bool] = client.release_many(found)
    print(nested, shared.read(), place, calls, many, won, held)


async def accepted_with_await() -> None:
    async with redlatch.AsyncClient("redis://10.0.0.1") as client:
        lock: redlatch.AsyncLock = client.lock("name")
        nested: redlatch.AsyncRLock = client.rlock("name")
        place: redlatch.AsyncSemaphore = client.semaphore("name", 3)
        calls: redlatch.AsyncRateLimit = client.rate_limit("name", 3, 1.0)
        many: redlatch.AsyncMultiLock = client.multi_lock(["one", "two"])
        shared: redlatch.RWLock[redlatch.AsyncLock] = client.rw_lock("name")
        filled: redlatch.AsyncCondition = lock.condition("filled")
        ready: redlatch.AsyncLatch = client.latch("name", 3)
        won: bool = await lock.acquire(timeout=1.0)
        called: bool = await filled.wait(timeout=1.0)
        missing: int = await ready.remaining()
        print(called, missing)
        found: list[redlatch.AsyncLock | None] = await client.acquire_many(["one", b"two"])
        held: list[bool] = await client.release_many(found)
        print(nested, shared.read(), place, calls, many, won, held)


def refused_masters() -> None:
    redlatch.Client(5)  # type: ignore[arg-type]
    redlatch.Client(["redis://10.0.0.1", 5])  # type: ignore[list-item]
    redlatch.Client()  # type: ignore[call-arg]
    redlatch.AsyncClient(5)  # type: ignore[arg-type]
    redlatch.AsyncClient(None)  # type: ignore[arg-type]
    redlatch.AsyncClient(["redis://10.0.0.1", b"redis://10.0.0.2"])  # type: ignore[list-item]


def refused_options(url: str) -> None:
    redlatch.Client(url, wakeups="push")  # type: ignore[arg-type]
    redlatch.AsyncClient(url, wakeups="push")  # type: ignore[arg-type]
    redlatch.AsyncClient(url, wakeups=None)  # type: ignore[arg-type]
    redlatch.AsyncClient(url, gil_patience=0)  # type: ignore[call-arg]
    redlatch.Client(url, 10.0)  # type: ignore[call-arg]
    redlatch.Client(url, guard=True)  # type: ignore[arg-type]
    redlatch.Client(url, retry=3)  # type: ignore[arg-type]


def refused(client: redlatch.Client) -> None:
    client.lock("name", ttl="5")  # type: ignore[arg-type]
    client.lock(5)  # type: ignore[arg-type]
    client.lock("name", cancel_on_loss=True)  # type: ignore[call-arg]
    client.rlock("name", blocking=False)  # type: ignore[call-arg]
    client.semaphore("name", 3, fence=True)  # type: ignore[call-arg]
    client.semaphore("name", "3")  # type: ignore[arg-type]
    client.rate_limit("name", 3)  # type: ignore[call-arg]
    client.multi_lock(5)  # type: ignore[arg-type]
    client.release_many(["name"])  # type: ignore[list-item]
    print(redlatch.Lok)  # type: ignore[attr-defined]


async def refused_with_await(client: redlatch.AsyncClient, lock: redlatch.AsyncLock) -> None:
    lock.acquire()  # type: ignore[unused-coroutine]
    client.close()  # type: ignore[unused-coroutine]
    won: bool = lock.acquire()  # type: ignore[assignment]
    with lock:  # type: ignore[attr-defined]
        print(won)
    client.release_many([redlatch.Client("redis://10.0.0.1").lock("name")])  # type: ignore[list-item, unused-coroutine]
