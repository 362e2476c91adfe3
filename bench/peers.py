"""The other lock clients, one class each. Each is used as its own documentation shows, with its fastest settings.

The packages are optional and imported by name. A missing one is absent from the race, with the reason. A peer with a
drop-in also races with the drop-in, through the peer's own interface. A pool has as many connections as the race has
callers, because a peer raises when it runs out of connections.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.contender import TTL, TTL_MS, AsyncContender, Contender, Refused, contender

# The connections per master. With more connections, every peer that was tried was slower.
POOL = 64


@contender("redlock-py")
@contender("redlock-py-drop-in", module="redlatch.compat.redlock")
class RedlockPy(Contender):
    """redlock-py: it asks one master after the other and waits for all of them."""

    module, package = "redlock", "redlock-py"

    def open(self, urls: list[str]) -> None:
        self.client = import_module(self.module).Redlock(urls)

    def acquire(self, name: str) -> Any:
        lock = self.client.lock(name, TTL_MS)
        if not lock:
            raise Refused(name)
        return lock

    def take(self, name: str) -> Any:
        # The client has no endless wait: each call tries three times and sleeps after each.
        while not (lock := self.client.lock(name, TTL_MS)):
            pass
        return lock

    def release(self, held: Any) -> None:
        self.client.unlock(held)


@contender("pottery")
@contender("pottery-drop-in", module="redlatch.compat.pottery")
class Pottery(Contender):
    """pottery.Redlock: it asks all masters at once, with a new pool of threads for every call."""

    module, package = "pottery", "pottery"

    def open(self, urls: list[str]) -> None:
        self._class = import_module(self.module).Redlock
        redis = import_module("redis")
        self.client = {redis.Redis.from_url(url) for url in urls}

    def lock(self, name: str) -> Any:
        return self._class(key=name, masters=self.client, auto_release_time=TTL)


@contender("pottery-aio")
@contender("pottery-aio-drop-in", module="redlatch.compat.pottery")
class AsyncPottery(AsyncContender):
    """pottery.AIORedlock: it asks all masters at once and waits for all of them."""

    module, package = "pottery", "pottery"

    async def open(self, urls: list[str]) -> None:
        self._class = import_module(self.module).AIORedlock
        self.client = [pooled(url) for url in urls]

    def lock(self, name: str) -> Any:
        return self._class(key=name, masters=self.client, auto_release_time=TTL)

    async def close(self) -> None:
        for master in self.client:
            await master.aclose()


@contender("redis-py")
@contender("redis-py-drop-in", lock_class="redlatch.compat.redis_py:Lock")
@contender("redis-py-1ms", pause=0.001)
class RedisPy(Contender):
    """redis-py's Lock, on one master; a waiter polls every `pause` seconds, by default 0.1."""

    module, package = "redis", "redis"
    pause = 0.1
    lock_class = "redis.lock:Lock"

    def open(self, urls: list[str]) -> None:
        self.client = import_module("redis").Redis.from_url(urls[0])
        self._class = class_named(self.lock_class)

    def lock(self, name: str) -> Any:
        return self.client.lock(name, timeout=TTL, sleep=self.pause, lock_class=self._class)


@contender("redis-py-aio")
@contender("redis-py-aio-drop-in", lock_class="redlatch.compat.redis_py:AsyncLock")
@contender("redis-py-aio-1ms", pause=0.001)
class AsyncRedisPy(AsyncContender):
    """redis.asyncio's Lock, on one master; a waiter polls every `pause` seconds, by default 0.1."""

    module, package = "redis", "redis"
    pause = 0.1
    lock_class = "redis.asyncio.lock:Lock"

    async def open(self, urls: list[str]) -> None:
        self.client = pooled(urls[0])
        self._class = class_named(self.lock_class)

    def lock(self, name: str) -> Any:
        return self.client.lock(name, timeout=TTL, sleep=self.pause, lock_class=self._class)

    async def close(self) -> None:
        await self.client.aclose()


def class_named(place: str) -> Any:
    """Return the class named "MODULE:NAME"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def pooled(url: str) -> Any:
    """Return a redis.asyncio client whose callers wait for a connection when all are in use."""
    redis = import_module("redis.asyncio")
    pool = redis.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
    return redis.Redis(connection_pool=pool)


@contender("python-redis-lock")
@contender("python-redis-lock-drop-in", module="redlatch.compat.redis_lock")
class PythonRedisLock(Contender):
    """python-redis-lock, on one master: it looks for its own lock first, and wakes waiters through a list."""

    module, package = "redis_lock", "python-redis-lock"

    def open(self, urls: list[str]) -> None:
        self._class = import_module(self.module).Lock
        self.client = import_module("redis").Redis.from_url(urls[0])

    def lock(self, name: str) -> Any:
        return self._class(self.client, name, expire=int(TTL))


@contender("coredis")
class Coredis(AsyncContender):
    """coredis' lock, on one master."""

    module, package = "coredis", "coredis"

    async def open(self, urls: list[str]) -> None:
        self._class = import_module("coredis.patterns.lock").Lock
        self.client = import_module("coredis").Redis.from_url(urls[0])
        await self.client.__aenter__()

    async def acquire(self, name: str) -> Any:
        lock = self._class(self.client, name, timeout=TTL, blocking=False)
        if not await lock.acquire():
            raise Refused(name)
        return lock

    async def take(self, name: str) -> Any:
        lock = self._class(self.client, name, timeout=TTL)
        await lock.acquire()
        return lock

    async def cycle_async(self, name: str) -> None:
        await self.release(await self.acquire(name))

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)


@contender("aioredlock")
@contender("aioredlock-drop-in", module="redlatch.compat.aioredlock")
class Aioredlock(AsyncContender):
    """aioredlock: it asks all masters at once and waits for all of them; it needs aioredis 1 and an old Python."""

    module, package, limit = "aioredlock", "aioredlock", "; it needs Python 3.11 or less"

    async def open(self, urls: list[str]) -> None:
        self.client = import_module(self.module).Aioredlock(urls)

    async def acquire(self, name: str) -> Any:
        # The call raises if another holder has the lock.
        return await self.client.lock(name, lock_timeout=TTL)

    async def take(self, name: str) -> Any:
        busy = import_module(self.module).LockAcquiringError
        while True:
            try:
                return await self.acquire(name)
            except busy:
                # The call has tried three times, and slept after each.
                pass

    async def release(self, held: Any) -> None:
        await self.client.unlock(held)

    async def cycle_async(self, name: str) -> None:
        await self.release(await self.acquire(name))

    async def close(self) -> None:
        await self.client.destroy()
