"""The drop-in for redis-py's locks: behaviour that its own suite does not test, and differences for safety."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError
from support.faces import PATIENCE, ask, await_true, in_thread
from support.proxy import Proxy

from redlatch import impl
from redlatch.compat.clients import client_of
from redlatch.compat.redis_py import AsyncLock, Lock


@pytest.fixture
def server(implementation: Any, url: str) -> Any:
    with redis.Redis.from_url(url) as client:
        yield client


def test_a_redis_py_client_returns_the_drop_in_as_its_lock_class(server: Any, name: str) -> None:
    lock = server.lock(name, timeout=5, lock_class=Lock)
    assert isinstance(lock, redis.lock.Lock)
    with lock as same:
        assert same is lock
        assert lock.owned()
        assert lock.locked()
        assert server.get(name) == lock.local.token
        assert 0 < server.pttl(name) <= 5000
    assert not server.exists(name)


def test_a_lock_without_a_timeout_lives_for_half_a_minute_and_is_renewed(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlatch.compat.redis_py.RENEWED_MS", 1500)
    lock = Lock(server, name)
    assert lock.acquire(blocking=False)
    assert 0 < server.pttl(name) <= 1500
    token = lock.local.token
    # This is longer than the ttl.
    threading.Event().wait(2.0)
    assert server.get(name) == token
    assert lock.owned()
    lock.release()
    assert not server.exists(name)


def test_a_collected_lock_object_frees_its_lock(server: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redlatch.compat.redis_py.RENEWED_MS", 300)
    assert Lock(server, name).acquire(blocking=False)
    gc.collect()
    await_true(lambda: not server.exists(name))
    assert Lock(server, name).acquire(blocking_timeout=PATIENCE)


def test_the_lock_of_a_thread_that_ended_is_not_renewed_for_ever(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlatch.compat.redis_py.RENEWED_MS", 300)
    lock = Lock(server, name)
    assert in_thread(lock.acquire).result(PATIENCE)
    await_true(lambda: not server.exists(name))
    assert lock.acquire(blocking_timeout=PATIENCE)
    lock.release()


def test_attributes_that_users_set_on_a_lock_stay(server: Any, name: str) -> None:
    for lock in (Lock(server, name), Lock(server, name, thread_local=False), AsyncLock(server, name)):
        lock.local.count = 1
        assert lock.local.count == 1
        assert in_thread(lambda lock=lock: hasattr(lock.local, "count")).result(PATIENCE) is (
            not lock.thread_local or isinstance(lock, AsyncLock)
        )
    assert inspect.iscoroutinefunction(AsyncLock.acquire)
    assert inspect.iscoroutinefunction(AsyncLock.release)


@pytest.mark.parametrize("timeout", [-1, 0.0001, -0.5])
def test_a_timeout_out_of_range_is_refused_with_the_servers_error(server: Any, name: str, timeout: float) -> None:
    with pytest.raises(redis.ResponseError, match="invalid expire time"):
        Lock(server, name, timeout=timeout).acquire()


def test_a_thread_that_never_acquired_cannot_release(server: Any, name: str) -> None:
    lock = Lock(server, name, timeout=5)
    assert lock.acquire()
    for call in (lock.release, lambda: lock.extend(1)):
        with pytest.raises(LockError):
            in_thread(call).result(PATIENCE)
    assert not in_thread(lock.owned).result(PATIENCE)
    shared = Lock(server, name + "-2", timeout=5, thread_local=False)
    assert shared.acquire()
    in_thread(shared.release).result(PATIENCE)
    assert not server.exists(name + "-2")


def test_many_threads_use_one_lock_object_in_turn(server: Any, name: str) -> None:
    lock = Lock(server, name, timeout=5)

    def cycle() -> bytes:
        with lock:
            return bytes(lock.local.token)

    tokens = {in_thread(cycle).result(PATIENCE) for _ in range(20)}
    assert len(tokens) == 20
    assert lock.local.token is None


def test_a_copied_token_extends_and_releases_the_lock(server: Any, name: str) -> None:
    one, other = Lock(server, name, timeout=5), Lock(server, name, timeout=5)
    assert one.acquire()
    other.local.token = one.local.token
    assert other.owned()
    assert other.extend(5)
    assert 9000 < server.pttl(name) <= 10_000
    assert other.reacquire()
    assert server.pttl(name) <= 5000
    other.release()
    assert not server.exists(name)
    with pytest.raises(LockNotOwnedError):
        one.release()


def test_all_attempts_use_the_token_that_the_caller_chose(server: Any, name: str) -> None:
    holder, waiter = Lock(server, name, timeout=5), Lock(server, name, timeout=5)
    assert holder.acquire(token="one")
    assert server.get(name) == b"one"
    release: Callable[[], object] = waiter.release
    waiting = in_thread(lambda: (waiter.acquire(token=b"two"), server.get(name), release()))
    holder.release()
    assert waiting.result(PATIENCE) == (True, b"two", None)


def test_extend_adds_and_subtracts_time(server: Any, name: str) -> None:
    lock = Lock(server, name, timeout=10)
    assert lock.acquire()
    assert lock.extend(10) is True
    assert 19_000 < server.pttl(name) <= 20_000
    assert lock.extend(-15) is True
    assert 4000 < server.pttl(name) <= 5000
    assert lock.extend(7, replace_ttl=True) is True
    assert 6000 < server.pttl(name) <= 7000
    lock.release()


def test_a_release_wakes_a_waiter_without_a_sleep(server: Any, name: str, no_backstop: None) -> None:
    holder, waiter = Lock(server, name, timeout=60), Lock(server, name, timeout=60, sleep=59)
    assert holder.acquire()
    waiting = in_thread(waiter.acquire, None, True, 60)
    threading.Event().wait(0.2)
    holder.release()
    assert waiting.result(PATIENCE)


def test_a_lock_extended_by_a_users_script_is_released_by_its_token(server: Any, name: str) -> None:
    lock = Lock(server, name, timeout=0.5)
    # RedBeat replaces the script in the same way.
    lock.lua_extend = server.register_script('return redis.call("pexpire",KEYS[1],60000)')
    assert lock.acquire()
    assert lock.extend(1)
    # This is longer than the ttl that was acquired.
    threading.Event().wait(0.7)
    assert lock.owned()
    lock.release()
    assert not server.exists(name)


class Hooked(Lock):
    tried = 0

    def do_acquire(self, token: Any) -> bool:
        self.tried += 1
        return super().do_acquire(token)


def test_the_do_acquire_of_a_subclass_is_called(server: Any, name: str) -> None:
    lock = Hooked(server, name, timeout=5)
    assert lock.acquire()
    assert lock.tried == 1
    assert server.get(name) == lock.local.token
    lock.release()
    assert not server.exists(name)


RELEASES_AND_COUNTS = 'redis.call("incr",KEYS[1].."-released") return redis.call("del",KEYS[1])'


class Counted(Lock):
    lua_release = None
    LUA_RELEASE_SCRIPT = RELEASES_AND_COUNTS


class AsyncCounted(AsyncLock):
    lua_release = None
    LUA_RELEASE_SCRIPT = RELEASES_AND_COUNTS


@pytest.mark.parametrize("timeout", [60, None])
@pytest.mark.parametrize("whose", ["subclass", "instance"])
def test_a_release_script_of_a_subclass_or_an_instance_is_run_and_wakes_waiters(
    server: Any, name: str, whose: str, timeout: int | None
) -> None:
    lock = (Counted if whose == "subclass" else Lock)(server, name, timeout=timeout)
    if whose == "instance":
        lock.lua_release = server.register_script(RELEASES_AND_COUNTS)
    for count in (1, 2):
        assert lock.acquire(blocking=False)
        waiter = Lock(server, name, timeout=60)
        waits = in_thread(lambda waiter=waiter: waiter.acquire() and waiter.release() is None)
        lock.release()
        assert waits.result(PATIENCE)
        assert int(server.get(name + "-released")) == count
    assert lock.local.token is None
    server.delete(name + "-released")


def test_after_a_release_script_nothing_is_renewed_and_no_loss_is_reported(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("redlatch.compat.redis_py.RENEWED_MS", 1500)
    lock = Counted(server, name)
    assert lock.acquire()
    upkeep = lock.local.lease._upkeep
    lock.release()
    assert not upkeep.live()
    other = Lock(server, name + "-2")
    assert other.acquire()
    # Both renewals would have been due by now, and the first lock would have been lost.
    threading.Event().wait(2.0)
    assert other.owned()
    other.release()
    assert name not in caplog.text
    server.delete(name + "-released")


def test_a_release_script_of_an_asyncio_subclass_is_run(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            async with AsyncCounted(client, name, timeout=60):
                pass
            assert await client.getdel(name + "-released") == b"1"
            assert not await client.exists(name)

    run(work())


def test_a_client_with_connections_of_another_class_keeps_redis_pys_algorithm(server: Any, name: str) -> None:
    class Connection(redis.Connection):
        """A connection class of the user, such as fakeredis'."""

    pool = redis.ConnectionPool(connection_class=Connection, **server.connection_pool.connection_kwargs)
    mine = redis.Redis(connection_pool=pool)
    lock = Lock(mine, name, timeout=5)
    assert lock.acquire()
    assert len(lock.local.token) == 32
    assert lock.local.lease is None
    lock.release()
    assert not server.exists(name)


