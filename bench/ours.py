"""redlatch as a contender: each build, for threads, asyncio and uvloop. Each cycle makes a new lock, as services do."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any
from zlib import crc32

from bench.contender import TTL, Absent, AsyncContender, Contender, Refused, contender


def import_redlatch(implementation: str) -> ModuleType:
    """Import redlatch with the given build.

    Raises:
        Absent: the build does not exist here.
    """
    # redlatch reads the variable at the first use of one of its names.
    os.environ["REDLATCH_IMPL"] = implementation
    import redlatch

    try:
        found = redlatch.IMPL
    except ImportError as error:
        raise Absent(str(error)) from error
    if implementation != found:
        raise SystemExit(f"asked for REDLATCH_IMPL={implementation}, got {found}")
    return redlatch


def prefix_for(urls: list[str]) -> str:
    """Return a key prefix for a list of masters. The race has several lists of the same masters; a guard knows one."""
    return f"{crc32(' '.join(urls).encode()):08x}:"


def handoff(tenure: float | None) -> Any:
    """Return the client's `handoff` option for this tenure in seconds; None for the default."""
    import redlatch

    return None if tenure is None else redlatch.Handoff(tenure=tenure)


@contender("redlatch-c", implementation="c")
@contender("redlatch-python", implementation="python")
@contender("redlatch-tenure0-c", implementation="c", tenure=0.0)
@contender("redlatch-fair-c", implementation="c", fair=True)
class Redlatch(Contender):
    """redlatch.Client.

    Attributes:
        tenure: the seconds that a lease stays in the process; None takes the client's default.
    """

    implementation = ""
    tenure: float | None = None
    fair = False
    package = "redlatch"

    def open(self, urls: list[str]) -> None:
        self.client = import_redlatch(self.implementation).Client(
            urls, prefix=prefix_for(urls), handoff=handoff(self.tenure)
        )

    def lock(self, name: str) -> Any:
        return self.client.lock(name, ttl=TTL, fair=self.fair)

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
    """redlatch.Client, without waiting for the answer to a release."""

    modes = ("cycle", "threads")

    def release(self, held: Any) -> None:
        held.release(wait=False)


@contender("redlatch-aio-c", implementation="c")
@contender("redlatch-aio-python", implementation="python")
@contender("redlatch-uvloop-c", implementation="c", loop="uvloop")
@contender("redlatch-aio-tenure0-c", implementation="c", tenure=0.0)
@contender("redlatch-aio-fair-c", implementation="c", fair=True)
class AsyncRedlatch(AsyncContender):
    """redlatch.AsyncClient.

    Attributes:
        tenure: the seconds that a lease stays in the process; None takes the client's default.
    """

    implementation = ""
    tenure: float | None = None
    fair = False
    package = "redlatch"

    async def open(self, urls: list[str]) -> None:
        self.client = import_redlatch(self.implementation).AsyncClient(
            urls, prefix=prefix_for(urls), handoff=handoff(self.tenure)
        )

    def lock(self, name: str) -> Any:
        return self.client.lock(name, ttl=TTL, fair=self.fair)

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
