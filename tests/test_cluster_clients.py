"""Clusters as masters: the clients of redis-py for clusters, addresses behind NAT, and lists that are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from support.faces import Face
from support.proxy import Proxy

from redlatch import AsyncClient, ConfigurationError, QuorumUnavailable
from redlatch.testing import Cluster, cluster

PASSWORD = "s3cr3tpw"

# Names in all shards.
NAMES = 30


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Three shards, which need a password."""
    made = cluster(3, replicas=0, config={"requirepass": PASSWORD})
    with made:
        yield made


@pytest.fixture(scope="module")
def behind_nat() -> Iterator[Cluster]:
    """Three shards with names that nothing resolves."""
    made = cluster(3, replicas=0, config={"cluster-preferred-endpoint-type": "hostname"})
    with made as urls:
        for number, url in enumerate(urls):
            with redis.Redis.from_url(url) as node:
                node.config_set("cluster-announce-hostname", f"node-{number}.invalid")
        yield made


def options_of(nodes: Cluster) -> dict[str, Any]:
    host, _, port = nodes.address(0).rpartition(":")
    return {"host": host, "port": int(port), "password": PASSWORD}


@contextlib.contextmanager
def of_threads(**options: Any) -> Iterator[Any]:
    client = redis.RedisCluster(**options)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def of_asyncio(**options: Any) -> Iterator[Any]:
    # It has no connection unless it is used.
    yield redis.asyncio.RedisCluster(**options)


kinds = pytest.mark.parametrize("of_kind", [of_threads, of_asyncio])


@kinds
@pytest.mark.parametrize("several", [False, True])
def test_a_client_of_a_cluster_is_a_master(
    connect: Face, nodes: Cluster, name: str, of_kind: Any, several: bool
) -> None:
    with of_kind(**options_of(nodes), client_name="shop") as theirs:
        client, other = connect([theirs] if several else theirs), connect(nodes.url)
        for number in range(NAMES):
            lock = client.lock(f"{name}-{number}", ttl=10)
            assert lock.acquire(blocking=False)
            assert not other.lock(f"{name}-{number}").acquire(blocking=False)
            lock.release()
            assert other.lock(f"{name}-{number}").acquire(blocking=False)
    connected = set()
    for url in nodes.urls:
        with redis.Redis.from_url(url, password=PASSWORD) as node:
            connected |= {each["name"] for each in node.client_list()}
    assert "shop" in connected


def test_the_client_is_neither_used_nor_closed(connect: Face, nodes: Cluster, name: str) -> None:
    with of_threads(**options_of(nodes)) as theirs:
        pools = [node.redis_connection.connection_pool for node in theirs.get_nodes()]
        before = [pool._available_connections[:] for pool in pools]
        client = connect(theirs)
        assert client.lock(name).acquire()
        client.close()
        assert [pool._available_connections for pool in pools] == before
        assert theirs.exists(name)


def test_a_user_and_a_credential_provider_are_those_of_the_client(connect: Face, nodes: Cluster, name: str) -> None:
    asked: list[None] = []

    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            asked.append(None)
            return "default", PASSWORD

    options = options_of(nodes) | {"credential_provider": Provider()}
    del options["password"]
    with of_asyncio(**options) as theirs:
        assert connect(theirs).lock(name).acquire()
    # The topology, and at least the node of the name.
    assert len(asked) >= 2


@pytest.mark.filterwarnings("ignore:.*'read_from_replicas':DeprecationWarning")
def test_a_client_that_reads_from_replicas_can_be_given(connect: Face, nodes: Cluster, name: str) -> None:
    with of_threads(**options_of(nodes), read_from_replicas=True) as theirs:
        assert connect(theirs).lock(name).acquire()


def test_a_client_of_a_url_can_be_given(connect: Face, nodes: Cluster, name: str) -> None:
    client = redis.RedisCluster.from_url(nodes.urls[0], password=PASSWORD)
    try:
        assert connect(client).lock(name).acquire()
    finally:
        # `close` leaves the connections of pools that were made from a URL.
        client.disconnect_connection_pools()
        client.close()


class OwnPool(redis.ConnectionPool):
    """A pool whose connections redlatch would not make in the same way."""

    def make_connection(self) -> Any:
        return super().make_connection()


def test_settings_that_would_be_left_out_are_refused(connect: Face, nodes: Cluster) -> None:
    def log_in(connection: Any) -> None:
        connection.on_connect()

    with (
        of_threads(**options_of(nodes), redis_connect_func=log_in) as theirs,
        pytest.raises(ConfigurationError, match=r"^masters\[0\]: redis_connect_func cannot be used"),
    ):
        connect(theirs)
    client = redis.RedisCluster.from_url(nodes.urls[0], password=PASSWORD, connection_pool_class=OwnPool)
    try:
        with pytest.raises(ConfigurationError, match=r"^masters\[0\]: the pool has its own OwnPool\.make_connection"):
            connect(client)
    finally:
        client.disconnect_connection_pools()
        client.close()


# --- addresses behind NAT ------------------------------------------------------------------------------------


@pytest.fixture
def tunnels(behind_nat: Cluster, proxies: Callable[[list[str]], list[Proxy]]) -> dict[str, Proxy]:
    """A tunnel to each node, by the address that the cluster announces."""
    made = proxies(behind_nat.urls)
    ports = [behind_nat.address(number).rpartition(":")[2] for number in range(3)]
    return {f"node-{number}.invalid:{ports[number]}": made[number] for number in range(3)}


