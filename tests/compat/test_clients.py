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
import redis.asyncio.sentinel
import redis.lock
import redis.sentinel
from support.faces import PATIENCE, ask, await_true

from redlatch import AsyncClient, Client, ConfigurationError, impl
from redlatch.compat import aioredlock, clients, pottery, redis_lock, redis_py, redlock
from redlatch.masters.server import WHOLE_CLUSTER
from redlatch.testing import Sentinels, embedded, sentinels


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


# --- settings that redlatch would have to leave out, and clusters --------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The URL of a cluster of one node, which has all slots."""
    config = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}
    with embedded.masters(1, config=config) as [url]:
        with ask(url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await_true(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"))
        yield url


@contextlib.contextmanager
def client_of_cluster(url: str) -> Iterator[Any]:
    client = redis.RedisCluster.from_url(url)
    try:
        yield client
    finally:
        # `close` leaves the connections of pools that were made from a URL.
        client.disconnect_connection_pools()
        client.close()


def test_a_client_of_a_cluster_is_refused_with_what_to_use(implementation: impl.Implementation, cluster: str) -> None:
    with client_of_cluster(cluster) as client:
        uses: list[Callable[[], Any]] = [
            lambda: Client(client),
            lambda: AsyncClient([client]),
            lambda: clients.client_of([client]),
            lambda: redis_lock.Lock(client, "x", strict=False).acquire(),
            lambda: pottery.Redlock(key="x", masters={client}).acquire(),
            lambda: redlock.Redlock([client]),
        ]
        for use in uses:
            with pytest.raises((ConfigurationError, Warning)) as caught:
                use()
            assert f"a RedisCluster is no master: {WHOLE_CLUSTER}" in str(caught.value)


def test_an_asyncio_client_of_a_cluster_is_refused_with_what_to_use(
    implementation: impl.Implementation, cluster: str
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster.from_url(cluster)
        try:
            uses: list[Callable[[], Any]] = [
                lambda: AsyncClient(client),  # type: ignore[arg-type]
                lambda: Client([client]),  # type: ignore[list-item]
                lambda: clients.async_client_of([client]),
            ]
            for use in uses:
                with pytest.raises(ConfigurationError, match="redlatch does not serve clusters"):
                    use()
            with pytest.raises(ConfigurationError, match="redlatch does not serve clusters"):
                await pottery.AIORedlock(key="x", masters={client}).acquire()
        finally:
            await client.aclose()

    asyncio.run(main())


def test_a_redis_py_lock_on_a_cluster_keeps_redis_pys_algorithm(
    implementation: impl.Implementation, cluster: str, name: str
) -> None:
    with client_of_cluster(cluster) as client:
        lock = redis_py.Lock(client, name, timeout=5)
        assert lock.acquire()
        assert lock.local.lease is None and client.exists(name)
        lock.release()


def test_a_redis_py_lock_on_a_node_of_a_cluster_is_refused(implementation: impl.Implementation, cluster: str) -> None:
    with pytest.raises(ConfigurationError, match="is a node of a cluster; redlatch does not serve clusters"):
        redis_py.Lock(redis.Redis.from_url(cluster), "x", timeout=5).acquire()


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
