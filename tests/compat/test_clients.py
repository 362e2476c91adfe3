"""The clients behind the drop-ins: one for all locks on a server, with the settings of its redis-py clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio.lock
import redis.asyncio.sentinel
import redis.exceptions
import redis.lock
import redis.sentinel
from support.faces import PATIENCE, ask, await_true, in_thread

from redlatch import ConfigurationError, impl
from redlatch.compat import aioredlock, clients, install, pottery, redis_lock, redis_py, redlock, uninstall
from redlatch.masters.server import whole_cluster
from redlatch.testing import Cluster, Sentinels, cluster, sentinels


@pytest.fixture
def server(implementation: Any, single_master: Any) -> str:
    return str(single_master())


def test_all_locks_on_a_server_share_one_connection(server: str, name: str) -> None:
    before = len(ask(server).client_list())
    pools = [redis.Redis.from_url(server) for _ in range(3)]
    for number, client in enumerate(pools):
        for lock in (redis_py.Lock(client, f"{name}-{number}-{other}", timeout=5) for other in range(5)):
            assert lock.acquire()
    manager = redlock.Redlock([server])
    assert manager.lock(name, 5000)
    assert len({id(clients.client_of([client])) for client in [*pools, *manager.servers]}) == 1
    # The connections of the callers' clients were not used.
    assert len(ask(server).client_list()) - before == 1


def test_the_order_and_the_spelling_of_servers_do_not_matter(
    implementation: impl.Implementation, single_master: Callable[[], str]
) -> None:
    urls = [single_master() for _ in range(3)]
    orders = [[redis.Redis.from_url(url) for url in order] for order in (urls, urls[::-1], [urls[1], urls[2], urls[0]])]
    assert len({id(clients.client_of(order)) for order in orders}) == 1
    port = int(urls[0].rpartition(":")[2])
    spellings = [redis.Redis.from_url(urls[0]), redis.Redis.from_url(f"{urls[0]}/0"), redis.Redis("127.0.0.1", port)]
    assert len({id(clients.client_of([client])) for client in spellings}) == 1


def test_another_user_or_database_is_another_client(implementation: impl.Implementation, server: str) -> None:
    ask(server).acl_setuser("me", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"])
    port = int(server.rpartition(":")[2])
    named = [
        redis.Redis(port=port, host="127.0.0.1", **options)
        for options in ({}, {"db": 1}, {"username": "me", "password": "secret"}, {"decode_responses": True})
    ]
    for client in named:
        with redis_py.Lock(client, "name", timeout=5):
            pass
    # The decoding option does not make another client.
    assert len({id(clients.client_of([client])) for client in named}) == 3


def test_a_client_ends_with_the_last_pool_that_names_its_server(
    implementation: impl.Implementation, server: str, name: str
) -> None:
    before = len(ask(server).client_list())
    # redis-py's scripts keep the first client of all for ever.
    redis_py.Lock(redis.Redis(), "x")
    client = redis.Redis.from_url(server)
    with redis_py.Lock(client, name, timeout=5):
        pass
    ours = weakref.ref(clients.client_of([client]))
    del client
    # redis-py's pools are in reference cycles.
    await_true(lambda: gc.collect() >= 0 and ours() is None)
    await_true(lambda: len(ask(server).client_list()) == before)


def test_decoded_replies_and_encoders_change_nothing(implementation: impl.Implementation, server: str) -> None:
    client = redis.Redis.from_url(server, decode_responses=True, encoding="latin-1")
    theirs = redis.lock.Lock(client, "größe", timeout=5)
    with redis_py.Lock(client, "größe", timeout=5) as lock:
        assert lock.owned()
        assert client.exists("größe")
        assert not theirs.acquire(blocking=False)
    assert theirs.acquire(blocking=False)
    assert not lock.acquire(blocking=False)


def test_names_that_redlatch_itself_refuses_are_accepted(implementation: impl.Implementation, server: str) -> None:
    client = redis.Redis.from_url(server)
    for name in ("", "a\0b", "x" * 512, b"\xff\xfe"):
        with redis_py.Lock(client, name, timeout=5):
            assert client.exists(name)
        assert not client.exists(name)
    with pytest.raises(ConfigurationError, match="name: must have at most 512 bytes"):
        redis_py.Lock(client, "x" * 513, timeout=5).acquire()
    with pytest.raises(ConfigurationError, match="token: must have at most 512 bytes"):
        redis_py.Lock(client, "x", timeout=5).acquire(token="t" * 513)
    with redis_py.Lock(client, "x", timeout=5):
        pass


def test_an_object_that_is_no_redis_py_client_is_refused(implementation: impl.Implementation) -> None:
    with pytest.raises(TypeError, match="redis-py client of one server"):
        clients.client_of([object()])


@pytest.fixture(scope="module")
def group() -> Iterator[Sentinels]:
    group = sentinels()
    with group:
        yield group


@pytest.mark.parametrize("module", [redis.sentinel, redis.asyncio.sentinel])
def test_either_face_asks_the_sentinels_for_the_master(
    implementation: impl.Implementation, group: Sentinels, module: Any, name: str
) -> None:
    hosts = [("127.0.0.1", int(url.rpartition(":")[2])) for url in group.sentinels.urls]
    client = module.Sentinel(hosts).master_for("group0")
    with clients.client_of([client]).lock(name, ttl=5):
        assert ask(group.servers.urls[0]).exists(name)
    gone = weakref.ref(client.connection_pool)
    del client
    await_true(lambda: gc.collect() >= 0 and gone() is None)


FORKING = """
import os, sys, redis
from redlatch import ConfigurationError
from redlatch.compat import clients
from redlatch.compat.redis_py import Lock
r = redis.Redis.from_url(sys.argv[1])
with Lock(r, "parent", timeout=5):
    pass
