"""Re-entrant locks on real masters: their owner (rows 49 and 53), and the end of a ``with`` (row 55)."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import create_autospec

import pytest
from support.faces import PATIENCE, await_true, in_thread
from support.masters import Keys

from redlatch import AlreadyHeld, AsyncClient, Client, LockBusy, LockLost, NotOwned, impl
from redlatch.locks.reentrant import AsyncRLock

# A ttl that expires during a test. A renewed lock leaves 0.8 s to a process that is stopped.
SHORT = 1.2
# A ttl that does not expire: a key that is gone was deleted.
LONG = 60.0


async def soon(condition: Callable[[], Any]) -> None:
    """Wait until a condition is true, without blocking the loop."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def without_keys(keys: Any, urls: list[str], name: str) -> None:
    """Wait until no master has the key, without blocking the loop."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(keys, urls, name):
            await asyncio.sleep(0.005)


# --- a thread that ends (row 49) ------------------------------------------------------------------------------


def test_row_49_a_new_thread_does_not_get_the_rlock_of_a_dead_one(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        lock = client.rlock(name, ttl=LONG)

        def acquire() -> tuple[int, bool, int]:
            return threading.get_ident(), lock.acquire(blocking=False), lock.count

        def in_new_thread() -> tuple[int, bool, int]:
            results = []
            thread = threading.Thread(target=lambda: results.append(acquire()))
            thread.start()
            thread.join(PATIENCE)
            (result,) = results
            return result

        dead, won, count = in_new_thread()
        assert (won, count) == (True, 1)
        later = [in_new_thread() for _ in range(20)]
        if dead not in [ident for ident, _, _ in later]:
            pytest.skip("this system did not give the number of a dead thread to a new one")
        assert [each[1:] for each in later] == [(False, 0)] * 20


def test_row_49_the_rlock_of_a_dead_thread_is_not_renewed_and_its_loss_is_reported(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    told: list[tuple[str, str]] = []
    with Client(three, attempt_timeout=PATIENCE) as client:
        lock = client.rlock(name, ttl=SHORT, auto_renew=True, on_lost=lambda lock, why: told.append((lock.name, why)))

        def work() -> Any:
            assert lock.acquire()
            assert lock.acquire()
            return lock.lock.lost

        lost = in_thread(work).result(PATIENCE)
        await_true(lost.is_set)
        await_true(lambda: bool(told))
        assert [each[0] for each in told] == [name]
        assert "ended without releasing it" in told[0][1]
        await_true(lambda: not keys(three, name))
        with lock:
            assert lock.count == 1


def test_row_49_the_rlock_of_a_living_thread_is_renewed_while_another_thread_ends(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three, attempt_timeout=PATIENCE) as client:
        lock, other = client.rlock(name, ttl=SHORT, auto_renew=True), client.rlock(name + "-other", ttl=SHORT)
        assert lock.acquire()
        lost = lock.lock.lost
        renewed = lock.lock.deadline_ns + int(SHORT * 1e9)
        in_thread(other.acquire).result(PATIENCE)
        in_thread(lambda: lock.acquire(blocking=False)).result(PATIENCE)
        await_true(lambda: lost.is_set() or lock.lock.deadline_ns > renewed)
        assert not lost.is_set()
        lock.release()


def test_row_49_an_rlock_object_that_is_forgotten_is_not_renewed(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    with Client(three, attempt_timeout=PATIENCE) as client:
        lock = client.rlock(name, ttl=SHORT, auto_renew=True)
        assert lock.acquire()
        del lock
        await_true(lambda: not keys(three, name), 10 * SHORT)


def test_row_49_the_rlock_of_a_task_that_failed_is_not_renewed_and_its_loss_is_reported(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        told: list[str] = []
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.rlock(name, ttl=SHORT, auto_renew=True, on_lost=lambda lock, why: told.append(why))

            async def work() -> None:
                assert await lock.acquire()
                events.append(lock.lock.lost)
                raise ZeroDivisionError

            events: list[asyncio.Event] = []
            # The variable keeps the task alive until the end of the test.
            task = asyncio.create_task(work())
            with pytest.raises(ZeroDivisionError):
                await task
            assert not await lock.acquire(blocking=False)
            assert lock.count == 0
            await asyncio.wait_for(events[0].wait(), PATIENCE)
            await soon(lambda: bool(told))
            assert "ended without releasing it" in told[0]
            await without_keys(keys, three, name)
            async with lock:
                assert lock.count == 1
            assert len(told) == 1
            assert task.done()

    asyncio.run(main())


def test_row_49_a_task_that_ends_after_its_release_does_not_affect_the_next_owner(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.rlock(name, ttl=SHORT, auto_renew=True)

            async def work() -> None:
                async with lock, lock:
                    pass

            await asyncio.create_task(work())
            assert await lock.acquire()
            lost, renewed = lock.lock.lost, lock.lock.deadline_ns + int(SHORT * 1e9)
            await soon(lambda: lost.is_set() or lock.lock.deadline_ns > renewed)
            assert not lost.is_set()
            await lock.release()

    asyncio.run(main())


# --- coroutines that another task runs (row 53) ---------------------------------------------------------------

WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "await": lambda coroutine: coroutine,
    "wait_for": lambda coroutine: asyncio.wait_for(coroutine, PATIENCE),
    "create_task": lambda coroutine: asyncio.create_task(coroutine),
    "gather": lambda coroutine: asyncio.gather(coroutine, asyncio.sleep(0)),
    "shield": lambda coroutine: asyncio.shield(coroutine),
}


@pytest.mark.parametrize("way", WAYS)
def test_row_53_the_task_that_calls_acquire_owns_the_rlock_whichever_task_runs_it(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, way: Any
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.rlock(name, ttl=SHORT, auto_renew=True)
            run = WAYS[way]
            await run(lock.acquire())
            assert lock.count == 1
            await run(lock.acquire())
            assert lock.count == 2
            async with lock:
                assert lock.count == 3
            lost, renewed = lock.lock.lost, lock.lock.deadline_ns + int(SHORT * 1e9)
            await soon(lambda: lost.is_set() or lock.lock.deadline_ns > renewed)
            assert not lost.is_set()
            assert not await asyncio.create_task(other(lock))
            await run(lock.extend(LONG))
            assert lock.remaining() > SHORT
            await run(lock.release())
            assert lock.count == 1
            await run(lock.release())
            assert lock.count == 0
            assert not await asyncio.to_thread(keys, three, name)

    async def other(lock: Any) -> bool:
        won: bool = await lock.acquire(blocking=False)
        return won

    asyncio.run(main())


def test_row_53_a_timeout_around_acquire_leaves_no_lock_to_its_caller(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)
            async with client.lock(name, ttl=LONG):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(lock.acquire(), 0.05)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(lock.acquire(), 0)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await lock.acquire()
                assert lock.count == 0
            assert await asyncio.wait_for(lock.acquire(), PATIENCE)
            await lock.release()

    asyncio.run(main())


def test_row_53_a_task_that_ends_before_its_rlock_is_won_does_not_keep_it(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)

            async def begin() -> asyncio.Task[bool]:
                task = asyncio.create_task(lock.acquire())
                # The task begins.
                await asyncio.sleep(0)
                return task

            held = client.lock(name, ttl=LONG)
            assert await held.acquire()
            task = await asyncio.create_task(begin())
            await soon(lambda: bool(client._quorum.queues.by_key))
            await held.release()
            with pytest.raises(NotOwned, match="has ended"):
                await task
            await without_keys(keys, three, name)

    asyncio.run(main())


def test_row_53_a_coroutine_whose_caller_has_ended_belongs_to_the_task_that_runs_it(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)

            async def make() -> Any:
                return lock.acquire()

            assert await (await asyncio.create_task(make()))
            assert lock.count == 1
            await lock.release()

    asyncio.run(main())


def test_row_53_a_coroutine_that_was_made_outside_the_loop_belongs_to_the_task_that_runs_it(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock, loop = client.rlock(name, ttl=SHORT, auto_renew=True), asyncio.get_running_loop()

            def call() -> bool:
                return asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(PATIENCE)

            assert await asyncio.to_thread(call)
            assert lock.count == 0
            # Its owner has ended, so it is not renewed.
            await without_keys(keys, three, name)

    asyncio.run(main())


def test_row_53_two_concurrent_calls_of_one_task_do_not_wait_for_each_other(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)
            one: object
            two: object
            one, two = await asyncio.gather(lock.acquire(), lock.acquire(), return_exceptions=True)
            assert one is True
            assert isinstance(two, AlreadyHeld)
            assert lock.count == 1
            await lock.release()

    asyncio.run(main())


def test_row_53_a_child_of_the_task_that_holds_an_rlock_is_another_owner(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)

            async def child() -> int:
                async with lock:
                    return lock.count

            async with asyncio.TaskGroup() as group, lock:
                task = group.create_task(child())
                # The child waits.
                await soon(lambda: bool(client._quorum.queues.by_key))
                assert lock.count == 1
            assert task.result() == 1

    asyncio.run(main())


def test_row_53_mocks_and_inspect_recognize_the_coroutines_of_an_rlock(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    assert all(inspect.iscoroutinefunction(getattr(AsyncRLock, call)) for call in ("acquire", "release", "extend"))
    mock = create_autospec(AsyncRLock, instance=True)

    async def main() -> None:
        await mock.acquire(timeout=1.0)
        await mock.release()
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)
            coroutine = lock.acquire()
            assert inspect.iscoroutine(coroutine)
            assert await coroutine
            with pytest.raises(RuntimeError, match="already awaited"):
                await coroutine
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                lock.acquire()  # type: ignore[unused-coroutine]
                gc.collect()
            assert [warning.category for warning in caught] == [RuntimeWarning]
            assert lock.count == 1
            await lock.release()

    asyncio.run(main())
    mock.acquire.assert_awaited_once_with(timeout=1.0)


# --- released inside its own with (row 55) --------------------------------------------------------------------


def test_row_55_a_with_ends_without_an_error_after_its_body_released_the_rlock(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        lock = client.rlock(name, ttl=LONG)
        with lock:
            lock.release()
        with lock, lock:
            lock.release()
            lock.release()
        assert lock.count == 0
        with pytest.raises(NotOwned):
            lock.release()


def test_row_55_the_exception_of_a_body_that_released_the_rlock_propagates(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        lock = client.rlock(name, ttl=LONG)
        with pytest.raises(ZeroDivisionError) as caught, lock:
            lock.release()
            raise ZeroDivisionError
        assert caught.value.__context__ is None
        with lock:
            lock.release()
            assert lock.acquire()
        assert lock.count == 0


def test_row_55_an_async_with_ends_without_an_error_after_its_body_released_the_rlock(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)
            async with lock:
                await lock.release()
            async with lock, lock:
                await lock.release()
                await lock.release()
            with pytest.raises(ZeroDivisionError) as caught:
                async with lock:
                    await lock.release()
                    raise ZeroDivisionError
            assert caught.value.__context__ is None
            assert lock.count == 0
            with pytest.raises(NotOwned):
                await lock.release()

    asyncio.run(main())


def test_row_55_a_body_that_the_loss_cancelled_raises_lock_lost_although_it_released_the_rlock(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.rlock(name, ttl=SHORT, cancel_on_loss=True)
            with pytest.raises(LockLost):
                async with lock:
                    try:
                        await asyncio.sleep(PATIENCE)
                    finally:
                        with pytest.raises(LockLost):
                            await lock.release()
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            await asyncio.sleep(0)

    asyncio.run(main())


def test_row_55_a_lost_body_that_released_and_acquired_the_rlock_again_raises_lock_lost(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.rlock(name, ttl=SHORT, cancel_on_loss=True)
            with pytest.raises(LockLost):
                async with lock:
                    with pytest.raises(asyncio.CancelledError):
                        await asyncio.sleep(PATIENCE)
                    with pytest.raises(LockLost):
                        await lock.release()
                    await lock.acquire()
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            assert lock.count == 0

    asyncio.run(main())


def test_row_55_leaving_the_with_in_another_thread_raises_and_does_not_end_in_silence(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client, ThreadPoolExecutor(1) as enters, ThreadPoolExecutor(1) as leaves:
        lock = client.rlock(name, ttl=LONG)
        enters.submit(lock.__enter__).result(PATIENCE)
        with pytest.raises(NotOwned):
            leaves.submit(lock.__exit__, None, None, None).result(PATIENCE)
        body = ZeroDivisionError()
        leaves.submit(lock.__exit__, ZeroDivisionError, body, None).result(PATIENCE)
        assert "NotOwned when the lock was released" in body.__notes__[0]
        enters.submit(lock.__exit__, None, None, None).result(PATIENCE)
        with pytest.raises(NotOwned):
            enters.submit(lock.__exit__, None, None, None).result(PATIENCE)


def test_row_55_leaving_the_with_in_another_task_raises_and_does_not_end_in_silence(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.rlock(name, ttl=LONG)
            async with lock:
                with pytest.raises(NotOwned):
                    await asyncio.create_task(lock.__aexit__(None, None, None))
                assert lock.count == 1
            assert lock.count == 0

    asyncio.run(main())


def test_row_55_a_with_that_did_not_get_the_rlock_was_not_entered(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG):
        lock = client.rlock(name, ttl=LONG, timeout=0)
        with pytest.raises(LockBusy), lock:
            pass
        with pytest.raises(NotOwned):
            lock.__exit__(None, None, None)