def test_a_server_that_is_down_raises_a_connection_error(
    implementation: impl.Implementation, closed_ports: Callable[[int], list[str]], name: str
) -> None:
    [nobody] = closed_ports(1)
    with redis.Redis.from_url(nobody, retry=None) as client:
        with pytest.raises(redis.ConnectionError):
            Lock(client, name, timeout=1).acquire()


def test_a_silent_server_raises_a_timeout(
    implementation: impl.Implementation, proxies: Callable[[list[str]], list[Proxy]], url: str, name: str
) -> None:
    [proxy] = proxies([url])
    with redis.Redis.from_url(proxy.url, socket_timeout=0.3) as client:
        lock = Lock(client, name, timeout=5)
        assert lock.acquire()
        proxy.replies.clear()
        with pytest.raises(redis.TimeoutError):
            lock.extend(1)
        proxy.replies.set()


def test_a_try_with_the_token_of_another_holder_leaves_its_lock(server: Any, url: str, name: str) -> None:
    # Another process has set the key.
    server.set(name, "worker-7", px=60_000)
    lock = Lock(server, name, timeout=60)
    assert not lock.acquire(token="worker-7", blocking=False)
    assert not lock.acquire(token="worker-7", blocking_timeout=0.3)
    assert server.get(name) == b"worker-7"


