"""Readers and writers on real masters: nested calls of one thread or task (row 56), and the owner (rows 49 and 53)."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from support.faces import PATIENCE, ask, await_true, in_thread

from redlatch import AlreadyHeld, AsyncClient, Client, impl

LONG = 60.0


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Any) -> list[str]:
    return farm.urls(request.param)  # type: ignore[no-any-return]


def waits(urls: list[str], name: str) -> bool:
    """Return whether a quorum of masters knows a waiting writer."""
    return sum(len(ask(url).keys(f"*{name}*waits*")) for url in urls) > len(urls) // 2


# --- nested calls of one thread or task (row 56) --------------------------------------------------------------


@pytest.mark.parametrize(("inner", "advice"), [("read", "read without a read lock"), ("write", "not re-entrant")])
def test_row_56_a_thread_that_writes_is_refused_a_nested_read_or_write_at_once(
    implementation: impl.Implementation, masters: list[str], name: str, inner: Any, advice: Any
) -> None:
    with Client(masters) as client:
        both = client.rw_lock(name, ttl=LONG)
        with both.write() as held:
            for options in ({}, {"timeout": 0.0}, {"blocking": False}):
                with pytest.raises(AlreadyHeld, match=advice):
                    getattr(both, inner)().acquire(**options)
            assert held.owned()
            assert not in_thread(lambda: getattr(both, inner)().acquire(blocking=False)).result(PATIENCE)
        with getattr(both, inner)():
            pass


@pytest.mark.parametrize(("inner", "advice"), [("read", "read without a read lock"), ("write", "not re-entrant")])
def test_row_56_a_task_that_writes_is_refused_a_nested_read_or_write_at_once(
    implementation: impl.Implementation, masters: list[str], name: str, inner: Any, advice: Any
) -> None:
    async def main() -> None:
        async with AsyncClient(masters) as client:
            both = client.rw_lock(name, ttl=LONG)

            async def other() -> bool:
                acquired: bool = await getattr(both, inner)().acquire(blocking=False)
                return acquired

            async with both.write() as held:
                for options in ({}, {"timeout": 0.0}, {"blocking": False}):
                    with pytest.raises(AlreadyHeld, match=advice):
                        await getattr(both, inner)().acquire(**options)
                assert await held.owned()
                assert not await asyncio.create_task(other())
            async with getattr(both, inner)():
                pass

    asyncio.run(main())


def test_row_56_a_thread_that_reads_may_read_again_while_a_writer_waits(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client, Client(masters) as rival:
        both = client.rw_lock(name, ttl=LONG)
        with both.read() as outer:
            writer = rival.rw_lock(name, ttl=LONG).write()
            call = in_thread(writer.acquire)
            await_true(lambda: waits(masters, name))
            assert not in_thread(lambda: both.read().acquire(blocking=False)).result(PATIENCE)
            inner = both.read()
            assert inner.acquire(timeout=PATIENCE)
            assert inner.owned()
            inner.extend()
            outer.release()
            assert inner.owned()
            # The inner read still counts.
            with both.read():
                assert not call.done()
            inner.release()
        assert call.result(PATIENCE)
        assert not both.read().acquire(blocking=False)
        writer.release()


def test_row_56_a_task_that_reads_may_read_again_while_a_writer_waits(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(masters) as client, AsyncClient(masters) as rival:
            both = client.rw_lock(name, ttl=LONG)
            writer = rival.rw_lock(name, ttl=LONG).write()

            async def other() -> bool:
                return await both.read().acquire(blocking=False)

            async with both.read(), asyncio.timeout(PATIENCE):
                task = asyncio.create_task(writer.acquire())
                while not await asyncio.to_thread(waits, masters, name):
                    await asyncio.sleep(0.005)
                assert not await asyncio.create_task(other())
                async with both.read() as inner:
                    assert await inner.owned()
                    assert not task.done()
            assert await asyncio.wait_for(task, PATIENCE)
            await writer.release()

    asyncio.run(main())


def test_row_56_a_nested_read_waits_for_a_writer_that_holds_the_lock(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    """The outer read was deleted by hand; even then a reader and a writer never hold the lock together."""
    with Client(masters) as client, Client(masters) as rival:
        both = client.rw_lock(name, ttl=LONG)
        assert both.read().acquire()
        for url in masters:
            ask(url).delete(f"{{{name}}}\0rw")
        with rival.rw_lock(name, ttl=LONG).write():
            assert not both.read().acquire(blocking=False)


# --- the owner (rows 49 and 53) -------------------------------------------------------------------------------


def test_row_49_a_new_thread_is_not_taken_for_a_dead_reader_with_its_number(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        both = client.rw_lock(name, ttl=LONG)
        kept: list[Any] = []

        def in_new_thread(call: Any) -> tuple[int, Any]:
            results: list[tuple[int, Any]] = []
            thread = threading.Thread(target=lambda: results.append((threading.get_ident(), call())))
            thread.start()
            thread.join(PATIENCE)
            return results[0]

        def read() -> bool:
            # This reader is never released.
            kept.append(both.read())
            won: bool = kept[0].acquire()
            return won

        dead, won = in_new_thread(read)
        assert won
        later = [in_new_thread(lambda: both.write().acquire(blocking=False)) for _ in range(20)]
        if dead not in [ident for ident, _ in later]:
            pytest.skip("this system did not give the number of a dead thread to a new one")
        # The masters refused them. AlreadyHeld would mean that the reader itself asks.
        assert not any(won for _, won in later)


@pytest.mark.parametrize("renewed", [False, True])
def test_row_53_the_task_that_calls_acquire_is_the_reader_whichever_task_runs_it(
    implementation: impl.Implementation, three: list[str], name: str, renewed: bool
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            both = client.rw_lock(name, ttl=LONG, auto_renew=renewed)
            for run in (
                lambda coroutine: asyncio.wait_for(coroutine, PATIENCE),
                asyncio.create_task,
                lambda coroutine: asyncio.gather(coroutine, asyncio.sleep(0)),
            ):
                reader = both.read()
                await run(reader.acquire())
                with pytest.raises(AlreadyHeld, match="cannot be upgraded"):
                    await run(both.write().acquire())
                await run(reader.release())
                async with both.write():
                    pass

    asyncio.run(main())


def test_row_53_a_read_that_is_cancelled_before_it_begins_leaves_no_warning(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            both = client.rw_lock(name, ttl=LONG, auto_renew=True)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(both.read().acquire(), 0)
            gc.collect()
            async with both.write():
                pass

    asyncio.run(main())


def test_row_53_readers_whose_acquire_was_made_outside_the_loop_belong_to_the_tasks_that_run_them(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            both, loop = client.rw_lock(name, ttl=LONG), asyncio.get_running_loop()
            reader = both.read()

            def call(method: Any) -> Any:
                return asyncio.run_coroutine_threadsafe(method(), loop).result(PATIENCE)

            assert await asyncio.to_thread(call, reader.acquire)
            # Another task reads, so there is no AlreadyHeld.
            assert not await both.write().acquire(blocking=False)
            await asyncio.to_thread(call, reader.release)
            async with both.write():
                pass

    asyncio.run(main())


def test_an_rw_lock_forgets_threads_and_tasks_that_have_ended(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            both = client.rw_lock(name, ttl=LONG)
            holders = both._reader.keywords["holders"]

            async def read(release: bool) -> None:
                lock = both.read()
                assert await lock.acquire()
                if release:
                    await lock.release()

            for number in range(10):
                await asyncio.create_task(read(number % 2 == 0))
            # The loop drops the last task.
            await asyncio.sleep(0)
            gc.collect()
            assert not len(holders)

    asyncio.run(main())
