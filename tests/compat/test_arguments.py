"""Odd arguments: a drop-in treats them as its original does. Most tests run on both."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from support.faces import PATIENCE

from redlatch import impl
from redlatch.compat import redis_py

WHOSE = pytest.mark.parametrize("whose", ["theirs", "ours"])


def module_of(whose: str, name: str) -> Any:
    return importlib.import_module(name if whose == "theirs" else f"redlatch.compat.{name}")


# --- redis-py -----------------------------------------------------------------------------------------


class Face:
    """redis-py's lock or the drop-in, for threads or asyncio, called the same way."""

    def __init__(self, whose: str, asynchronous: bool, url: str, runner: asyncio.Runner) -> None:
        self._asynchronous, self._runner = asynchronous, runner
        self.client: Any = (redis.asyncio.Redis if asynchronous else redis.Redis).from_url(url)
        theirs = redis.asyncio.lock.Lock if asynchronous else redis.lock.Lock
        self.kind: Any = theirs if whose == "theirs" else redis_py.AsyncLock if asynchronous else redis_py.Lock

    def lock(self, name: Any, **options: Any) -> Any:
        return self.kind(self.client, name, **options)

    def __call__(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            said = call()
            return await asyncio.wait_for(said, PATIENCE) if isinstance(said, Awaitable) else said

        return self._runner.run(run()) if self._asynchronous else call()

    def close(self) -> None:
        self(self.client.aclose if self._asynchronous else self.client.close)


@pytest.fixture(params=["theirs", "ours"])
def whose(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def face(implementation: Any, whose: str, request: pytest.FixtureRequest, url: str) -> Any:
    with asyncio.Runner() as runner:
        face = Face(whose, request.param, url, runner)
        yield face
        face.close()


@pytest.mark.parametrize("kind", [memoryview, bytearray])
def test_a_name_may_be_any_kind_of_bytes(kind: Any, face: Any, url: str, name: str) -> None:
    lock = face.lock(kind(name.encode()), timeout=5)
    with redis.Redis.from_url(url) as server:
        assert face(lambda: lock.acquire(blocking=False))
        assert server.exists(name)
        assert face(lock.owned)
        assert face(lambda: lock.extend(1))
        assert not face(lambda: face.lock(name, timeout=5).acquire(blocking=False))
        face(lock.release)
        assert not server.exists(name)


@pytest.mark.parametrize("timeout", ["5", 1e20])
def test_a_timeout_out_of_range_is_refused_with_the_error_of_the_server(
    timeout: float | str, face: Any, name: str
) -> None:
    with pytest.raises(redis.ResponseError, match="value is not an integer or out of range"):
        face(lambda: face.lock(name, timeout=timeout).acquire())


def test_a_negative_sleep_is_harmless_when_the_lock_is_free(face: Any, name: str) -> None:
    lock = face.lock(name, timeout=5, sleep=-1)
    assert face(lambda: lock.acquire(blocking_timeout=1))
    assert face(lock.owned)
    assert face(lambda: lock.extend(1))
    face(lock.release)
    assert not face(lock.locked)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@WHOSE
def test_a_negative_sleep_fails_in_a_waiting_thread_and_not_in_a_waiting_task(
    asynchronous: bool, whose: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    with asyncio.Runner() as runner:
        face = Face(whose, asynchronous, url, runner)
        # Only the task waits for longer than this ttl.
        ttl = 0.3 if asynchronous else 30
        assert face(lambda: face.lock(name, timeout=ttl).acquire(blocking=False))
        late = face.lock(name, timeout=5, sleep=-1)
        # The task retries without a pause, for one second longer than its timeout.
        if asynchronous:
            assert face(lambda: late.acquire(blocking_timeout=0.1))
        else:
            with pytest.raises(ValueError, match="sleep length must be non-negative"):
                late.acquire(blocking_timeout=0.1)
            assert late.acquire(blocking_timeout=-2) is False
        face.close()


@pytest.mark.parametrize("sleep", ["x", None, [1]])
def test_a_sleep_that_is_not_a_number_is_refused_when_the_lock_is_taken(
    sleep: Any, face: Any, url: str, name: str
) -> None:
    with redis.Redis.from_url(url) as server:
        server.set(name, "somebody's")
        lock = face.lock(name, timeout=5)
        lock.sleep = sleep
        with pytest.raises(TypeError):
            face(lambda: lock.acquire(blocking_timeout=1))
        server.delete(name)


# --- redlock-py ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, None, ("host", 1)])
@WHOSE
def test_a_master_that_is_not_a_client_fails_at_the_first_lock(
    whose: Any, bad: Any, implementation: impl.Implementation, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    redlock = module_of(whose, "redlock")
    manager = redlock.Redlock([bad])
    with pytest.raises(AttributeError, match=f"'{type(bad).__name__}' object has no attribute 'set'"):
        manager.lock(name, 1000)
    with caplog.at_level(logging.ERROR):
        assert manager.unlock(redlock.Lock(1, name, b"token")) is None
    assert f"Error unlocking resource {name}" in caplog.text


# --- pottery ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-5, -0.5, float("nan")])
@WHOSE
def test_a_negative_timeout_expires_before_any_command_is_sent(
    whose: Any, timeout: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    pottery = module_of(whose, "pottery")
    with redis.Redis.from_url(url) as master:
        lock = pottery.Redlock(key=name, masters={master})
        assert lock.acquire(timeout=timeout) is False
        with pytest.raises(pottery.QuorumNotAchieved):
            pottery.Redlock(key=name, masters={master}, context_manager_timeout=timeout).__enter__()
        assert not master.exists(lock.key)

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(url) as master:
            lock = pottery.AIORedlock(key=name, masters={master})
            assert await lock.acquire(timeout=timeout) is False
            assert not await master.exists(lock.key)

    asyncio.run(work())


@WHOSE
def test_a_wait_is_logged_once_and_an_immediate_acquire_is_not(
    whose: Any,
    implementation: impl.Implementation,
    single_master: Callable[[], str],
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pottery = module_of(whose, "pottery")
    # The wait takes 0.3 s.
    monkeypatch.setattr("redlatch.compat.pottery.base.AT_ONCE_NS", 200_000_000)
    with redis.Redis.from_url(single_master()) as master, caplog.at_level(logging.INFO, logger="pottery"):
        lock = pottery.Redlock(key=name, masters={master}, auto_release_time=0.3)
        assert lock.acquire()
        assert "enqueued" not in caplog.text
        assert lock.acquire()
        assert caplog.text.count("enqueued") == 1
        assert f"sample#redlock.acquired.{name}=1" in caplog.text
        lock.release()


def test_a_wait_in_a_task_is_logged_once(
    implementation: impl.Implementation,
    single_master: Callable[[], str],
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = module_of("ours", "pottery")
    # The wait takes 0.3 s.
    monkeypatch.setattr("redlatch.compat.pottery.base.AT_ONCE_NS", 200_000_000)

    async def work() -> None:
        async with redis.asyncio.Redis.from_url(single_master()) as master:
            lock = ours.AIORedlock(key=name, masters={master}, auto_release_time=0.3)
            assert await lock.acquire()
            assert "enqueued" not in caplog.text
            assert await lock.acquire()
            assert caplog.text.count("enqueued") == 1
            await lock.release()

    with caplog.at_level(logging.INFO, logger="pottery"):
        asyncio.run(work())
