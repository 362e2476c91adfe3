"""`on_lost`: a coroutine function is awaited by an event loop, and refused by a client for threads."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from support.faces import ask, await_true

from redlatch import AsyncClient, Client, impl
from redlatch.loss import on_lost_of
from redlatch.testing import AsyncMemoryClient, MemoryClient


async def coroutine_function(lock: Any, reason: str) -> None:
    raise AssertionError


async def async_generator(lock: Any, reason: str) -> Any:
    yield


def generator(lock: Any, reason: str) -> Any:
    yield


class Reporter:
    async def __call__(self, lock: Any, reason: str) -> None:
        raise AssertionError

    async def report(self, lock: Any, reason: str) -> None:
        raise AssertionError


COROUTINE_FUNCTIONS = {
    "function": coroutine_function,
    "method": Reporter().report,
    "object": Reporter(),
    "partial": partial(partial(Reporter().report)),
    "partial of an object": partial(Reporter()),
}
NEVER_RUN = {"generator": generator, "async generator": async_generator, "partial": partial(generator)}


@pytest.mark.parametrize("on_lost", COROUTINE_FUNCTIONS.values(), ids=COROUTINE_FUNCTIONS)
@pytest.mark.parametrize("make", [Client, MemoryClient])
def test_row_69_a_client_for_threads_refuses_a_coroutine_function(make: Any, on_lost: Any, url: str) -> None:
    masters = url if make is Client else 3
    with pytest.raises(TypeError, match="on_lost: a client for threads cannot await a coroutine function"):
        make(masters, on_lost=on_lost)
    client = make(masters)
    for call in (client.lock, client.rlock, client.fair_lock, client.locked):
        with pytest.raises(TypeError, match="on_lost: a client for threads"):
            call("name", on_lost=on_lost)


@pytest.mark.parametrize("on_lost", NEVER_RUN.values(), ids=NEVER_RUN)
@pytest.mark.parametrize("awaits", [True, False])
def test_row_69_a_generator_function_would_never_run(awaits: bool, on_lost: Any) -> None:
    with pytest.raises(TypeError, match="a generator function would never run"):
        on_lost_of(on_lost, awaits)


@pytest.mark.parametrize("on_lost", COROUTINE_FUNCTIONS.values(), ids=COROUTINE_FUNCTIONS)
def test_row_69_a_client_for_asyncio_takes_a_coroutine_function(on_lost: Any, url: str) -> None:
    AsyncClient(url, on_lost=on_lost).lock("name", on_lost=on_lost)


@pytest.mark.parametrize("awaits", [True, False])
def test_nothing_is_called_without_a_function(awaits: bool) -> None:
    assert on_lost_of(None, awaits) is None
    with pytest.raises(TypeError, match="on_lost: a callable or None is needed, not str"):
        on_lost_of("print", awaits)  # type: ignore[arg-type]


def lose(url: str, name: str) -> None:
    ask(url).delete(name)


@pytest.mark.parametrize("where", ["client", "lock"])
@pytest.mark.parametrize("kind", ["coroutine function", "future"])
def test_row_69_an_event_loop_awaits_a_coroutine_function(
    kind: str, where: str, implementation: impl.Implementation, url: str, name: str
) -> None:
    async def main() -> None:
        told: list[tuple[Any, str]] = []
        done = asyncio.Event()

        async def on_lost(lock: Any, reason: str) -> None:
            await asyncio.sleep(0)
            told.append((lock, reason))
            # It may use the client.
            assert not await lock.locked()
            done.set()

        given: Any = on_lost if kind == "coroutine function" else lambda *args: asyncio.ensure_future(on_lost(*args))
        async with AsyncClient(url, on_lost=given if where == "client" else None) as client:
            lock = client.lock(name, ttl=60.0, **({"on_lost": given} if where == "lock" else {}))
            assert await lock.acquire()
            lose(url, name)
            async with asyncio.timeout(30):
                await done.wait()
            assert told == [(lock, "a majority of masters reported that its key is gone")]

    asyncio.run(main())


def test_row_69_the_exception_of_a_coroutine_function_is_logged(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async def on_lost(lock: Any, reason: str) -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError("in on_lost")

        async with AsyncClient(url, on_lost=on_lost) as client:
            assert await client.lock(name, ttl=60.0).acquire()
            lock = client.lock(name + " 2", ttl=60.0)
            assert await lock.acquire()
            lose(url, name + " 2")
            async with asyncio.timeout(30):
                while not caplog.records:
                    await asyncio.sleep(0.005)

    caplog.set_level(logging.ERROR, "redlatch")
    asyncio.run(main())
    [record] = caplog.records
    assert f"on_lost failed for lock '{name} 2', which was lost: a majority" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_row_69_an_awaitable_that_a_plain_function_returns_in_a_client_for_threads_is_an_error(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "redlatch")
    with Client(url, on_lost=lambda *args: coroutine_function(*args)) as client:  # type: ignore[arg-type]
        lock = client.lock(name, ttl=60.0)
        assert lock.acquire()
        lose(url, name)
        await_true(lambda: "on_lost has returned an awaitable" in caplog.text)


def test_row_69_a_loss_without_a_running_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    call: Any = on_lost_of(coroutine_function, True)

    class Lock:
        name = "x"

    with pytest.raises(RuntimeError, match="no running event loop"):
        call(Lock(), "reason")


def test_row_69_a_client_in_memory_awaits_it(name: str) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def on_lost(lock: Any, reason: str) -> None:
            done.set()

        client = AsyncMemoryClient(on_lost=on_lost)
        lock = client.lock(name)
        assert await lock.acquire()
        client.lose(lock)
        await asyncio.wait_for(done.wait(), 30)

    asyncio.run(main())
