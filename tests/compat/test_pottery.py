"""The drop-in for pottery: real masters that fail, instead of the mocks of its own suite; and the differences."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from support.faces import PATIENCE, ask, await_true, in_thread
from support.proxy import Proxy

from redlatch import impl
from redlatch.compat import pottery
from redlatch.compat.pottery import AIORedlock, Redlock, synchronize


class Both:
    """Both faces, called the same way."""

    def __init__(self, asynchronous: bool, runner: asyncio.Runner) -> None:
        self._asynchronous = asynchronous
        self._runner = runner

    def make(self, urls: list[str], key: str, **options: Any) -> Any:
        clients = redis.asyncio.Redis if self._asynchronous else redis.Redis
        masters = [clients.from_url(url, retry=None) for url in urls]
        return (AIORedlock if self._asynchronous else Redlock)(key=key, masters=masters, **options)

    def __call__(self, method: Any, **options: Any) -> Any:
        async def call() -> Any:
            return await asyncio.wait_for(method(**options), PATIENCE)

        return self._runner.run(call()) if self._asynchronous else method(**options)


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def face(implementation: Any, request: pytest.FixtureRequest) -> Any:
    with asyncio.Runner() as runner:
        yield Both(request.param, runner)


def test_a_lock_has_potterys_key_and_validity(face: Any, three: list[str], name: str) -> None:
    lock = face.make(three, name, auto_release_time=5)
    assert lock.key == f"redlock:{name}"
    assert face(lock.acquire)
    assert [ask(url).get(lock.key) for url in three] == [lock._uuid.encode()] * 3
    assert 0 < face(lock.locked) <= 4.948
    # The refused attempt does not lose the token of the lock that is held.
    assert not face(lock.acquire, blocking=False)
    face(lock.extend)
    face(lock.release)
    assert face(lock.locked) == 0
    assert not any(ask(url).exists(lock.key) for url in three)
    with pytest.raises(pottery.ReleaseUnlockedLock) as caught:
        face(lock.release)
    assert (caught.value.key, caught.value.masters, caught.value.redis_errors) == (lock.key, lock.masters, [])


def test_masters_that_are_down_form_no_quorum(
    face: Any, three: list[str], closed_ports: Callable[[int], list[str]], name: str
) -> None:
    lock = face.make([three[0], *closed_ports(2)], name)
    assert not face(lock.acquire, blocking=False)
    assert not face(lock.acquire, timeout=0.3)
    with pytest.raises(pottery.QuorumIsImpossible) as caught:
        face(lock.acquire, raise_on_redis_errors=True)
    errors: Any = caught.value.redis_errors
    assert len(errors) == 2
    assert all(isinstance(error, redis.RedisError) for error in errors)
    assert not ask(three[0]).exists(lock.key)


@pytest.mark.usual("both faces of the lock share the rules", {"face": True})
def test_calls_raise_potterys_errors_after_a_quorum_fails_during_the_hold(
    face: Any, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    lock = face.make([proxy.url for proxy in before], name, auto_release_time=20)
    assert face(lock.acquire)
    for proxy in before[1:]:
        proxy.refusing = True
        proxy.cut()
    assert face(lock.locked) == 0
    with pytest.raises(pottery.QuorumIsImpossible):
        face(lock.locked, raise_on_redis_errors=True)
    with pytest.raises(pottery.ExtendUnlockedLock):
        face(lock.extend)
    with pytest.raises(pottery.QuorumIsImpossible):
        face(lock.extend, raise_on_redis_errors=True)
    with pytest.raises(pottery.ReleaseUnlockedLock) as caught:
        face(lock.release)
    assert caught.value.redis_errors
    for proxy in before[1:]:
        proxy.refusing = False
    # The release may be repeated until a quorum is back.
    for _ in range(100):
        try:
            face(lock.release)
            break
        except pottery.ReleaseUnlockedLock:
            threading.Event().wait(0.05)
    await_true(lambda: not any(ask(url).exists(lock.key) for url in three))


def test_extensions_are_counted_until_the_next_acquire(face: Any, three: list[str], name: str) -> None:
    lock = face.make(three, name, num_extensions=2)
    with pytest.raises(pottery.ExtendUnlockedLock):
        face(lock.extend)
    for _ in range(2):
        assert face(lock.acquire)
        face(lock.extend)
        face(lock.extend)
        with pytest.raises(pottery.TooManyExtensions):
            face(lock.extend)
        face(lock.release)


def test_databases_of_one_server_count_as_masters_as_in_pottery(
    face: Any, single_master: Callable[[], str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = single_master()
    lock = face.make([f"{url}/{number}" for number in range(3)], name)
    assert face(lock.acquire)
    assert [redis.Redis.from_url(url, db=number).exists(lock.key) for number in range(3)] == [1, 1, 1]
    face(lock.release)
    assert "they fail together" in caplog.text


def test_a_release_wakes_a_waiter(
    implementation: impl.Implementation, three: list[str], name: str, no_backstop: None
) -> None:
    make = Both(False, None).make  # type: ignore[arg-type]
    holder, waiter = make(three, name, auto_release_time=60), make(three, name, auto_release_time=60)
    assert holder.acquire()
    waiting = in_thread(waiter.acquire)
    threading.Event().wait(0.1)
    holder.release()
    assert waiting.result(PATIENCE)
    waiter.release()


def test_a_synchronized_function_runs_once_at_a_time(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    masters, inside, seen = [redis.Redis.from_url(url) for url in three], [], []

    @synchronize(key=name, masters=masters, auto_release_time=60)
    def work(value: int) -> int:
        inside.append(value)
        seen.append(len(inside))
        threading.Event().wait(0.02)
        inside.remove(value)
        return value

    calls = [in_thread(work, value) for value in range(5)]
    assert sorted(call.result(PATIENCE) for call in calls) == list(range(5))
    assert seen == [1] * 5
    assert work.__name__ == "work"


def test_a_timeout_for_a_call_that_does_not_block_is_refused(face: Any, three: list[str], name: str) -> None:
    with pytest.raises(ValueError, match="can't specify a timeout"):
        face.make(three, name, context_manager_blocking=False, context_manager_timeout=1)
    with pytest.raises(ValueError, match="can't specify a timeout"):
        face(face.make(three, name).acquire, blocking=False, timeout=1)


def test_a_ttl_that_leaves_no_validity_is_refused_at_once(face: Any, three: list[str], name: str) -> None:
    lock = face.make(three, name, auto_release_time=0.001)
    assert not face(lock.acquire)
    assert not any(ask(url).exists(lock.key) for url in three)
