"""The locks of Django's caches and the clients of the setting REDLATCH, with Django, django-redis and real servers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError
from support import project
from support.faces import PATIENCE, ask, await_true, in_thread
from support.masters import Keys

from redlatch import AsyncClient, Client, ConfigurationError, QuorumUnavailable, impl
from redlatch.testing import Cluster, Masters, cluster

from .conftest import Serve

project.configure()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.cache import caches  # noqa: E402
from django.core.cache.backends.redis import RedisCache as PlainRedisCache  # noqa: E402
from django.core.cache.backends.redis import RedisCacheClient  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.debug import SafeExceptionReporterFilter  # noqa: E402
from django_redis.cache import RedisCache as PlainDjangoRedisCache  # noqa: E402
from django_redis.pool import ConnectionFactory  # noqa: E402

from redlatch.compat.redis_py import Lock as DropIn  # noqa: E402
from redlatch.django import cache as cache_module  # noqa: E402
from redlatch.django import clients, get_async_client, get_client  # noqa: E402
from redlatch.django.locks import AsyncCacheLock, CacheLock  # noqa: E402

BACKENDS = {
    "django": "redlatch.django.cache.RedisCache",
    "django-redis": "redlatch.django.django_redis_cache.RedisCache",
}

Fleet = Callable[..., Masters]

# Makes a cache of one of the two backends.
MakeCache = Callable[..., Any]


@pytest.fixture(params=list(BACKENDS))
def make_cache(request: pytest.FixtureRequest, implementation: impl.Implementation, url: str) -> Iterator[MakeCache]:
    """Make the default cache of a project, for both backends in turn; `masters` puts its locks on these."""
    with contextlib.ExitStack() as stack:

        def make(masters: list[str] | None = None, location: Any = url, **options: Any) -> Any:
            entry = {"BACKEND": BACKENDS[request.param], "LOCATION": location}
            setting = {} if masters is None else {"default": {"MASTERS": masters, "OPTIONS": options}}
            stack.enter_context(project.overridden(CACHES={"default": entry}, REDLATCH=setting))
            return caches["default"]

        yield make


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)
    loop.close()


class Blocking:
    """A lock of either face. Its calls block. Those of `alock` run in tasks of their own."""

    def __init__(self, lock: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.raw = lock
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.raw, name)
        if isinstance(self.raw, AsyncCacheLock) and callable(value):
            return lambda *args, **named: self._run(value(*args, **named))
        return value

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


MakeLock = Callable[..., Any]


@pytest.fixture(params=["lock", "alock"])
def make(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> MakeLock:
    """Make a lock of a cache, of each face in turn, which any thread or task may release."""
    return lambda cache, *args, **named: Blocking(
        getattr(cache, request.param)(*args, thread_local=False, **named), loop
    )


# --- where the locks are --------------------------------------------------------------------------------


def test_without_the_setting_a_lock_is_the_drop_in_on_the_caches_own_server(
    make_cache: MakeCache, url: str, name: str
) -> None:
    cache = make_cache()
    lock = cache.lock(name, version=3, timeout=20.0)
    assert type(lock) is DropIn
    with lock:
        assert cache.has_key(name, version=3)
        assert 15 < ask(url).ttl(f":3:{name}") <= 20
        assert not ask(url).lock(f":3:{name}").acquire(blocking=False)
    assert not cache.has_key(name, version=3)


def test_both_faces_exclude_each_other_on_the_caches_own_server(
    make_cache: MakeCache, make: MakeLock, url: str, name: str
) -> None:
    cache = make_cache()
    lock, other = make(cache, name), cache.lock(name, blocking=False)
    assert lock.acquire()
    assert not other.acquire()
    assert 25 < ask(url).ttl(f":1:{name}") <= 30
    lock.release()
    assert other.acquire()
    assert not make(cache, name).acquire(blocking=False)
    other.release()


def test_with_the_setting_a_lock_is_on_a_quorum_of_its_masters(
    make_cache: MakeCache, make: MakeLock, three: list[str], keys: Keys, name: str
) -> None:
    cache = make_cache(three, ttl=5.0, prefix="shop:")
    lock = make(cache, name)
    assert lock.acquire()
    await_true(lambda: len(keys(three, f"shop::1:{name}")) == 3)
    assert all(4000 < left <= 5000 for left in keys(three, f"shop::1:{name}").values())
    assert not cache.has_key(name)
    assert not make(cache, name).acquire(blocking=False)
    with Client(three, prefix="shop:") as client:
        assert not client.lock(f":1:{name}").acquire(blocking=False)
        lock.release()
        assert client.lock(f":1:{name}").acquire(timeout=PATIENCE)


def test_a_cache_may_name_its_alias(implementation: impl.Implementation, url: str, three: list[str]) -> None:
    entry = {"BACKEND": BACKENDS["django"], "LOCATION": url}
    others = {"jobs": entry | {"REDLATCH": "jobs"}, "own": entry | {"REDLATCH": None}}
    masters = {"default": {"MASTERS": url}, "jobs": {"MASTERS": three}}
    with project.overridden(CACHES={"default": entry} | others, REDLATCH=masters):
        assert [caches[name].lock_alias for name in ("default", "jobs", "own")] == ["default", "jobs", None]
        assert type(caches["own"].lock("a")) is DropIn
        lock = caches["jobs"].lock("a")
        assert isinstance(lock, CacheLock)
        with lock:
            assert lock.lock is not None
            assert len(lock.lock._shared.quorum.masters) == 3


def test_a_client_of_another_server_may_be_given(
    make_cache: MakeCache, make: MakeLock, three: list[str], name: str
) -> None:
    other = redis.Redis.from_url(three[0])
    lock = make(make_cache(), name, client=other)
    assert lock.acquire()
    assert other.exists(f":1:{name}")
    lock.release()
    with pytest.raises(TypeError, match="give no client"):
        make(make_cache(three), name, client=other)
    other.close()


def test_the_shard_of_a_key_has_its_lock(implementation: impl.Implementation, three: list[str], name: str) -> None:
    entry = {
        "BACKEND": BACKENDS["django-redis"],
        "LOCATION": three,
        "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
    }
    with project.overridden(CACHES={"default": entry}):
        shards = set()
        for number in range(20):
            with caches["default"].lock(f"{name}:{number}"):
                [shard] = [url for url in three if ask(url).exists(f":1:{name}:{number}")]
                assert caches["default"].has_key(f"{name}:{number}")
                shards.add(shard)
        assert len(shards) > 1


class ClientOfCluster(RedisCacheClient):  # type: ignore[misc]
    """Django's client of a cache, on a cluster."""

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        return cluster_at(self._servers[0])