ours = clients.client_of([r])
if not (pid := os.fork()):
    with Lock(r, "child", timeout=5):
        os._exit(clients.client_of([r]) is ours)
assert os.waitpid(pid, 0)[1] == 0
with Lock(r, "parent", timeout=5):
    assert clients.client_of([r]) is ours
"""


def test_a_forked_child_makes_clients_of_its_own(server: str) -> None:
    ran = subprocess.run([sys.executable, "-c", FORKING, server], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr


def test_clients_of_closed_loops_are_collected(implementation: impl.Implementation, server: str, name: str) -> None:
    client, seen = redis.asyncio.Redis.from_url(server), []

    async def work() -> None:
        async with redis_py.AsyncLock(client, name, timeout=5):
            seen.append(weakref.ref(clients.async_client_of([client])))
        await client.connection_pool.disconnect()

    for _ in range(3):
        asyncio.run(work())
        gc.collect()
    assert [reference() is None for reference in seen[:-1]] == [True, True]


# --- clusters ------------------------------------------------------------------------------------------------

# Names in all shards.
NAMES = 12


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    made = cluster(3, replicas=0)
    with made:
        yield made


@contextlib.contextmanager
def of_cluster(nodes: Cluster, kind: type[redis.RedisCluster] = redis.RedisCluster, **options: Any) -> Iterator[Any]:
    host, _, port = nodes.address(0).rpartition(":")
    client = kind(host=host, port=int(port), **options)
    try:
        yield client
    finally:
        client.close()


def of_cluster_for_asyncio(nodes: Cluster) -> Any:
    host, _, port = nodes.address(0).rpartition(":")
    return redis.asyncio.RedisCluster(host=host, port=int(port))


def test_all_clients_of_a_cluster_share_one(implementation: impl.Implementation, nodes: Cluster) -> None:
    with of_cluster(nodes) as one, of_cluster(nodes, decode_responses=True) as two:
        assert clients.client_of([one]) is clients.client_of([two])
        with of_cluster(nodes, client_name="shop") as named:
            assert clients.client_of([named]) is not clients.client_of([one])


def test_a_client_ends_with_the_last_client_of_its_cluster(implementation: impl.Implementation, nodes: Cluster) -> None:
    with of_cluster(nodes) as client:
        ours = weakref.ref(clients.client_of([client]))
        assert ours() is not None
    del client
    await_true(lambda: gc.collect() >= 0 and ours() is None)


def test_a_redis_py_lock_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    with of_cluster(nodes) as client:
        for number in range(NAMES):
            lock = redis_py.Lock(client, f"{name}-{number}", timeout=50)
            theirs = redis.lock.Lock(client, f"{name}-{number}", timeout=5)
            assert lock.acquire() and lock.local.lease is not None
            assert lock.owned() and lock.locked() and not theirs.acquire(blocking=False)
            lock.extend(10)
            # The server shortens the key.
            lock.extend(20, replace_ttl=True)
            assert 15_000 < client.pttl(f"{name}-{number}") <= 20_000
            lock.release()
            assert theirs.acquire(blocking=False) and not lock.acquire(blocking=False)
            theirs.release()
            assert lock.acquire(token="mine") and client.get(f"{name}-{number}") == b"mine"
            lock.release()
            with pytest.raises(redis.exceptions.LockError):
                lock.release()


def test_waiters_of_a_redis_py_lock_on_a_cluster_wake_each_other(
    implementation: impl.Implementation, nodes: Cluster, name: str
) -> None:
    with of_cluster(nodes) as client:
        theirs = redis.lock.Lock(client, name, timeout=50, thread_local=False)
        assert theirs.acquire()
        waiting = in_thread(redis_py.Lock(client, name, timeout=5).acquire)
        await_true(lambda: clients.client_of([client]).stats().waiting)
        theirs.release()
        assert waiting.result(PATIENCE)


def test_the_lock_of_a_cluster_is_the_drop_in_once_it_is_installed(
    implementation: impl.Implementation, nodes: Cluster, name: str
) -> None:
    install("redis")
    try:
        with of_cluster(nodes) as client, client.lock(name, timeout=5) as lock:
            assert isinstance(lock, redis_py.Lock) and lock.local.lease is not None
    finally:
        uninstall("redis")


def test_an_asyncio_redis_py_lock_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    async def main() -> None:
        async with of_cluster_for_asyncio(nodes) as client:
            for number in range(NAMES):
                lock = redis_py.AsyncLock(client, f"{name}-{number}", timeout=50)
                theirs = redis.asyncio.lock.Lock(client, f"{name}-{number}", timeout=5)
                assert await lock.acquire() and lock.local.lease is not None
                assert await lock.owned() and not await theirs.acquire(blocking=False)
                await lock.extend(20, replace_ttl=True)
                assert 15_000 < await client.pttl(f"{name}-{number}") <= 20_000
                await lock.release()
                assert await theirs.acquire(blocking=False) and not await lock.acquire(blocking=False)

    asyncio.run(main())


class Prefixing(redis.RedisCluster):
    """A client that changes keys."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def test_a_client_of_a_cluster_that_changes_commands_keeps_redis_pys_algorithm(
    implementation: impl.Implementation, nodes: Cluster, name: str
) -> None:
    with of_cluster(nodes, Prefixing) as client:
        with redis_py.Lock(client, name, timeout=5) as lock:
            assert lock.local.lease is None
        with pytest.raises(TypeError, match=r"Prefixing\.execute_command may change keys"):
            clients.client_of([client])