def test_an_interrupted_wait_with_the_token_of_another_holder_leaves_its_lock(
    server: Any, name: str, strike: Any
) -> None:
    server.set(name, "worker-7", px=60_000)
    strike(0.2)
    with pytest.raises(KeyboardInterrupt):
        Lock(server, name, timeout=60).acquire(token="worker-7")
    # Time for anything that would still be sent.
    threading.Event().wait(0.1)
    assert server.get(name) == b"worker-7"


def test_a_single_try_finds_that_the_key_was_deleted_by_hand(server: Any, name: str) -> None:
    holder = Lock(server, name, timeout=60)
    assert holder.acquire()
    assert not Lock(server, name, timeout=60).acquire(blocking=False)
    server.delete(name)
    assert Lock(server, name, timeout=60).acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        holder.release()


@pytest.mark.parametrize("how", ["token", "script"])
def test_a_release_with_a_copied_token_wakes_a_local_waiter(
    server: Any, name: str, no_backstop: None, how: str
) -> None:
    holder, other, waiter = (Lock(server, name, timeout=60) for _ in range(3))
    if how == "script":
        holder.lua_extend = other.lua_extend = server.register_script("return 1")
    assert holder.acquire()
    waiting = in_thread(waiter.acquire)
    threading.Event().wait(0.1)
    other.local.token = holder.local.token
    other.release()
    assert waiting.result(PATIENCE)


def test_reacquire_uses_a_changed_timeout(server: Any, name: str) -> None:
    lock = Lock(server, name, timeout=2)
    assert lock.acquire()
    lock.timeout = 9
    assert lock.reacquire() is True
    assert 8000 < server.pttl(name) <= 9000
    # As with redis-py, a key without remaining time is deleted.
    assert lock.extend(-20) is True
    assert not server.exists(name)


def test_an_interrupt_before_the_lease_is_recorded_leaves_no_key(server: Any, name: str) -> None:
    class Struck:
        def note(self, lease: Any) -> None:
            raise KeyboardInterrupt

    lock = Lock(server, name, timeout=60)
    lock.local = Struck()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    await_true(lambda: not server.exists(name))