def place(tunnel: Proxy) -> str:
    return f"127.0.0.1:{tunnel.port}"


def try_names(client: Any, name: str, tunnels: dict[str, Proxy]) -> None:
    for number in range(NAMES):
        lock = client.lock(f"{name}-{number}", ttl=10)
        assert lock.acquire()
        lock.release()
    for tunnel in tunnels.values():
        assert any([word.startswith(name.encode()) for command in tunnel.commands for word in command])
    # Users and messages know the nodes by the addresses that the cluster announces.
    assert {master.address for master in client.health().masters} == set(tunnels)


@pytest.mark.parametrize("function", [False, True])
def test_host_map_says_where_nodes_are_reached(
    connect: Face, tunnels: dict[str, Proxy], name: str, function: bool
) -> None:
    known = {announced: place(tunnel) for announced, tunnel in tunnels.items()}
    seed = next(iter(known.values()))
    client = connect(f"redis+cluster://{seed}", host_map=known.__getitem__ if function else known)
    try_names(client, name, tunnels)


@kinds
def test_the_address_remap_of_a_client_says_where_nodes_are_reached(
    connect: Face, tunnels: dict[str, Proxy], name: str, of_kind: Any
) -> None:
    def remap(address: tuple[str, int]) -> tuple[str, int]:
        return "127.0.0.1", tunnels[f"{address[0]}:{address[1]}"].port

    first = next(iter(tunnels.values()))
    with of_kind(host="127.0.0.1", port=first.port, address_remap=remap) as theirs:
        client = connect(theirs)
        with pytest.raises(ConfigurationError, match=r"^host_map: the RedisCluster has an address_remap already"):
            connect(theirs, host_map={"a:1": "b:1"})
        try_names(client, name, tunnels)


def test_a_slot_that_moves_is_found_through_the_tunnels(
    connect: Face, behind_nat: Cluster, tunnels: dict[str, Proxy], name: str
) -> None:
    known = {announced: place(tunnel) for announced, tunnel in tunnels.items()}
    client = connect(f"redis+cluster://{next(iter(known.values()))}", host_map=known)
    lock = client.lock(name, ttl=20)
    assert lock.acquire()
    behind_nat.move(name, (behind_nat.shard_of(name) + 1) % 3)
    assert lock.owned()
    lock.extend()
    lock.release()
    assert client.lock(name).acquire(blocking=False)


def test_a_node_that_host_map_does_not_know_is_named(connect: Face, tunnels: dict[str, Proxy], name: str) -> None:
    known = {announced: place(tunnel) for announced, tunnel in tunnels.items()}
    seed = next(iter(known.values()))
    client = connect(f"redis+cluster://{seed}", host_map=lambda address: {}[address])
    with pytest.raises((QuorumUnavailable, ConfigurationError), match=r"node-\d\.invalid:\d+ has no place in host_map"):
        client.lock(name).acquire(blocking=False)


# --- lists that are refused ----------------------------------------------------------------------------------


def test_several_nodes_of_one_cluster_are_refused_with_what_to_write(connect: Face, nodes: Cluster) -> None:
    client = connect(nodes.urls)
    with pytest.raises(ConfigurationError) as caught:
        client.connect()
    written = ",".join(map(nodes.address, range(3)))
    assert str(caught.value) in [
        f"masters[{index}]: {nodes.address(index)} is a node of a cluster; a node has only some of the names. Give the "
        f"whole cluster as one master: write redis+cluster://{written} (if all of these are its nodes), or give a "
        "redis.RedisCluster"
        for index in range(3)
    ]


def test_one_node_of_a_cluster_is_refused_with_what_to_write(connect: Face, nodes: Cluster) -> None:
    client = connect(nodes.urls[0])
    with pytest.raises(ConfigurationError) as caught:
        client.connect()
    address = nodes.address(0)
    assert str(caught.value) == (
        f"masters[0]: {address} is a node of a cluster; a node has only some of the names. Give the whole cluster as "
        f"one master: write redis+cluster://{address}, or give a redis.RedisCluster"
    )
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"), [("redis+cluster://a", "redis://b"), ("redis://b", "redis+cluster://a"), ("redis+cluster://a",) * 2]
)
def test_a_handover_with_a_cluster_is_refused(connect: Face, old: str, new: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(old, next=new)
    assert str(caught.value) == (
        "next: there is no handover from or to a cluster so far. Stop all clients, wait until the longest ttl of their "
        "locks is over, and start them with the new masters"
    )


def test_a_host_map_without_a_cluster_is_refused(connect: Face) -> None:
    with pytest.raises(ConfigurationError, match=r"^host_map: it is for the nodes of a cluster"):
        connect("redis://a", host_map={"a:1": "b:1"})


def test_an_asyncio_client_of_a_cluster_may_be_in_use(nodes: Cluster, name: str) -> None:
    async def main() -> None:
        async with redis.asyncio.RedisCluster(**options_of(nodes)) as theirs:
            await theirs.set(name, "theirs")
            async with AsyncClient(theirs) as client:
                assert not await client.lock(name).acquire(blocking=False)
                await theirs.delete(name)
                assert await client.lock(name).acquire(blocking=False)
            assert await theirs.exists(name)

    asyncio.run(main())
