"""The client for asyncio: the same as for threads, up to the word await."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import redlatch
from redlatch import sql
from redlatch.aio import AsyncLock

from .conftest import ONE_EACH, FindUrl


def test_both_faces_have_the_same_arguments_and_docstrings() -> None:
    threads, loop = sql.Client, sql.AsyncClient
    ours, theirs = inspect.signature(threads).parameters, inspect.signature(loop).parameters
    assert list(ours) == list(theirs)
    assert [each.default for each in ours.values()] == [each.default for each in theirs.values()]
    plain = str(threads.__doc__).replace("`redlatch.Client`", "X").replace("for threads", "for F")
    other = str(loop.__doc__).replace("`redlatch.AsyncClient`", "X").replace("for asyncio", "for F")
    assert plain.split() == other.split()
    assert threads.create_table.__doc__ == loop.create_table.__doc__


@pytest.mark.parametrize("driver", [*ONE_EACH, "postgresql+asyncpg"])
def test_a_table_is_made_and_locks_are_had_in_a_loop(url_of: FindUrl, driver: str, name: str) -> None:
    async def main() -> None:
        client = sql.AsyncClient(url_of(driver))
        assert isinstance(client, redlatch.AsyncClient)
        await client.create_table()
        async with client:
            lock = client.lock(name)
            assert type(lock) is AsyncLock
            async with lock:
                assert await lock.owned()

    asyncio.run(main())


def test_uvloop_is_no_obstacle(url_of: FindUrl, name: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        for driver in ("postgresql+asyncpg", "mysql+asyncmy", "postgresql+psycopg"):
            sql.Client(url_of(driver)).create_table()
            async with sql.AsyncClient(url_of(driver)) as client, client.lock(f"{name} {driver}") as lock:
                assert await lock.owned()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