class CacheOnCluster(cache_module.RedisCache):
    """A cache of Django on a cluster."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = ClientOfCluster


class FactoryOfCluster(ConnectionFactory):  # type: ignore[misc]
    """Connections of django-redis to a cluster."""

    def connect(self, url: str) -> Any:
        return cluster_at(url)


@functools.cache
def cluster_at(url: str) -> redis.RedisCluster:
    place = urlsplit(url)
    return redis.RedisCluster(host=place.hostname, port=place.port or 6379)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    made = cluster(3, replicas=0)
    with made:
        yield made
        cluster_at(made.urls[0]).close()
        cluster_at.cache_clear()


@pytest.mark.parametrize(
    "entry",
    [
        {"BACKEND": f"{__name__}.CacheOnCluster"},
        {"BACKEND": BACKENDS["django-redis"], "OPTIONS": {"CONNECTION_FACTORY": f"{__name__}.FactoryOfCluster"}},
    ],
)
def test_a_cache_on_a_cluster_has_its_locks_there(
    implementation: impl.Implementation, make: MakeLock, nodes: Cluster, name: str, entry: Any
) -> None:
    with project.overridden(CACHES={"default": entry | {"LOCATION": nodes.urls[0]}}):
        cache = caches["default"]
        for number in range(12):
            lock, other = make(cache, f"{name}-{number}", timeout=20.0), cache.lock(f"{name}-{number}", blocking=False)
            assert type(other) is DropIn
            assert lock.acquire()
            assert not other.acquire() and cache.has_key(f"{name}-{number}")
            lock.release()
            assert other.acquire() and other.local.lease is not None
            assert not make(cache, f"{name}-{number}").acquire(blocking=False)
            other.release()


def test_the_cache_of_python_redis_lock_may_be_on_a_cluster(
    implementation: impl.Implementation, nodes: Cluster, name: str
) -> None:
    entry = {
        "BACKEND": "redlatch.compat.redis_lock.django_cache.RedisCache",
        "OPTIONS": {"CONNECTION_FACTORY": f"{__name__}.FactoryOfCluster"},
        "LOCATION": nodes.urls[0],
    }
    with project.overridden(CACHES={"default": entry}):
        cache = caches["default"]
        with cache.lock(f"{{{name}}}", expire=5):
            assert not cache.lock(f"{{{name}}}", expire=5).acquire(blocking=False)
        assert cache.locked_get_or_set(name, lambda: 7, lock_key=f"{{{name}}}") == 7
        with pytest.raises(ConfigurationError, match=r"write a hash tag: '\{get_or_set:other\}'"):
            cache.locked_get_or_set("other", lambda: 7)


def test_a_client_of_a_cluster_may_be_given(make_cache: MakeCache, make: MakeLock, nodes: Cluster, name: str) -> None:
    other = cluster_at(nodes.urls[0])
    lock = make(make_cache(), name, client=other)
    assert lock.acquire()
    assert other.exists(f":1:{name}")
    lock.release()


@pytest.mark.parametrize("by_url", [False, True])
def test_the_setting_may_name_a_cluster(
    make_cache: MakeCache, make: MakeLock, nodes: Cluster, name: str, by_url: bool
) -> None:
    masters: Any = nodes.url if by_url else cluster_at(nodes.urls[0])
    lock = make(make_cache(masters, prefix="shop:"), name)
    assert lock.acquire()
    assert cluster_at(nodes.urls[0]).exists(f"shop::1:{name}")
    lock.release()


# --- the interface of redis-py --------------------------------------------------------------------------


def test_a_lock_that_is_held_is_not_won(make_cache: MakeCache, make: MakeLock, three: list[str], name: str) -> None:
    cache = make_cache(three)
    first = make(cache, name)
    assert first.acquire()
    assert (first.locked(), first.owned()) == (True, True)
    second = make(cache, name, blocking_timeout=0.05)
    assert not second.acquire()
    assert not second.acquire(blocking=False)
    assert not make(cache, name).acquire(blocking_timeout=0.05)
    assert not make(cache, name, blocking=False).acquire()
    assert (second.locked(), second.owned()) == (True, False)
    with pytest.raises(LockError, match="Cannot release a lock that's not owned"):
        second.release()
    first.release()
    assert (first.locked(), first.owned()) == (False, False)
    with pytest.raises(LockError, match="Cannot release a lock that's not owned"):
        first.release()


def test_a_release_wakes_a_waiter(make_cache: MakeCache, make: MakeLock, three: list[str], name: str) -> None:
    cache = make_cache(three)
    first, second = make(cache, name), make(cache, name, blocking_timeout=PATIENCE)
    assert first.acquire()
    won = in_thread(second.acquire)
    first.release()
    assert won.result(PATIENCE)
    second.release()


def test_an_extension_adds_or_replaces(make_cache: MakeCache, make: MakeLock, three: list[str], name: str) -> None:
    lock = make(make_cache(three), name, timeout=10.0)
    with pytest.raises(LockError, match="Cannot extend"):
        lock.extend(5.0)
    assert lock.acquire()
    left = lock.raw.lock.remaining()
    assert lock.extend(20.0) is True
    assert left + 15 < lock.raw.lock.remaining() <= left + 20
    assert lock.extend(15.0, replace_ttl=True) is True
    assert 10 < lock.raw.lock.remaining() < 15
    assert lock.reacquire() is True
    assert 5 < lock.raw.lock.remaining() < 10
    lock.release()


def test_a_lock_without_a_timeout_is_renewed_and_cannot_be_extended(
    make_cache: MakeCache, make: MakeLock, three: list[str], name: str
) -> None:
    lock = make(make_cache(three, ttl=1.0), name)
    assert lock.acquire()
    first = lock.raw.lock.deadline_ns
    await_true(lambda: lock.raw.lock.deadline_ns > first + 300_000_000)
    for call in (lambda: lock.extend(1.0), lock.reacquire):
        with pytest.raises(LockError, match="a lock with no timeout"):
            call()
    lock.release()


def test_a_lock_that_was_lost_is_not_owned_any_more(
    make_cache: MakeCache, make: MakeLock, three: list[str], name: str
) -> None:
    cache = make_cache(three)
    lock = make(cache, name, timeout=10.0)
    assert lock.acquire()
    for url in three:
        ask(url).delete(f":1:{name}")
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError, match="Cannot extend a lock that's no longer owned"):
        lock.extend(1.0)
    with pytest.raises(LockNotOwnedError, match="Cannot release a lock that's no longer owned"):
        lock.release()
    assert lock.acquire()
    lock.release()


def test_a_with_statement_releases_after_an_error_and_an_interrupt(
    make_cache: MakeCache, three: list[str], name: str
) -> None:
    cache = make_cache(three)
    lock = cache.lock(name, blocking=False)
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), lock:
            raise error
    with lock, pytest.raises(LockError, match="within the time"), cache.lock(name, blocking=False):
        raise AssertionError("it has the lock")
    assert not lock.locked()


def test_an_interrupted_wait_leaves_nothing(
    make_cache: MakeCache, three: list[str], keys: Keys, name: str, strike: Callable[[float], None]
) -> None:
    cache = make_cache(three)
    with cache.lock(name):
        strike(0.1)
        with pytest.raises(KeyboardInterrupt):
            cache.lock(name).acquire()
    await_true(lambda: keys(three, f":1:{name}") == {})


def test_an_interrupt_before_the_release_does_not_keep_the_lock(
    make_cache: MakeCache, three: list[str], keys: Keys, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    # A lock without a timeout is renewed as long as its object lives.
    lock = make_cache(three).lock(name)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), lock:
        patched.setattr(CacheLock, "_held", strike)
    await_true(lambda: keys(three, f":1:{name}") == {})


def test_only_the_thread_that_acquired_a_lock_can_release_it(
    make_cache: MakeCache, three: list[str], name: str
) -> None:
    cache = make_cache(three)
    lock = cache.lock(name)
    assert lock.acquire()
    with pytest.raises(LockError, match="not owned"):
        in_thread(lock.release).result(PATIENCE)
    assert in_thread(lambda: lock.lock).result(PATIENCE) is None
    lock.release()
    shared = cache.lock(name, thread_local=False)
    assert shared.acquire()
    in_thread(shared.release).result(PATIENCE)


def test_a_quorum_that_is_gone_is_an_error_of_redlatch(make_cache: MakeCache, make: MakeLock, fleet: Fleet) -> None:
    masters = fleet(3)
    cache = make_cache(masters.urls, attempt_timeout=0.2)
    lock = make(cache, "a", timeout=5.0)
    assert lock.acquire()
    masters.kill(0)
    masters.kill(1)
    for call in (make(cache, "b").acquire, lambda: lock.extend(1.0), lock.owned, lock.locked, lock.release):
        with pytest.raises(QuorumUnavailable):
            call()


def test_a_server_of_a_cache_that_is_gone_is_an_error_of_redis_py(
    make_cache: MakeCache, make: MakeLock, fleet: Fleet
) -> None:
    masters = fleet(1)
    cache = make_cache(None, masters.urls[0])
    lock = make(cache, "a", timeout=5.0)
    assert lock.acquire()
    masters.kill(0)
    for call in (make(cache, "b").acquire, lock.release):
        with pytest.raises(redis.ConnectionError):
            call()


def test_clear_frees_the_locks_on_the_caches_own_server(make_cache: MakeCache, make: MakeLock, fleet: Fleet) -> None:
    cache = make_cache(None, fleet(1).urls[0])
    lock, other = make(cache, "a", timeout=20.0), make(cache, "a", timeout=20.0, blocking=False)
    assert lock.acquire()
    cache.clear()
    assert other.acquire()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    other.release()


def test_a_timeout_above_the_guards_names_the_way_out(make_cache: MakeCache, make: MakeLock, three: list[str]) -> None:
    lock = make(make_cache(three), "a", timeout=3600.0)
    with pytest.raises(LockError, match=r"guard=Guard\(max_ttl=3600"):
        lock.acquire()


# --- asyncio --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_masters", [False, True])
def test_the_task_that_calls_owns_the_lock(make_cache: MakeCache, three: list[str], on_masters: bool) -> None:
    cache = make_cache(three if on_masters else None)

    async def main() -> None:
        lock = cache.alock("tasks", timeout=5.0)
        # In Python 3.11 these run the coroutines in tasks of their own.
        assert await asyncio.wait_for(lock.acquire(), PATIENCE)
        assert await asyncio.wait_for(lock.owned(), PATIENCE)
        assert await asyncio.wait_for(lock.extend(1.0), PATIENCE)

        async def other() -> None:
            assert not await lock.owned()
            with pytest.raises(LockError, match="not owned"):
                await lock.release()

        await asyncio.create_task(other())
        await asyncio.wait_for(lock.release(), PATIENCE)
        async with cache.alock("tasks", timeout=5.0), cache.alock("others", timeout=5.0):
            with pytest.raises(LockError, match="within the time"):
                async with cache.alock("tasks", blocking_timeout=0.0):
                    raise AssertionError("it has the lock")

    asyncio.run(main())


def test_tasks_that_share_a_lock_object_exclude_each_other(make_cache: MakeCache, three: list[str]) -> None:
    cache, inside, most = make_cache(three), 0, 0

    async def work(lock: Any) -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async def main() -> None:
        lock = cache.alock("shared")
        await asyncio.gather(*[work(lock) for _ in range(20)])
        assert not await lock.locked()

    asyncio.run(main())
    assert most == 1


def test_a_cancelled_task_leaves_no_lock(make_cache: MakeCache, three: list[str], keys: Keys, name: str) -> None:
    cache = make_cache(three)

    async def main() -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with cache.alock(name):
                inside.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(work())
        await inside.wait()
        waiter = asyncio.create_task(work())
        await asyncio.sleep(0)
        for task in (waiter, holder):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
    await_true(lambda: keys(three, f":1:{name}") == {})


def test_async_views_of_concurrent_requests_lose_no_update(
    make_cache: MakeCache, serve: Serve, three: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cache = make_cache(three)
    cache.set(name, 0)

    async def view(request: HttpRequest) -> HttpResponse:
        # Each request has a cache of its own.
        cache = caches["default"]
        async with cache.alock(name, timeout=20.0, blocking_timeout=PATIENCE):
            sold = await cache.aget(name)
            await asyncio.sleep(0.001)
            await cache.aset(name, sold + 1)
        return HttpResponse("sold")

    urls = types.ModuleType("shop_urls")
    urls.urlpatterns = [path("", view)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_urls", urls)
    with project.overridden(ROOT_URLCONF="shop_urls", ALLOWED_HOSTS=["127.0.0.1"], MIDDLEWARE=[], LOGGING_CONFIG=None):
        web = serve(get_asgi_application())
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(web.get, "/") for _ in range(40)]
        assert [answer.result().text for answer in answers] == ["sold"] * 40
    assert cache.get(name) == 40


# --- clients --------------------------------------------------------------------------------------------


def test_each_process_has_one_client_for_an_alias(implementation: impl.Implementation, three: list[str]) -> None:
    with project.overridden(REDLATCH={"default": {"MASTERS": three}}):
        old = get_client()
        assert old is get_client("default") is in_thread(get_client).result(PATIENCE)
    with project.overridden(REDLATCH={"default": {"MASTERS": three}}):
        assert get_client() is not old
        assert "closed" in repr(old)


def test_each_loop_has_a_client_that_does_not_outlive_it_for_long(
    implementation: impl.Implementation, fleet: Fleet
) -> None:
    url = fleet(1).urls[0]

    async def use() -> AsyncClient:
        client = get_async_client()
        async with client.lock("a"):
            assert get_async_client() is client
        return client

    def connected() -> int:
        return len([each for each in ask(url).client_list() if each["cmd"] != "client|list"])

    with project.overridden(REDLATCH={"default": {"MASTERS": url}}):
        used = {asyncio.run(use()) for _ in range(5)}
        assert len(used) == 5
        # A closed loop cannot close its connections. The next loop does that.
        await_true(lambda: connected() == 1)
    await_true(lambda: connected() == 0)
    with pytest.raises(RuntimeError, match="no running event loop"):
        get_async_client()


def test_a_forked_child_makes_its_own_client(implementation: impl.Implementation, three: list[str], name: str) -> None:
    program = f"""