def test_a_client_of_a_cluster_with_a_setting_that_would_be_left_out_keeps_redis_pys_algorithm(
    implementation: impl.Implementation, nodes: Cluster, name: str
) -> None:
    with of_cluster(nodes, redis_connect_func=lambda connection: connection.on_connect()) as client:
        with redis_py.Lock(client, name, timeout=5) as lock:
            assert lock.local.lease is None
        with pytest.raises(TypeError, match=r"one cluster is needed.*redis_connect_func cannot be used"):
            redlock.Redlock([client]).lock(name, 5000)


def test_pottery_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    with of_cluster(nodes) as client:
        for number in range(NAMES):
            lock = pottery.Redlock(key=f"{name}-{number}", masters={client})
            with lock:
                assert client.exists(f"redlock:{name}-{number}") and lock.locked() > 0
                assert not pottery.Redlock(key=f"{name}-{number}", masters={client}).acquire(blocking=False)
                lock.extend()
            assert not client.exists(f"redlock:{name}-{number}")


def test_pottery_for_asyncio_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    async def main() -> None:
        async with of_cluster_for_asyncio(nodes) as client:
            async with pottery.AIORedlock(key=name, masters={client}) as lock:
                assert await client.exists(f"redlock:{name}") and await lock.locked() > 0
            assert not await client.exists(f"redlock:{name}")

    asyncio.run(main())


def test_redlock_py_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    with of_cluster(nodes) as client:
        manager = redlock.Redlock([client], retry_count=1)
        for number in range(NAMES):
            lock = manager.lock(f"{name}-{number}", 5000)
            assert isinstance(lock, redlock.Lock) and client.get(lock.resource) == lock.key
            assert manager.lock(f"{name}-{number}", 5000) is False
            manager.unlock(lock)
            assert not client.exists(lock.resource)


def test_a_cluster_beside_other_masters_is_refused(implementation: impl.Implementation, nodes: Cluster) -> None:
    with of_cluster(nodes) as client:
        others = {client, redis.Redis()}
        uses: list[Callable[[], Any]] = [
            lambda: pottery.Redlock(key="x", masters=others).acquire(),
            lambda: redlock.Redlock(others),
        ]
        for use in uses:
            with pytest.raises((ConfigurationError, Warning), match="a cluster cannot be listed beside other masters"):
                use()


def test_python_redis_lock_on_a_cluster(implementation: impl.Implementation, nodes: Cluster, name: str) -> None:
    with of_cluster(nodes) as client:
        for number in range(NAMES):
            tagged = f"{{{name}-{number}}}"
            lock = redis_lock.Lock(client, tagged, expire=5)
            assert lock.acquire() and lock.locked() and client.exists(f"lock:{tagged}")
            lock.extend(50)
            lock.release()
            assert not lock.locked() and client.llen(f"lock-signal:{tagged}") == 1
            assert lock.acquire()
            lock.reset()
            assert not lock.locked()


