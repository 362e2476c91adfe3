"""redlatch as a contender: each build, for threads, for asyncio and on uvloop; a new lock per cycle, as services do."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from redlatch.bench.contender import TTL, Absent, AsyncContender, Contender, Refused, contender


def import_redlatch(implementation: str) -> ModuleType:
    """Import redlatch with the build asked for.

    Raises:
        Absent: that build is not there.
    """
    os.environ["REDLATCH_IMPL"] = implementation  # read at the first use of what is in it
    import redlatch

    try:
        found = redlatch.IMPL
    except ImportError as error:
        raise Absent(str(error)) from error
    if implementation != found:
        raise SystemExit(f"asked for REDLATCH_IMPL={implementation}, got {found}")
    return redlatch


@contender("redlatch-c", implementation="c")
@contender("redlatch-python", implementation="python")
class Redlatch(Contender):
    """redlatch.Client."""

    implementation = ""
    package = "redlatch"

    def open(self, urls: list[str]) -> None:
        self.client = import_redlatch(self.implementation).Client(urls)

    def lock(self, name: str) -> Any:
        return self.client.lock(name, ttl=TTL)

    def acquire_many(self, names: list[str]) -> Any:
        locks = self.client.acquire_many(names, TTL)
        if None in locks:
            raise Refused(names[locks.index(None)])
        return locks

    def release_many(self, held: Any) -> None:
        if not all(self.client.release_many(held)):
            raise Refused("a lock was lost before its release")

    def close(self) -> None:
        self.client.close()


@contender("redlatch-nowait-c", implementation="c")
@contender("redlatch-nowait-python", implementation="python")
class RedlatchNoWait(Redlatch):
    """redlatch.Client, not waiting for the answer to a release."""

    modes = ("cycle", "threads")

    def release(self, held: Any) -> None:
        held.release(wait=False)


@contender("redlatch-aio-c", implementation="c")
@contender("redlatch-aio-python", implementation="python")
@contender("redlatch-uvloop-c", implementation="c", loop="uvloop")
class AsyncRedlatch(AsyncContender):
    """redlatch.AsyncClient."""

    implementation = ""
    package = "redlatch"

    async def open(self, urls: list[str]) -> None:
        self.client = import_redlatch(self.implementation).AsyncClient(urls)

    def lock(self, name: str) -> Any:
        return self.client.lock(name, ttl=TTL)

    async def acquire_many(self, names: list[str]) -> Any:
        locks = await self.client.acquire_many(names, TTL)
        if None in locks:
            raise Refused(names[locks.index(None)])
        return locks

    async def release_many(self, held: Any) -> None:
        if not all(await self.client.release_many(held)):
            raise Refused("a lock was lost before its release")

    async def close(self) -> None:
        await self.client.close()
