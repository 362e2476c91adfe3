"""A lock passes from one waiter of a process to the next, with its token, while no caller has read that token."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockNotOwnedError
from support.faces import PATIENCE, await_true, in_thread

from redlatch import Handoff, impl
from redlatch.compat import aioredlock, clients, redis_lock, redis_py

Seeing = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def no_tenure_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no tenure end in a test; the default tenure is 0.1 s."""
    for kind in ("ThreadsClient", "LoopClient"):
        monkeypatch.setattr(clients, kind, partial(getattr(clients, kind), handoff=Handoff(tenure=PATIENCE)))


@pytest.fixture
def server(implementation: Any, url: str) -> Any:
    # The socket_timeout makes another client of ours.
    with redis.Redis.from_url(url, socket_timeout=PATIENCE) as client:
        yield client


def of_redis_py(server: Any, name: str) -> Any:
    return redis_py.Lock(server, f"lock:{name}", timeout=60, thread_local=False)


def of_python_redis_lock(server: Any, name: str) -> Any:
    return redis_lock.Lock(server, name, expire=60)


def waits(server: Any, name: str) -> bool:
    return stands(clients.client_of([server]), f"lock:{name}")


def stands(client: Any, key: str) -> bool:
    """Return whether a waiter of this process waits for the holder, or for the key if its token was read."""
    queues = client._quorum.queues
    return key.encode() in queues.by_key or key.encode() in queues.watches.by_key


def handed_on(server: Any, name: str, first: Any, second: Any, see: Seeing) -> tuple[bytes, bytes]:
    """Release the first lock while the second one waits; return the server's value of the key before and after."""
    assert first.acquire()
    see(first)
    call = in_thread(second.acquire)
    await_true(lambda: waits(server, name))
    before = server.get(f"lock:{name}")
    first.release()
    assert call.result(PATIENCE)
    return before, server.get(f"lock:{name}")


def release_elsewhere(url: str, name: str, token: str | bytes) -> None:
    """Release a lock by its token, in another process, with redis-py's own lock."""
    program = (
        "import redis, redis.lock, sys\n"
        "lock = redis.lock.Lock(redis.Redis.from_url(sys.argv[1]), 'lock:' + sys.argv[2])\n"
        "lock.local.token = sys.argv[3].encode()\n"
        "lock.release()\n"
    )
    word = token if isinstance(token, str) else token.decode()
    subprocess.run([sys.executable, "-c", program, url, name, word], check=True)


THREADS = pytest.mark.parametrize(
    ("make", "see"),
    [(of_redis_py, lambda lock: lock.local.token), (of_python_redis_lock, lambda lock: lock.id)],
    ids=["redis-py", "python-redis-lock"],
)


@THREADS
def test_a_lock_whose_token_was_not_read_passes_to_the_next_waiter(make: Any, see: Any, server: Any, name: str) -> None:
    first, second, third = (make(server, name) for _ in range(3))
    before, after = handed_on(server, name, first, second, lambda lock: None)
    assert before == after
    with pytest.raises((redis.exceptions.LockError, redis_lock.NotAcquired)):
        first.release()
    assert see(first) != after
    assert see(second) in (after, after.decode())
    assert not third.acquire(blocking=False)
    second.release()
    assert not server.exists(f"lock:{name}")


@THREADS
def test_a_lock_whose_token_was_read_is_released(make: Any, see: Any, server: Any, name: str) -> None:
    first, second = make(server, name), make(server, name)
    tokens = []
    before, after = handed_on(server, name, first, second, lambda lock: tokens.append(see(lock)))
    assert before != after
    assert tokens[0] in (before, before.decode())
    second.release()


@pytest.mark.parametrize("before", [False, True])
@THREADS
def test_a_local_waiter_gets_the_lock_when_another_process_releases_it(
    make: Any, see: Any, before: bool, server: Any, url: str, name: str
) -> None:
    first, second = make(server, name), make(server, name)
    assert first.acquire()
    token = see(first) if before else ""
    call = in_thread(second.acquire)
    if not before:
        await_true(lambda: waits(server, name))
        token = see(first)
    release_elsewhere(url, name, token)
    assert call.result(PATIENCE)
    with pytest.raises((redis.exceptions.LockError, redis_lock.NotAcquired)):
        first.release()
    second.release()


