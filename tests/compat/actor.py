"""One process that uses one lock client, the original or its drop-in, and obeys commands line by line.

``python actor.py WHOSE CLIENT NAME URL...``: reads "try", "acquire", "release" or "locked" from its input. It answers
each with a line: the returned value, or the name of the exception.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

# Long enough that no lock expires while a test looks at it.
TTL = 60


def module_of(whose: str, original: str, drop_in: str) -> Any:
    return importlib.import_module(original if whose == "theirs" else f"redlatch.compat.{drop_in}")


def calls_of(lock: Any) -> dict[str, Callable[[], Any]]:
    return {
        "try": lambda: lock.acquire(blocking=False),
        "acquire": lock.acquire,
        "release": lock.release,
        "locked": lock.locked,
    }


def redis_py(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    lock = module_of(whose, "redis.lock", "redis_py").Lock(redis.Redis.from_url(urls[0]), name, timeout=TTL)
    return calls_of(lock)


def redis_py_async(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    module = module_of(whose, "redis.asyncio.lock", "redis_py")
    make = module.Lock if whose == "theirs" else module.AsyncLock
    lock = make(redis.asyncio.Redis.from_url(urls[0]), name, timeout=TTL)
    return calls_of(lock)


def redlock(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    module = module_of(whose, "redlock", "redlock")
    once, patient = module.Redlock(urls, retry_count=1, retry_delay=0.3), module.Redlock(urls, retry_count=600)
    held: list[Any] = []

    def lock_by(manager: Any) -> bool:
        found = manager.lock(name, TTL * 1000)
        if found:
            held.append(found)
        return bool(found)

    return {
        "try": lambda: lock_by(once),
        "acquire": lambda: lock_by(patient),
        "release": lambda: patient.unlock(held.pop() if held else module.Lock(0, name, b"somebody else's")),
        "locked": lambda: bool(redis.Redis.from_url(urls[0]).exists(name)),
    }


def pottery(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    masters = [redis.Redis.from_url(url) for url in urls]
    lock = module_of(whose, "pottery", "pottery").Redlock(key=name, masters=masters, auto_release_time=TTL)
    return calls_of(lock) | {"locked": lambda: bool(lock.locked())}


def pottery_async(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    masters = [redis.asyncio.Redis.from_url(url) for url in urls]
    lock = module_of(whose, "pottery", "pottery").AIORedlock(key=name, masters=masters, auto_release_time=TTL)
    return calls_of(lock)


def redis_lock(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    lock = module_of(whose, "redis_lock", "redis_lock").Lock(redis.Redis.from_url(urls[0]), name, expire=TTL)
    return calls_of(lock)


def aioredlock(whose: str, name: str, urls: list[str]) -> dict[str, Callable[[], Any]]:
    module = module_of(whose, "aioredlock", "aioredlock")
    once, patient = module.Aioredlock(urls, retry_count=1), module.Aioredlock(urls, retry_count=600)
    held: list[Any] = []

    async def lock_by(manager: Any) -> bool:
        held.append(await manager.lock(name, TTL))
        return True

    async def release() -> None:
        await patient.unlock(held.pop() if held else module.Lock(patient, name, "somebody else's", TTL, True))

    return {
        "try": lambda: lock_by(once),
        "acquire": lambda: lock_by(patient),
        "release": release,
        "locked": lambda: patient.is_locked(name),
    }


CLIENTS = {
    each.__name__: each for each in (redis_py, redis_py_async, redlock, pottery, pottery_async, redis_lock, aioredlock)
}


def main() -> None:
    whose, client, name, *urls = sys.argv[1:]
    calls = CLIENTS[client](whose, name, urls)
    with asyncio.Runner() as runner:

        async def call(what: str) -> Any:
            result = calls[what]()
            return await result if asyncio.iscoroutine(result) else result

        print("ready", flush=True)
        for line in sys.stdin:
            try:
                answer = repr(runner.run(call(line.strip())))
            except Exception as error:
                answer = type(error).__name__
            print(answer, flush=True)


if __name__ == "__main__":
    main()
