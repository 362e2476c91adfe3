"""redlatch as a contender: each build, for threads, for asyncio and on uvloop; a new lock per cycle, as services do."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any
from zlib import crc32

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


def prefix_for(urls: list[str]) -> str:
    """Return a prefix for a list of masters: the race has several lists of the same ones, and the guard knows one."""
    return f"{crc32(' '.join(urls).encode()):08x}:"


def handoff(tenure: float | None) -> Any:
    """Return the option of a client for this tenure."""
    import redlatch

    return None if tenure is None else redlatch.Handoff(tenure=tenure)


@contender("redlatch-c", implementation="c")
@contender("redlatch-python", implementation="python")
@contender("redlatch-tenure0-c", implementation="c", tenure=0.0)
@contender("redlatch-fair-c", implementation="c", fair=True)
class Redlatch(Contender):
    """redlatch.Client."""

    implementation = ""
    tenure: float | None = None  # seconds that a lease stays in the process; None takes the client's own
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
    """redlatch.Client, not waiting for the answer to a release."""

    modes = ("cycle", "threads")

    def release(self, held: Any) -> None:
        held.release(wait=False)


@contender("redlatch-aio-c", implementation="c")
@contender("redlatch-aio-python", implementation="python")
@contender("redlatch-uvloop-c", implementation="c", loop="uvloop")
@contender("redlatch-aio-tenure0-c", implementation="c", tenure=0.0)
@contender("redlatch-aio-fair-c", implementation="c", fair=True)
class AsyncRedlatch(AsyncContender):
    """redlatch.AsyncClient."""

    implementation = ""
    tenure: float | None = None  # seconds that a lease stays in the process; None takes the client's own
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