def test_python_redis_locks_keys_must_be_in_one_slot(implementation: impl.Implementation, nodes: Cluster) -> None:
    with of_cluster(nodes) as client:
        for name in ("shop", "{}shop"):
            with pytest.raises(ConfigurationError) as caught:
                redis_lock.Lock(client, name)
            assert str(caught.value) == (
                f"name: on a cluster, the key 'lock:{name}' and the list 'lock-signal:{name}' must be in one slot; "
                f"write a hash tag: '{{{name}}}'"
            )
            redis_lock.Lock(client, f"{{{name}}}")
        with pytest.raises(ConfigurationError, match=r"^reset_all: its script sees one node .* reset\(\) of each lock"):
            redis_lock.reset_all(client)


@pytest.mark.parametrize("of_threads", [False, True])
def test_aioredlock_on_a_cluster(
    implementation: impl.Implementation, nodes: Cluster, name: str, of_threads: bool
) -> None:
    async def main(client: Any) -> None:
        manager = aioredlock.Aioredlock([client], retry_count=1)
        for number in range(NAMES):
            async with await manager.lock(f"{name}-{number}", 5) as lock:
                with pytest.raises(aioredlock.LockAcquiringError):
                    await manager.lock(f"{name}-{number}", 5)
                await lock.extend()
                again = await aioredlock.Aioredlock([client]).get_lock(lock.resource, lock.id)
                assert again.valid
            assert not await manager.is_locked(f"{name}-{number}")

    async def main_of_asyncio() -> None:
        async with of_cluster_for_asyncio(nodes) as client:
            await main(client)

    if not of_threads:
        asyncio.run(main_of_asyncio())
        return
    with of_cluster(nodes) as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("url", ["redis+cluster://:s3cr3tpw@a,b", "redis+sentinel://:s3cr3tpw@a/g", "http://a"])
@pytest.mark.parametrize("make", [aioredlock.Aioredlock, redlock.Redlock])
def test_a_url_that_is_not_of_one_server_is_refused_with_what_to_give(make: Any, url: str) -> None:
    """Found by trying it: aioredlock's took it for the path of a socket, and the log had the password."""
    with pytest.raises((ConfigurationError, Warning)) as caught:
        make([url])
    assert str(caught.value) == (
        "a URL must begin with redis://, rediss:// or unix://; give a redis.RedisCluster for a cluster, and a client "
        "of master_for() for Sentinel"
    )


def test_a_redis_py_lock_on_a_node_of_a_cluster_is_refused(implementation: impl.Implementation, nodes: Cluster) -> None:
    with pytest.raises(ConfigurationError) as caught:
        redis_py.Lock(redis.Redis.from_url(nodes.urls[0]), "x", timeout=5).acquire()
    written = f"redis+cluster://{nodes.address(0)}"
    assert str(caught.value).endswith(f"is a node of a cluster; {whole_cluster(written)}")


# --- settings that redlatch would have to leave out ------------------------------------------------------------


def test_row_65_a_setting_that_would_be_left_out_keeps_redis_pys_algorithm(
    implementation: impl.Implementation, server: str, name: str
) -> None:
    seen: list[Any] = []

    def log_in(connection: Any) -> None:
        seen.append(connection)
        connection.on_connect()

    with redis.Redis.from_url(server, redis_connect_func=log_in) as client:
        lock = redis_py.Lock(client, name, timeout=5)
        assert lock.acquire()
        assert lock.local.lease is None and seen
        lock.release()
        with pytest.raises(TypeError, match=r"redis_connect_func cannot be used: .* use credential_provider"):
            clients.client_of([client])
    # It refers to its connection, and `seen` to both: the collector would find the socket first.
    seen.clear()


def test_clients_with_another_name_or_protocol_have_connections_of_their_own(
    implementation: impl.Implementation, server: str, name: str
) -> None:
    for options in ("", "?client_name=shop-1", "?client_name=shop-2", "?protocol=2&client_name=shop-3"):
        client = redis.Redis.from_url(server + options)
        with redis_py.Lock(client, name, timeout=5):
            wanted = client.get_connection_kwargs().get("client_name") or "redlatch"
            found = [each["resp"] for each in ask(server).client_list() if each["name"] == wanted]
        assert ("2" in found) == ("protocol=2" in options)


@pytest.mark.parametrize("option", ["connection_cls", "pool_cls"])
def test_row_65_a_connection_class_of_aioredis_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{option}: .*give a redis-py client"):
        aioredlock.Aioredlock([{"host": "localhost", "port": 1, option: object}])
