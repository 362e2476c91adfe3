"""The other lock clients, one class each, used as their own documentation shows and set up to do their best.

Packages are imported by name: none of them is needed, and one that is not there is absent from the race with the
reason. Each that has a drop-in races with that under its own interface, too. A pool is as large as the race is wide,
because a peer that runs out of connections raises.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redlatch.bench.contender import TTL, TTL_MS, AsyncContender, Contender, Refused, contender

POOL = 64  # connections per master; more are slower for every peer that was tried


@contender("redlock-py")
@contender("redlock-py-drop-in", module="redlatch.compat.redlock")
class RedlockPy(Contender):
    """redlock-py: asks one master after the other and waits for all of them."""

    module, package = "redlock", "redlock-py"

    def open(self, urls: list[str]) -> None:
        self.client = import_module(self.module).Redlock(urls)

    def acquire(self, name: str) -> Any:
        lock = self.client.lock(name, TTL_MS)
        if not lock:
            raise Refused(name)
        return lock

    def take(self, name: str) -> Any:
        while not (lock := self.client.lock(name, TTL_MS)):
            pass  # it has tried three times, and slept after each
        return lock

    def release(self, held: Any) -> None:
        self.client.unlock(held)


@contender("pottery")
@contender("pottery-drop-in", module="redlatch.compat.pottery")
class Pottery(Contender):
    """pottery.Redlock: asks all masters at once, with a new pool of threads for every call."""

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
    """pottery.AIORedlock: asks all masters at once and waits for all of them."""

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
    """redis-py's Lock, on one master; a waiter looks again after `pause` seconds, by default 0.1."""

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
    """redis.asyncio's Lock, on one master; a waiter looks again after `pause` seconds, by default 0.1."""

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
    """Return a class by its module and its name."""
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
    """python-redis-lock, on one master: looks for its own lock first, and wakes waiters by a list."""

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
    """aioredlock: asks all masters at once and waits for all of them; it needs aioredis 1, whose Pythons are over."""

    module, package, limit = "aioredlock", "aioredlock", "; it needs Python 3.11 or less"

    async def open(self, urls: list[str]) -> None:
        self.client = import_module(self.module).Aioredlock(urls)

    async def acquire(self, name: str) -> Any:
        return await self.client.lock(name, lock_timeout=TTL)  # raises when it is refused

    async def take(self, name: str) -> Any:
        busy = import_module(self.module).LockAcquiringError
        while True:
            try:
                return await self.acquire(name)
            except busy:
                pass  # it has tried three times, and slept after each

    async def release(self, held: Any) -> None:
        await self.client.unlock(held)

    async def cycle_async(self, name: str) -> None:
        await self.release(await self.acquire(name))

    async def close(self) -> None:
        await self.client.destroy()