import os, sys, warnings
import django
from django.conf import settings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # it has threads
settings.configure(REDLATCH={{"default": {{"MASTERS": {three!r}}}}})
from redlatch.django import get_client
with get_client().lock({name!r}):
    child = os.fork()
    if not child:
        taken = get_client().lock({name!r}).acquire(blocking=False)
        with get_client().lock({name!r} + "-child"):
            os._exit(7 + taken)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    environment = os.environ | {"REDLATCH_IMPL": implementation.name}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_caches_of_many_contexts_share_one_connection(make_cache: MakeCache, fleet: Fleet) -> None:
    url = fleet(1).urls[0]

    def opened() -> int:
        return int(ask(url).info("stats")["total_connections_received"])

    def request() -> None:
        with caches["default"].lock("a"):
            pass

    # Under ASGI each request has a context of its own, and with it a cache and a connection pool of its own.
    make_cache(None, url)
    contextvars.Context().run(request)
    before = opened()
    for _ in range(5):
        gc.collect()
        contextvars.Context().run(request)
    assert opened() == before + 1  # that of the second question


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], r"settings\.REDLATCH needs a dictionary with an entry for each alias"),
        ({}, "has no alias 'default'; its aliases are: none"),
        ({"other": {}}, "its aliases are: 'other'"),
        ({"default": ["redis://a"]}, "needs a dictionary with 'MASTERS'"),
        ({"default": {}}, "needs a dictionary with 'MASTERS'"),
        ({"default": {"MASTERS": "redis://a", "TTL": 1}}, "and, if you like, 'OPTIONS'"),
        ({"default": {"MASTERS": "redis://a", "OPTIONS": [1]}}, "needs a dictionary, not list"),
        ({"default": {"MASTERS": []}}, r"settings\.REDLATCH\['default'\]: masters: at least one is needed"),
        ({"default": {"MASTERS": "redis://a,b"}}, r"\['default'\]: masters\[0\]: several hosts in one URL"),
        (
            {"default": {"MASTERS": [redis.asyncio.RedisCluster(host="localhost"), "redis://a"]}},
            r"\['default'\]: masters\[0\]: a cluster cannot be listed beside other masters",
        ),
        ({"default": {"MASTERS": "redis://a", "OPTIONS": {"ttl": -1}}}, "ttl: a finite number of seconds"),
        ({"default": {"MASTERS": "redis://a", "OPTIONS": {"tll": 1}}}, "unexpected keyword argument 'tll'"),
    ],
)
def test_a_mistake_in_the_setting_is_named(setting: Any, message: str) -> None:
    with project.overridden(REDLATCH=setting), pytest.raises(ImproperlyConfigured, match=message):
        get_client()


