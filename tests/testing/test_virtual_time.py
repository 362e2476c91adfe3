"""When virtual time jumps, and when it passes as real time does: several threads, and several tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, in_thread

from redlatch import ClientClosed, LockLost, impl
from redlatch.testing import AsyncMemoryClient, MemoryClient
from redlatch.testing.memory.timeline import START_NS, START_US, VirtualClock

# Far longer than a test may take: if time passed as real time does, the test would not end.
LONG = 1000.0


@pytest.fixture
def memory(implementation: impl.Implementation) -> Iterator[MemoryClient]:
    """Return a client for threads."""
    with MemoryClient() as client:
        yield client


def test_the_clock_never_shows_a_time_twice_and_moves_forward_only() -> None:
    clock = VirtualClock()
    assert clock.now() < clock.now() < START_NS + 10
    clock.move_to(START_NS + 1_000_000)
    shown = clock.now()
    assert START_NS + 1_000_000 < shown < START_NS + 1_000_010
    clock.move_to(START_NS)
    assert clock.now() > shown
    assert clock.wall_us() == START_US + 1000
    first = clock.first_ns(START_US // 1000 + 41)
    clock.move_to(first - 1000)
    assert clock.wall_us() // 1000 == START_US // 1000 + 41
    clock.move_to(first)
    assert clock.wall_us() // 1000 == START_US // 1000 + 42


# --- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["join", "future", "event"])
def test_time_jumps_while_the_others_wait_for_threads(memory: MemoryClient, way: str) -> None:
    memory.hold("a")
    began, found, event = memory.memory.now(), [], threading.Event()

    def work() -> bool:
        found.append(memory.lock("a").acquire(timeout=LONG))
        event.set()
        return found[0]

    if way == "future":
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result(PATIENCE) is False
    else:
        thread = threading.Thread(target=work)
        thread.start()
        assert event.wait(PATIENCE) if way == "event" else True
        thread.join()
        assert found == [False]
    assert memory.memory.now() - began == pytest.approx(LONG, abs=PATIENCE)


def test_time_passes_as_real_time_does_while_another_thread_is_at_work(memory: MemoryClient) -> None:
    memory.connect()
    held, began = memory.hold("a"), memory.memory.now()
    waiting = in_thread(lambda: memory.lock("a").acquire(timeout=LONG))
    into, out = os.pipe()

    def end_the_work() -> None:
        await_true(lambda: memory.memory.now() > began + 0.05)
        os.write(out, b"!")

    helper = in_thread(end_the_work)
    # This thread has used the client, and waits for a file now: that is work.
    assert os.read(into, 1) == b"!"
    helper.result(PATIENCE)
    held.release()
    assert waiting.result(PATIENCE)
    assert memory.memory.now() - began < PATIENCE
    os.close(into)
    os.close(out)


def test_a_quorum_comes_back_while_another_thread_rides_out_its_loss(implementation: impl.Implementation) -> None:
    with MemoryClient(patience=LONG) as memory:
        began = memory.memory.now()
        with memory.break_quorum():
            waiting = in_thread(lambda: memory.lock("a").acquire())
            await_true(lambda: memory._quorum.queues.outages)
            memory.advance(LONG / 2)
            assert not waiting.done()
        assert waiting.result(PATIENCE)
        assert LONG / 2 <= memory.memory.now() - began < LONG


def test_a_thread_that_has_ended_counts_no_more(memory: MemoryClient) -> None:
    memory.hold("a")
    used = in_thread(lambda: memory.lock("b").acquire())
    assert used.result(PATIENCE)
    await_true(lambda: threading.active_count() <= 2 or not used.running())
    assert not memory.lock("a").acquire(timeout=LONG)


def test_a_thread_advances_the_time_of_another_one(memory: MemoryClient) -> None:
    held, began = memory.hold("a"), memory.memory.now()
    times: list[float] = []

    def work() -> None:
        with memory.lock("a"):
            times.append(memory.memory.now() - began)

    waiting = in_thread(work)
    await_true(lambda: memory._quorum.queues.heads)
    memory.advance(30)
    held.release()
    waiting.result(PATIENCE)
    # While a thread is at work, real time is added.
    [time] = times
    assert 30 <= time < 30 + PATIENCE


def test_sleeping_threads_wake_in_the_order_of_their_times(memory: MemoryClient) -> None:
    order: list[int] = []
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        ready.wait(PATIENCE)
        memory.advance(10 * number)
        order.append(number)

    threads = [in_thread(lambda number=number: work(number)) for number in (3, 1, 2)]
    ready.wait(PATIENCE)
    for thread in threads:
        thread.result(PATIENCE)
    assert order == [1, 2, 3]


def test_threads_exclude_each_other(memory: MemoryClient) -> None:
    count = [0]

    def work() -> None:
        for _ in range(50):
            with memory.lock("a", timeout=LONG):
                seen = count[0]
                memory.advance(0.001)
                count[0] = seen + 1

    for thread in [in_thread(work) for _ in range(4)]:
        thread.result(PATIENCE)
    assert count == [200]


def test_closing_ends_the_calls_of_other_threads(memory: MemoryClient) -> None:
    memory.hold("a")
    waiting = in_thread(lambda: memory.lock("a").acquire())
    await_true(lambda: memory._quorum.queues.heads)
    memory.close()
    with pytest.raises(ClientClosed):
        waiting.result(PATIENCE)


def test_an_interrupt_ends_a_wait_and_leaves_nothing(memory: MemoryClient, strike: Any) -> None:
    held = memory.hold("a")
    into, out = os.pipe()

    def at_work() -> None:
        memory.lock("b").acquire()
        os.read(into, 1)

    helper = in_thread(at_work)
    await_true(lambda: memory._quorum.queues.heads)
    strike(0.1)
    with pytest.raises(KeyboardInterrupt):
        memory.lock("a").acquire(timeout=LONG)
    os.write(out, b"!")
    helper.result(PATIENCE)
    held.release()
    assert memory.lock("a").acquire(timeout=0)
    os.close(into)
    os.close(out)


def test_a_deadlock_of_threads_is_an_error_in_each(memory: MemoryClient) -> None:
    ready = threading.Barrier(2)

    def work(first: str, second: str) -> None:
        with memory.lock(first, auto_renew=True):
            ready.wait(PATIENCE)
            with memory.lock(second):
                pass

    threads = [in_thread(work, "a", "b"), in_thread(work, "b", "a")]
    errors = [thread.exception(PATIENCE) for thread in threads]
    assert "nobody would ever go on" in str(errors)


def test_threads_meet_at_conditions_and_latches(memory: MemoryClient) -> None:
    lock, began = memory.lock("a"), memory.memory.now()
    times: list[float] = []
    ready = threading.Event()

    def work() -> None:
        with memory.lock("a") as mine:
            ready.set()
            assert mine.condition().wait(timeout=LONG)
            times.append(memory.memory.now() - began)
        memory.latch("gate", 1).count_down()

    waiting = in_thread(work)
    assert ready.wait(PATIENCE)
    memory.advance(3)
    with lock:
        lock.condition().notify_all()
        memory.advance(2)
    assert memory.latch("gate", 1).wait(timeout=LONG)
    waiting.result(PATIENCE)
    [time] = times
    assert 5 <= time < 5 + PATIENCE


# --- tasks -------------------------------------------------------------------------------------------------


def test_time_jumps_while_all_tasks_wait(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        client.hold("a")
        began = client.memory.now()

        async def work(timeout: float) -> tuple[bool, float]:
            return await client.lock("a").acquire(timeout=timeout), client.memory.now() - began

        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(work(10))
        gathered = await asyncio.gather(work(20), work(30))
        awaited = await asyncio.create_task(work(40))
        event = asyncio.Event()
        last = asyncio.create_task(work(LONG))
        last.add_done_callback(lambda _: event.set())
        await event.wait()
        found = [grouped.result(), *gathered, awaited, last.result()]
        ends = [10, 30, 40, 80, 80 + LONG]
        assert [won for won, _ in found] == [False] * len(ends)
        assert [end for _, end in found] == pytest.approx(ends, abs=0.5)
        await client.close()

    asyncio.run(scenario())


def test_tasks_may_wait_in_the_calls_of_several_clients(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        first = AsyncMemoryClient()
        second = AsyncMemoryClient(first.memory)
        held, began = first.hold("a"), first.memory.now()

        async def release() -> None:
            await second.advance(LONG / 2)
            held.release()

        releasing = asyncio.create_task(release())
        assert not await second.lock("a").acquire(timeout=LONG / 3)
        assert await first.lock("a").acquire(timeout=LONG)
        assert first.memory.now() - began == pytest.approx(LONG / 2, abs=1)
        await releasing

    asyncio.run(scenario())


def test_time_passes_as_real_time_does_while_a_task_sleeps(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        held, began = client.hold("a"), client.memory.now()
        waiting = asyncio.create_task(client.lock("a").acquire(timeout=LONG))
        await asyncio.sleep(0.1)
        held.release()
        assert await waiting
        assert client.memory.now() - began < PATIENCE

    asyncio.run(scenario())


def test_time_passes_as_real_time_does_while_a_task_waits_for_a_thread(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        lock, began = client.lock("a"), client.memory.now()
        into, out = os.pipe()

        async def work() -> None:
            async with lock:
                await asyncio.to_thread(os.read, into, 1)

        def end_the_work() -> None:
            await_true(lambda: client.memory.now() > began + 0.05)
            os.write(out, b"!")

        working = asyncio.create_task(work())
        waiting = asyncio.create_task(client.lock("a").acquire(timeout=LONG))
        await asyncio.to_thread(end_the_work)
        await working
        assert await waiting
        assert client.memory.now() - began < PATIENCE
        os.close(into)
        os.close(out)

    asyncio.run(scenario())


def test_tasks_meet_at_conditions_and_latches(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        began, times = client.memory.now(), []

        async def work() -> None:
            async with client.lock("a") as mine:
                assert await mine.condition().wait(timeout=LONG)
                times.append(client.memory.now() - began)
            await client.latch("gate", 1).count_down()

        waiting = asyncio.create_task(work())
        await client.advance(3)
        async with client.lock("a") as lock:
            await lock.condition().notify_all()
            await client.advance(2)
        assert await client.latch("gate", 1).wait(timeout=LONG)
        await waiting
        assert times == [pytest.approx(5, abs=0.5)]

    asyncio.run(scenario())


def test_a_task_advances_the_time_of_another_one(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        held, began = client.hold("a"), client.memory.now()

        async def work() -> float:
            async with client.lock("a"):
                return client.memory.now() - began

        waiting = asyncio.create_task(work())
        await client.advance(30)
        held.release()
        assert await waiting == pytest.approx(30, abs=0.5)

    asyncio.run(scenario())


def test_a_thread_moves_the_time_of_a_loop_that_renews_and_reports(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        memory, reports = MemoryClient(), []
        client = AsyncMemoryClient(memory.memory)
        here = threading.get_ident()
        kept = client.lock("a", ttl=3, auto_renew=True)
        gone = client.lock("b", ttl=3, auto_renew=True, on_lost=lambda *_: reports.append(threading.get_ident()))
        await kept.acquire()
        await gone.acquire()
        await asyncio.to_thread(memory.advance, 100)
        kept.check()
        gone.check()
        client.lose(gone)
        await asyncio.to_thread(memory.advance, 100)
        kept.check()
        assert gone.lost.is_set() and reports == [here]

    asyncio.run(scenario())


def test_a_loop_that_has_ended_does_not_stop_the_time(implementation: impl.Implementation) -> None:
    memory, lost = MemoryClient(), []
    client = AsyncMemoryClient(memory.memory)
    lock = client.lock("a", on_lost=lambda _, why: lost.append(why))
    asyncio.run(lock.acquire())
    memory.advance(LONG)
    assert len(lost) == 1
    client.drop()


def test_a_forgotten_await_names_the_call(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        with pytest.warns(RuntimeWarning, match="AsyncLock.acquire"):
            AsyncMemoryClient().lock("a").acquire()  # type: ignore[unused-coroutine]
            gc.collect()

    asyncio.run(scenario())


def test_a_cancelled_task_leaves_nothing(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        held = client.hold("a")
        first, second = [asyncio.create_task(client.lock("a").acquire()) for _ in range(2)]
        await client.advance(1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        held.release()
        assert await second
        assert not await AsyncMemoryClient(client.memory).lock("a").acquire(blocking=False)

    asyncio.run(scenario())


def test_a_loss_cancels_the_body(implementation: impl.Implementation) -> None:
    async def scenario() -> None:
        client = AsyncMemoryClient()
        body: list[str] = []
        with pytest.raises(LockLost):
            async with client.lock("a", auto_renew=True, cancel_on_loss=True) as lock:
                client.lose(lock)
                await client.advance(LONG)
                body.append("was not cancelled")
        assert not body

    asyncio.run(scenario())
