"""Row 59: clients that change commands before they send them, and tools that only watch commands."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from support.faces import PATIENCE, in_thread
from support.proxy import Proxy

from redlatch import impl
from redlatch.compat import aioredlock, clients, pottery, redis_lock, redis_py, redlock, shared


def prefixed(words: tuple[Any, ...]) -> tuple[Any, ...]:
    """Put "A_" before the keys of a lock's commands, as kombu's `PrefixedStrictRedis` does."""
    command = str(words[0]).upper()
    at = 3 if command == "EVALSHA" else 1
    if command not in ("SET", "GET", "EVALSHA", "PTTL", "EXISTS"):
        return words
    return (*words[:at], "A_" + str(words[at]), *words[at + 1 :])


class Prefixed(redis.Redis):
    def execute_command(self, *words: Any, **options: Any) -> Any:
        parent: Any = super()
        return parent.execute_command(*prefixed(words), **options)


class AsyncPrefixed(redis.asyncio.Redis):
    # It returns an awaitable.
    def execute_command(self, *words: Any, **options: Any) -> Any:
        parent: Any = super()
        return parent.execute_command(*prefixed(words), **options)


class Harmless(redis.Redis):
    """A subclass that changes no command."""

    def ping(self, **options: Any) -> Any:
        return super().ping(**options)


BOTH = pytest.mark.parametrize("kind", [redis.lock.Lock, redis_py.Lock], ids=["theirs", "ours"])
BOTH_ASYNC = pytest.mark.parametrize("kind", [redis.asyncio.lock.Lock, redis_py.AsyncLock], ids=["theirs", "ours"])


@BOTH
def test_row_59_a_client_that_changes_keys_locks_its_own_key(
    kind: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    with Prefixed.from_url(url) as client, redis.Redis.from_url(url) as plain:
        lock = kind(client, name, timeout=10)
        assert lock.acquire(blocking=False)
        assert plain.exists(f"A_{name}") and not plain.exists(name)
        assert lock.locked() and lock.owned()
        assert not kind(client, name, timeout=10).acquire(blocking=False)
        assert kind(plain, name, timeout=10).acquire(blocking=False)
        assert lock.extend(10)
        assert lock.reacquire()
        lock.release()
        assert not plain.exists(f"A_{name}")
        assert plain.exists(name)


@BOTH
def test_row_59_a_waiter_gets_the_lock_on_a_changed_key_after_its_release(
    kind: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    refused = threading.Event()

    class Noting(Prefixed):
        """Records when a SET finds the key taken."""

        def execute_command(self, *words: Any, **options: Any) -> Any:
            reply = super().execute_command(*words, **options)
            if words[0] == "SET" and not reply:
                refused.set()
            return reply

    with Noting.from_url(url) as client:
        lock = kind(client, name, timeout=10, thread_local=False)
        assert lock.acquire()
        waiter = kind(client, name, timeout=10, sleep=0.01, thread_local=False)
        waiting = in_thread(lambda: waiter.acquire(blocking_timeout=PATIENCE))
        assert refused.wait(PATIENCE)
        lock.release()
        assert waiting.result(PATIENCE)
        with pytest.raises(redis.exceptions.LockError):
            lock.release()
        waiter.release()


@BOTH_ASYNC
def test_row_59_an_asyncio_client_that_changes_keys_locks_its_own_key(
    kind: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with AsyncPrefixed.from_url(url) as client, redis.asyncio.Redis.from_url(url) as plain:
            lock = kind(client, name, timeout=10)
            assert await lock.acquire(blocking=False)
            assert await plain.exists(f"A_{name}") and not await plain.exists(name)
            assert await lock.locked() and await lock.owned()
            assert await lock.extend(10)
            assert not await kind(client, name, timeout=10).acquire(blocking=False)
            await lock.release()
            assert not await plain.exists(f"A_{name}")

    asyncio.run(work())


@BOTH
def test_row_59_a_client_whose_instance_was_patched_locks_its_own_key(
    kind: Any, implementation: impl.Implementation, url: str, name: str
) -> None:
    with redis.Redis.from_url(url) as client, redis.Redis.from_url(url) as plain:
        own = client.execute_command
        client.execute_command = lambda *words, **options: own(*prefixed(words), **options)
        with kind(client, name, timeout=10):
            assert plain.exists(f"A_{name}") and not plain.exists(name)
        assert not plain.exists(f"A_{name}")


@pytest.mark.parametrize(
    "what", ["execute_command", "pipeline", "register_script", "evalsha", "set", "parse_response", "get"]
)
def test_row_59_a_client_that_overrides_any_method_of_a_lock_keeps_redis_pys_algorithm(
    what: str, implementation: impl.Implementation, url: str, name: str
) -> None:
    kind: Any = type(
        "Own", (redis.Redis,), {what: lambda self, *words, **options: getattr(redis.Redis, what)(self, *words)}
    )
    with kind.from_url(url) as client:
        assert what in shared.override_of(client)
        assert clients.home_of(client) is None


def test_row_59_an_object_that_only_looks_like_a_client_keeps_redis_pys_algorithm(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    class Wrapper:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, what: str) -> Any:
            return getattr(self._client, what)

        def set(self, key: str, *words: Any, **options: Any) -> Any:
            return self._client.set(f"B_{key}", *words, **options)

    with redis.Redis.from_url(url) as plain:
        assert redis_py.Lock(Wrapper(plain), name, timeout=10).acquire(blocking=False)
        assert plain.exists(f"B_{name}")


# --- instrumentation ----------------------------------------------------------------------------------


class Bound:
    """A wrapper as wrapt makes it: it shows the wrapped function and calls another one."""

    def __init__(self, wrapped: Any, wrapper: Any) -> None:
        self.__wrapped__, self._self_wrapper = wrapped, wrapper

    def __getattr__(self, what: str) -> Any:
        return getattr(self.__wrapped__, what)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return Bound(self.__wrapped__.__get__(instance, owner), self._self_wrapper)

    def __call__(self, *words: Any, **options: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, *words, **options)


def traced(call: Any, *words: Any, **options: Any) -> Any:
    return call(*words, **options)


traced.__module__ = "opentelemetry.instrumentation.redis"


@pytest.mark.parametrize("how", ["wrapt", "function"])
@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis, Harmless])
def test_row_59_a_tool_that_wraps_redis_pys_methods_is_no_override(
    how: str, kind: Any, implementation: impl.Implementation, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = redis.Redis if kind is Harmless else kind
    own = base.__dict__["execute_command"]

    @functools.wraps(own)
    def function(self: Any, *words: Any, **options: Any) -> Any:
        return own(self, *words, **options)

    monkeypatch.setattr(base, "execute_command", Bound(own, traced) if how == "wrapt" else function)
    assert shared.override_of(kind.from_url(url)) == ""


def test_row_59_a_tool_that_wraps_a_method_of_one_client_is_no_override(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    with redis.Redis.from_url(url) as client:
        client.execute_command = Bound(client.execute_command, traced)
        assert shared.override_of(client) == ""
        with redis_py.Lock(client, name, timeout=10) as lock:
            assert lock.owned()
            # Only our algorithm sets a lease.
            assert lock.local.lease is not None


def test_row_59_a_tool_around_an_override_does_not_hide_it(implementation: impl.Implementation, url: str) -> None:
    with redis.Redis.from_url(url) as client:
        own = client.execute_command
        client.execute_command = Bound(lambda *words: own(*prefixed(words)), traced)
        assert "execute_command" in shared.override_of(client)


def test_a_plain_client_and_a_harmless_subclass_use_our_algorithm(
    implementation: impl.Implementation, url: str
) -> None:
    for kind in (redis.Redis, Harmless):
        with kind.from_url(url) as client:
            assert clients.home_of(client) is not None


# --- the other drop-ins, which have no original to fall back to ----------------------------------------


def test_row_59_the_other_drop_ins_refuse_a_client_that_changes_keys(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    with Prefixed.from_url(url) as client, redis.Redis.from_url(url) as plain:
        for call in (
            lambda: redlock.Redlock([client]),
            lambda: pottery.Redlock(key=name, masters={client}).acquire(),
            lambda: redis_lock.Lock(client, name, expire=10).acquire(),
        ):
            with pytest.raises(TypeError, match=r"Prefixed\.execute_command may change keys"):
                call()
        assert not plain.keys(f"*{name}")


def test_row_59_the_asyncio_drop_ins_refuse_a_client_that_changes_keys(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    async def work() -> None:
        async with AsyncPrefixed.from_url(url) as client:
            for call in (
                lambda: pottery.AIORedlock(key=name, masters={client}).acquire(),
                lambda: aioredlock.Aioredlock([client]).lock(name, 10),
            ):
                with pytest.raises(TypeError, match=r"AsyncPrefixed\.execute_command may change keys"):
                    await call()

    asyncio.run(work())


# --- a dead server ------------------------------------------------------------------------------------


def server_at(address: str) -> dict[str, Any]:
    where = {"unix_socket_path": address} if address.startswith("/") else {"host": address, "port": 1}
    return {**where, "retry": None}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "/nowhere.sock"])
def test_row_59_the_error_for_a_dead_server_names_it_as_redis_pys_does(
    address: str, implementation: impl.Implementation
) -> None:
    said = []
    for kind in (redis.lock.Lock, redis_py.Lock):
        with redis.Redis(**server_at(address)) as client:
            with pytest.raises(redis.ConnectionError) as raised:
                kind(client, "name", timeout=5).acquire(blocking=False)
            said.append(str(raised.value))
    assert said[0] == said[1]
    assert "Error 2 connecting to /nowhere.sock." in said[0] or f"Error 111 connecting to {address}:1." in said[0]


def test_row_59_the_asyncio_error_for_a_dead_server_names_it(implementation: impl.Implementation) -> None:
    async def work(kind: Any) -> str:
        async with redis.asyncio.Redis(**server_at("127.0.0.1")) as client:
            with pytest.raises(redis.ConnectionError) as raised:
                await kind(client, "name", timeout=5).acquire(blocking=False)
            return str(raised.value)

    assert "Error 111 connecting to 127.0.0.1:1." in asyncio.run(work(redis_py.AsyncLock))
    assert "connecting to 127.0.0.1:1." in asyncio.run(work(redis.asyncio.lock.Lock))


def test_row_59_an_error_of_a_release_names_the_server_too(
    implementation: impl.Implementation, proxies: Callable[[list[str]], list[Proxy]], url: str, name: str
) -> None:
    [proxy] = proxies([url])
    with redis.Redis.from_url(proxy.url, socket_timeout=0.3) as client:
        lock = redis_py.Lock(client, name, timeout=30)
        assert lock.acquire()
        proxy.replies.clear()
        with pytest.raises(redis.TimeoutError, match=f"Timeout reading from 127.0.0.1:{proxy.port}"):
            lock.release()
        proxy.replies.set()