def test_error_reports_show_no_password_of_masters_from_a_function(three: list[str]) -> None:
    def masters() -> list[str]:
        return [url.replace("//", "//default:hunter2@") for url in three]

    with project.overridden(REDLATCH={"default": {"MASTERS": masters}}):
        assert len(get_client().health().masters) == 3
        shown = SafeExceptionReporterFilter().get_safe_settings()["REDLATCH"]
        assert "MASTERS" in str(shown)
        assert "hunter2" not in str(shown)


def test_a_project_without_the_setting_has_no_aliases() -> None:
    assert clients.aliases() == []


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    from redlatch import django

    with pytest.raises(AttributeError, match="nonsense"):
        django.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_both_caches_are_the_frameworks_own() -> None:
    from redlatch.django.django_redis_cache import RedisCache

    assert issubclass(RedisCache, (cache_module.LockMixin, PlainDjangoRedisCache))
    assert issubclass(cache_module.RedisCache, (cache_module.LockMixin, PlainRedisCache))


# --- several processes ----------------------------------------------------------------------------------

COUNT = """
import sys
from django.conf import settings
settings.configure(
    CACHES={"default": {"BACKEND": sys.argv[1], "LOCATION": sys.argv[2]}},
    REDLATCH={"default": {"MASTERS": sys.argv[3:]}} if sys.argv[3:] else {},
)
from django.core.cache import cache
for _ in range(100):
    with cache.lock("counting", timeout=20.0):
        cache.set("count", cache.get("count", 0) + 1)
"""


@pytest.mark.usual(
    "the caches share the locks",
    {"backend": "django", "on_masters": True},
    {"backend": "django-redis", "on_masters": False},
)
@pytest.mark.parametrize("on_masters", [False, True])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_processes_lose_no_update(backend: str, on_masters: bool, fleet: Fleet, three: list[str]) -> None:
    url = fleet(1).urls[0]
    command = [sys.executable, "-c", COUNT, BACKENDS[backend], url, *(three if on_masters else [])]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0] * 3
    with project.overridden(CACHES={"default": {"BACKEND": BACKENDS[backend], "LOCATION": url}}):
        assert caches["default"].get("count") == 300