def test_a_signal_handler_may_release_while_its_thread_waits(server: Any, name: str) -> None:
    mine, theirs = Lock(server, name, timeout=60), Lock(server, name + "-2", timeout=60)
    assert mine.acquire()
    server.set(name + "-2", "somebody", px=60_000)
    before = signal.signal(signal.SIGALRM, lambda *_: mine.release())
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        assert not theirs.acquire(blocking_timeout=0.6)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not server.exists(name)


CHILD = """
import os, sys, redis
from redlatch.compat.redis_py import Lock
r = redis.Redis.from_url(sys.argv[1])
lock, other = Lock(r, sys.argv[2], timeout=30), Lock(r, sys.argv[2] + "-2", timeout=30)
assert lock.acquire()
pid = os.fork()
if not pid:
    try:
        lock.release()
    except redis.exceptions.LockNotOwnedError:
        assert r.get(sys.argv[2])
        with other:
            print("has a client of its own", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
assert lock.owned()
lock.release()
"""


def test_a_forked_child_owns_none_of_its_parents_locks(url: str, name: str) -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD, url, name], capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.returncode, ran.stdout) == (0, "has a client of its own\n"), ran.stderr


# --- asyncio --------------------------------------------------------------------------------------------


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_each_task_has_a_token_of_its_own(implementation: impl.Implementation, url: str, name: str) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            lock, holds = AsyncLock(client, name, timeout=0.3), asyncio.Event()

            async def hold_too_long() -> None:
                await lock.acquire()
                holds.set()
                await asyncio.sleep(0.6)
                with pytest.raises(LockNotOwnedError):
                    await lock.release()

            first = asyncio.create_task(hold_too_long())
            await holds.wait()
            lock.timeout = 60
            assert await lock.acquire()
            token = lock.local.token
            await first
            assert await client.get(name) == token
            assert await lock.owned()
            await lock.release()
            assert lock.local.token is None

    run(work())


def test_a_task_without_the_lock_cannot_release_another_tasks_lock(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            lock = AsyncLock(client, name, timeout=60)
            assert await lock.acquire()

            async def try_in_vain() -> None:
                assert not await lock.acquire(blocking=False)
                with pytest.raises(LockError):
                    await lock.release()

            await asyncio.create_task(try_in_vain())
            assert await lock.owned()
            await lock.release()

            async def again() -> None:
                async with lock:
                    had.set()
                    await lock.release()
                    # The other task acquires the lock before this one leaves.
                    await taken.wait()

            had, taken = asyncio.Event(), asyncio.Event()
            leaving = asyncio.create_task(again())
            await had.wait()
            while not await lock.acquire(blocking=False):
                await asyncio.sleep(0.01)
            taken.set()
            with pytest.raises(LockError):
                await leaving
            assert await lock.owned()
            await lock.release()

    run(work())


async def _run_out(lock: AsyncLock) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lock.acquire()


async def _run_out_in_another_task(lock: AsyncLock) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lock.acquire(), 0.05)


async def _be_refused_in_another_task(lock: AsyncLock) -> None:
    assert not await asyncio.create_task(lock.acquire(blocking=False))