@pytest.mark.parametrize("before", [False, True])
def test_a_local_task_gets_the_lock_when_another_process_releases_it(
    implementation: impl.Implementation, before: bool, url: str, name: str
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as server:
            first, second = (redis_py.AsyncLock(server, f"lock:{name}", timeout=60) for _ in range(2))
            assert await first.acquire()
            token = first.local.token if before else ""
            call = asyncio.create_task(second.acquire())
            while not stands(clients.async_client_of([server]), f"lock:{name}"):
                await asyncio.sleep(0)
            await asyncio.to_thread(release_elsewhere, url, name, token or first.local.token)
            assert await asyncio.wait_for(call, PATIENCE)
            with pytest.raises(LockNotOwnedError):
                await first.release()
            await second.release()

    asyncio.run(work())


@pytest.mark.parametrize("waiting", [False, True])
def test_a_local_waiter_gets_a_lock_with_a_chosen_token_when_another_process_releases_it(
    waiting: bool, server: Any, url: str, name: str
) -> None:
    first, second, zeroth = (of_redis_py(server, name) for _ in range(3))
    assert zeroth.acquire()
    winning = in_thread(lambda: first.acquire(token="chosen"))
    await_true(lambda: waits(server, name))
    calls = [in_thread(second.acquire)] if waiting else []
    entries = clients.client_of([server])._quorum.queues.by_key[f"lock:{name}".encode()].entries
    await_true(lambda: len(entries) == 1 + waiting)
    zeroth.release()
    assert winning.result(PATIENCE)
    calls = calls or [in_thread(second.acquire)]
    release_elsewhere(url, name, "chosen")
    assert calls[0].result(PATIENCE)
    second.release()


def test_the_token_of_a_released_lock_cannot_release_the_next_one(server: Any, name: str) -> None:
    first, second, stale = (of_redis_py(server, name) for _ in range(3))

    def see(lock: Any) -> None:
        stale.local.token = lock.local.token

    handed_on(server, name, first, second, see)
    with pytest.raises(LockNotOwnedError):
        stale.release()
    assert second.owned()
    second.release()


def test_the_key_has_the_id_that_was_chosen_or_read_before(server: Any, name: str) -> None:
    for make in (
        lambda: redis_lock.Lock(server, name, expire=60, id="mine"),
        lambda: of_python_redis_lock(server, name),
    ):
        first, second = of_python_redis_lock(server, name), make()
        promised = second.id
        _, after = handed_on(server, name, first, second, lambda lock: None)
        assert after.decode() == promised == second.id
        second.release()


def test_only_the_last_release_pushes_a_signal(server: Any, name: str) -> None:
    first, second = of_python_redis_lock(server, name), of_python_redis_lock(server, name)
    handed_on(server, name, first, second, lambda lock: None)
    assert not server.exists(f"lock-signal:{name}")
    second.release()
    assert server.llen(f"lock-signal:{name}") == 1


def test_one_try_gets_a_key_deleted_by_hand_although_a_local_holder_remains(server: Any, name: str) -> None:
    first, second = of_redis_py(server, name), of_redis_py(server, name)
    assert first.acquire()
    server.delete(f"lock:{name}")
    assert second.acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        first.release()
    assert second.owned()
    second.release()


def test_a_queued_waiter_does_not_get_a_lock_that_another_lock_got_by_one_try(server: Any, name: str) -> None:
    first, second, third = (of_redis_py(server, name) for _ in range(3))
    assert first.acquire()
    call = in_thread(second.acquire)
    await_true(lambda: waits(server, name))
    server.delete(f"lock:{name}")
    assert third.acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        first.release()
    assert not call.done()
    assert third.owned()
    third.release()
    assert call.result(PATIENCE)
    second.release()


def test_reading_the_owner_id_prevents_that_the_token_is_passed_on(server: Any, name: str) -> None:
    first, second = of_python_redis_lock(server, name), of_python_redis_lock(server, name)
    helpers = []

    def see(lock: Any) -> None:
        helpers.append(redis_lock.Lock(server, name, id=lock.get_owner_id()))
        helpers[0].extend(60)

    handed_on(server, name, first, second, see)
    with pytest.raises(redis_lock.NotAcquired):
        helpers[0].release()
    second.release()


def test_a_child_process_does_not_get_the_token_of_its_parents_lock(server: Any, name: str) -> None:
    lock, local = of_python_redis_lock(server, name), of_redis_py(server, name + "-2")
    assert lock.acquire()
    assert local.acquire()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, f"{lock.id} {local.local.token}".encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    seen, token = os.read(reader, 1000).decode().split()
    for end in (reader, writer):
        os.close(end)
    assert token == "None"
    assert seen != lock.id
    lock.release()
    local.release()


def test_the_key_has_the_id_that_was_read_during_the_wait(server: Any, name: str) -> None:
    first, second = of_python_redis_lock(server, name), of_python_redis_lock(server, name)
    assert first.acquire()
    call = in_thread(second.acquire)
    await_true(lambda: waits(server, name))
    promised = second.id
    first.release()
    assert call.result(PATIENCE)
    assert second.get_owner_id() == promised == second.id
    second.release()


async def handed_on_to_a_task(server: Any, name: str, hold: Any, see: Seeing) -> tuple[bytes, bytes]:
    """Do as `handed_on` does; `hold` returns a function that acquires and one that releases."""
    acquire_first, release_first = hold()
    acquire_second, release_second = hold()
    first = await acquire_first()
    see(first)
    call = asyncio.ensure_future(acquire_second())
    while not stands(clients.async_client_of([server]), name):
        await asyncio.sleep(0)
    before = await server.get(name)
    await release_first()
    see(await asyncio.wait_for(call, PATIENCE))
    after = await server.get(name)
    await release_second()
    assert not await server.exists(name)
    return before, after


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("thread_local", [True, False])
def test_a_lock_passes_from_task_to_task(
    implementation: impl.Implementation, thread_local: bool, seen: bool, url: str, name: str
) -> None:
    async def work() -> tuple[bytes, bytes]:
        async with redis.asyncio.Redis.from_url(url) as server:

            def hold() -> Any:
                lock = redis_py.AsyncLock(server, name, timeout=60, thread_local=thread_local)

                async def acquire() -> Any:
                    assert await lock.acquire()
                    return lock

                return acquire, lock.release

            return await handed_on_to_a_task(server, name, hold, lambda lock: lock.local.token if seen else None)

    before, after = asyncio.run(work())
    assert (before != after) is seen


@pytest.mark.parametrize("seen", [False, True])
def test_a_lock_of_a_manager_passes_from_task_to_task(
    implementation: impl.Implementation, seen: bool, url: str, name: str
) -> None:
    async def work() -> tuple[bytes, bytes]:
        async with redis.asyncio.Redis.from_url(url) as server:
            manager = aioredlock.Aioredlock([server], retry_count=10)

            def hold() -> Any:
                had = []

                async def acquire() -> Any:
                    had.append(await manager.lock(name, 60))
                    return had[0]

                return acquire, lambda: manager.unlock(had[0])

            return await handed_on_to_a_task(server, name, hold, lambda lock: lock.id if seen else None)

    before, after = asyncio.run(work())
    assert (before != after) is seen