@pytest.mark.parametrize("try_in_vain", [_run_out, _run_out_in_another_task, _be_refused_in_another_task])
@pytest.mark.parametrize("holds", [AsyncLock.acquire, lambda lock: asyncio.create_task(lock.acquire())])
def test_a_task_that_gave_up_neither_owns_nor_releases_the_lock_of_another(
    implementation: impl.Implementation, url: str, name: str, try_in_vain: Any, holds: Any
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            lock = AsyncLock(client, name, timeout=60)
            assert await holds(lock)

            async def give_up() -> None:
                await try_in_vain(lock)
                assert not await lock.owned()
                with pytest.raises(LockError):
                    await lock.release()

            await asyncio.create_task(give_up())
            assert await lock.owned()
            await lock.release()
            assert not await client.exists(name)

    run(work())


def test_a_lock_acquired_in_one_loop_is_released_in_the_next(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    client = redis.asyncio.Redis.from_url(url)
    lock = AsyncLock(client, name, timeout=60)

    async def in_a_loop(what: Any) -> None:
        await what()
        await client.connection_pool.disconnect()

    run(in_a_loop(lock.acquire))
    run(in_a_loop(lock.release))
    assert not ask(url).exists(name)


def test_a_task_can_release_a_lock_that_another_task_acquired_for_it(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            lock = AsyncLock(client, name, timeout=5)
            for _ in range(2):
                assert await asyncio.create_task(lock.acquire())
                await lock.release()
                assert not await client.exists(name)
            with pytest.raises(LockError):
                await lock.release()

    run(work())


def test_a_cancelled_release_keeps_the_token_and_can_be_repeated(
    implementation: impl.Implementation, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    async def work(proxy: Any) -> None:
        async with redis.asyncio.Redis.from_url(proxy.url, socket_timeout=PATIENCE) as client:
            lock = AsyncLock(client, name, timeout=60)
            assert await lock.acquire()
            proxy.replies.clear()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lock.release(), 0.2)
            assert lock.local.token is not None
            proxy.replies.set()
            await lock.release()
            assert not await client.exists(name)

    [proxy] = proxies([url])
    run(work(proxy))


def test_a_cancelled_acquire_leaves_no_key(
    implementation: impl.Implementation, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    async def work(proxy: Any) -> None:
        async with redis.asyncio.Redis.from_url(proxy.url, socket_timeout=PATIENCE) as client:
            # This lock lets the client connect.
            async with AsyncLock(client, name + "-2", timeout=60):
                proxy.replies.clear()
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(AsyncLock(client, name, timeout=60).acquire(), 0.3)
                assert proxy.count(b"SET", name) == 1
                while ask(url).exists(name):
                    await asyncio.sleep(0.01)
                proxy.replies.set()

    [proxy] = proxies([url])
    run(work(proxy))


def test_every_event_loop_has_connections_of_its_own(implementation: impl.Implementation, url: str, name: str) -> None:
    client = redis.asyncio.Redis.from_url(url)

    async def work() -> None:
        async with AsyncLock(client, name, timeout=5):
            pass
        await client.connection_pool.disconnect()

    for _ in range(3):
        run(work())
    assert not ask(url).exists(name)


def test_extending_a_lock_that_is_not_held_fails_at_once(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            with pytest.raises(LockError, match="unlocked"):
                # The error comes before anything is awaited.
                AsyncLock(client, name, timeout=5).extend(1)
            lock = AsyncLock(client, name)
            await lock.acquire()
            with pytest.raises(LockError, match="no timeout"):
                lock.extend(1)
            await lock.release()

    run(work())


def test_row_39_a_lock_with_a_shortened_key_is_not_passed_on_with_its_token(server: Any, name: str) -> None:
    lock, waiter = Lock(server, name, timeout=60), Lock(server, name, timeout=5)
    assert lock.acquire()
    token = server.get(name)
    assert lock.extend(20, replace_ttl=True) is True
    assert 19_000 < server.pttl(name) <= 20_000
    release: Callable[[], object] = waiter.release
    waiting = in_thread(lambda: (waiter.acquire(), server.get(name), release()))
    await_true(lambda: name.encode() in client_of([server])._quorum.queues.watches.by_key)
    lock.release()
    won, second, _ = waiting.result(PATIENCE)
    assert won
    # A late copy of the shortening command therefore cannot affect the next holder.
    assert second != token


def test_row_39_a_shorter_extension_of_a_lost_key_raises(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(server, name, timeout=60)
    assert lock.acquire()
    script: Any = lock.lua_extend

    def lose_first(**arguments: Any) -> Any:
        server.delete(name)
        return script(**arguments)

    monkeypatch.setattr(Lock, "lua_extend", staticmethod(lose_first))
    with pytest.raises(LockNotOwnedError):
        lock.extend(20, replace_ttl=True)


def test_row_39_a_shorter_extension_of_an_async_lock_shortens_the_key(
    server: Any, url: str, name: str, implementation: impl.Implementation
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(url)
        lock = AsyncLock(client, name, timeout=60)
        assert await lock.acquire()
        assert await lock.extend(20, replace_ttl=True) is True
        assert 19_000 < server.pttl(name) <= 20_000
        assert await lock.extend(-15) is True
        assert 4000 < server.pttl(name) <= 5000
        assert await lock.reacquire() is True
        assert 59_000 < server.pttl(name) <= 60_000
        await lock.release()
        await client.aclose()

    asyncio.run(main())
