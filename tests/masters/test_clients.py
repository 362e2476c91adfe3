"""Masters from redis-py clients, those of Sentinel, too."""

from __future__ import annotations

import gc
import inspect
import socket
import weakref
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection as redis_connection
import redis.sentinel

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.masters.clients import cluster_of_client, master_of_client
from redlatch.masters.listed import masters_of

SENTINELS = [("s1", 1), ("s2", 2), ("s3", 3)]

modules = pytest.mark.parametrize("module", [redis.sentinel, redis.asyncio.sentinel])


def made(module: Any, sentinel_kwargs: Any = None, force: str | None = None, **options: Any) -> Any:
    return module.Sentinel(SENTINELS, 1, sentinel_kwargs, force_master_ip=force, **options)


@modules
def test_a_sentinel_client_brings_its_group_and_its_sentinels(module: Any) -> None:
    sentinel = made(module, {"password": "theirs"}, username="me", password="mine", db=2)
    master = master_of_client(sentinel.master_for("mymaster"), "masters[0]")
    assert master.group is not None
    assert (master.name, master.credentials()) == ("sentinel:mymaster/2", ("me", "mine"))
    assert (master.group.name, master.group.least_others, master.group.majority) == ("mymaster", 1, 2)
    assert [sentinel.address for sentinel in master.group.sentinels] == ["s1:1", "s2:2", "s3:3"]
    assert [sentinel.credentials() for sentinel in master.group.sentinels] == [("theirs",)] * 3


@modules
def test_tls_is_for_the_connections_that_have_it(module: Any) -> None:
    master = master_of_client(made(module, {"ssl": True}, ssl=True).master_for("g"), "masters[0]")
    assert master.group is not None
    assert master._kind is master.group.sentinels[0]._kind is redis_connection.SSLConnection
    plain = master_of_client(made(module, {"ssl": True}).master_for("g"), "masters[0]")
    assert plain._kind is redis_connection.Connection


@modules
def test_a_sentinel_that_is_listed_twice_is_refused(module: Any) -> None:
    client = module.Sentinel([("s1", 1), ("s2", 2), ("s1", 1)]).master_for("g")
    with pytest.raises(ConfigurationError, match=r"^masters\[1\]: a sentinel is listed twice"):
        masters_of(["redis://host", client])


@modules
def test_a_forced_host_is_kept(module: Any) -> None:
    master = master_of_client(made(module, force="nat").master_for("g"), "masters[0]")
    assert master.group is not None
    assert master.group.reached("10.0.0.1", 7000) == ("nat", 7000)


@modules
def test_a_client_of_replicas_is_refused(module: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"masters\[0\]: .*master_for\(\) is needed"):
        masters_of(made(module).slave_for("mymaster"))


@modules
@pytest.mark.parametrize("several", [False, True])
def test_a_sentinel_without_a_group_is_refused(module: Any, several: bool) -> None:
    given = [made(module)] if several else made(module)
    with pytest.raises(ConfigurationError, match=r"masters\[0\]: .*give sentinel\.master_for\('mymaster'\)"):
        masters_of(given)


@modules
def test_the_master_keeps_no_pool_alive(module: Any) -> None:
    client = made(module).master_for("mymaster")
    master = master_of_client(client, "masters[0]")
    pools = [weakref.ref(client.connection_pool), weakref.ref(client.connection_pool.sentinel_manager)]
    del client
    gc.collect()
    assert [pool() for pool in pools] == [None, None]
    assert master.group is not None


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_a_client_of_a_unix_socket(module: Any) -> None:
    master = master_of_client(module.Redis(unix_socket_path="/run/a.sock", db=1), "masters[0]")
    assert (master.address, master.name, master.group) == ("/run/a.sock", "/run/a.sock/1", None)


# --- clients of clusters -------------------------------------------------------------------------------------
# redis-py's client for threads asks the cluster when it is made: tests/test_cluster_clients.py has it.


def of_cluster(**options: Any) -> redis.asyncio.RedisCluster:
    return redis.asyncio.RedisCluster(host="a", port=7000, **options)


def test_a_client_of_a_cluster_brings_its_settings() -> None:
    client = of_cluster(username="me", password="mine", client_name="shop")
    cluster = cluster_of_client(client, "masters[0]")
    assert (cluster.name, cluster.seeds, cluster.reached) == ("cluster:a:7000", (("a", 7000),), None)
    node = cluster.node(("b", 7001))
    assert (node.credentials(), node.client_name, node._kind) == (("me", "mine"), "shop", redis_connection.Connection)


def test_all_nodes_that_a_client_knows_are_seeds() -> None:
    start = [redis.asyncio.cluster.ClusterNode(host, 7000) for host in ("b", "a")]
    client = redis.asyncio.RedisCluster(startup_nodes=start)
    client.nodes_manager.nodes_cache["c:7000"] = redis.asyncio.cluster.ClusterNode("c", 7000)
    cluster = cluster_of_client(client, "masters[0]")
    assert cluster.seeds == (("b", 7000), ("a", 7000), ("c", 7000))
    assert cluster.name == "cluster:a:7000,b:7000"


def test_a_client_of_a_cluster_brings_tls_its_provider_and_its_protocol() -> None:
    provider = redis.UsernamePasswordCredentialProvider("me", "mine")
    client = of_cluster(ssl=True, protocol=2, credential_provider=provider)
    node = cluster_of_client(client, "masters[0]").node(("b", 7001))
    assert (node.credentials(), node._kind) == (("me", "mine"), redis_connection.SSLConnection)
    assert node.resp2 == (inspect.signature(redis.Redis).parameters["protocol"].default != 2)


def test_an_address_remap_says_where_nodes_are_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = of_cluster(address_remap=lambda address: ("127.0.0.1", address[1] + listener.getsockname()[1]))
        cluster = cluster_of_client(client, "masters[0]")
        cluster.node(("10.0.0.1", 0)).connect(10.0).close()
        assert cluster.seeds == (("a", 7000),)


@pytest.mark.filterwarnings("ignore:.*'read_from_replicas':DeprecationWarning")
def test_reads_from_replicas_do_not_matter() -> None:
    assert masters_of(of_cluster(read_from_replicas=True))[0].is_cluster


def test_an_on_connect_of_the_user_is_refused() -> None:
    client = of_cluster()
    [node] = client.nodes_manager.startup_nodes.values()
    node.connection_kwargs["redis_connect_func"] = print
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: redis_connect_func cannot be used"):
        masters_of(client)


def test_a_client_that_knows_no_node_is_refused() -> None:
    client = of_cluster()
    client.nodes_manager.startup_nodes.clear()
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: the RedisCluster knows no node of its cluster"):
        masters_of(client)


def test_the_cluster_keeps_no_client_alive() -> None:
    client = of_cluster()
    cluster = cluster_of_client(client, "masters[0]")
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None and cluster.seeds


# --- classes of the user ---------------------------------------------------------------------------------


class Tunnel(redis.Connection):
    """A class that opens its socket itself."""

    def __init__(self, through: str = "", **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.through = through

    def _connect(self) -> Any:
        return socket.create_connection(parted(self.through))


class Rotating(redis.SSLConnection):
    """Row 65: the name has no "SSL", and redlatch took it for a connection without TLS."""

    def _connect(self) -> Any:
        self.certfile, self.keyfile = None, None
        return super()._connect()  # type: ignore[no-untyped-call]


class Renamed(redis.SSLConnection):
    """A class that changes nothing."""

    def repr_pieces(self) -> Any:
        return [("renamed", 1)]


class LoggingIn(redis.SSLConnection):
    """A class whose work redlatch would leave out."""

    def on_connect(self) -> None:
        super().on_connect()  # type: ignore[no-untyped-call]


class Kept(redis.Connection):
    """A class that ends its tunnel with the object, although its socket lives on."""

    def __del__(self) -> None:
        pass


class Any_(redis.Connection):
    """A class that may do anything."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class AsyncTunnel(redis.asyncio.SSLConnection):
    """A class for asyncio."""

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call]


class Managed(redis.sentinel.SentinelManagedSSLConnection):
    """A class behind Sentinel."""

    def _connect(self) -> Any:
        return super()._connect()  # type: ignore[no-untyped-call]


class KombusOwn(redis.sentinel.SentinelManagedConnection, redis.SSLConnection):
    """As in kombu: a class without anything of its own."""


class PlainPool(redis.ConnectionPool):
    """A pool that changes no connection."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)


class ChangingPool(redis.BlockingConnectionPool):
    """A pool that changes its connections."""

    def make_connection(self) -> Any:
        return super().make_connection()  # type: ignore[no-untyped-call]


def parted(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host, int(port)


def of_class(kind: type, pool: type[redis.ConnectionPool] = redis.ConnectionPool, **options: Any) -> redis.Redis:
    return redis.Redis(connection_pool=pool(connection_class=kind, **options))


def of_async_class(kind: type) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(connection_class=kind))


def behind_sentinel(kind: type) -> redis.Redis:
    return made(redis.sentinel).master_for("g", connection_class=kind)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("client", "kind"),
    [
        (of_class(Tunnel, through="h:1"), Tunnel),
        (of_class(Rotating), Rotating),
        (of_class(Renamed), redis.SSLConnection),
        (of_class(redis.UnixDomainSocketConnection, path="/run/a"), redis.UnixDomainSocketConnection),
        (of_async_class(redis.asyncio.SSLConnection), redis.SSLConnection),
        (of_async_class(redis.asyncio.connection.Connection), redis.Connection),
        (behind_sentinel(KombusOwn), redis.SSLConnection),
        (of_class(Tunnel, PlainPool, through="h:1"), Tunnel),
    ],
)
def test_row_65_a_class_of_the_user_opens_the_socket(client: Any, kind: type) -> None:
    [master] = masters_of(client)
    assert master._kind is kind


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (of_class(LoggingIn), r"LoggingIn cannot be used, because redlatch does not call LoggingIn\.on_connect"),
        (of_class(Kept), r"does not call Kept\.__del__"),
        (of_class(Any_), r"does not call Any_\.__getattribute__"),
        (of_async_class(AsyncTunnel), r"AsyncTunnel cannot be used, because it has its own AsyncTunnel\._connect"),
        (behind_sentinel(Managed), r"Managed cannot be used, because it has its own Managed\._connect"),
        (of_class(object), "object is no class of redis-py"),
        (of_class(redis.Connection, ChangingPool), r"the pool has its own ChangingPool\.make_connection"),
    ],
)
def test_row_65_a_class_whose_work_would_be_left_out_is_refused(client: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^masters\[1\]: .*{why}"):
        masters_of(["redis://host", client])


def test_row_65_a_method_that_was_set_on_a_pool_counts_too() -> None:
    client = redis.Redis()
    client.connection_pool.make_connection = client.connection_pool.make_connection  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="the pool has its own make_connection"):
        masters_of(client)


def test_a_class_of_the_user_gets_its_own_arguments_and_those_of_redis_py() -> None:
    [master] = masters_of(of_class(Tunnel, through="10.0.0.1:7", host="h", db=3, health_check_interval=5))
    connection = master._connection(1.0)
    assert (connection.through, connection.host, connection.db, master.name) == ("10.0.0.1:7", "h", 3, "h:6379/3")
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: the connection_class Tunnel cannot be made .*Type"):
        masters_of(of_class(Tunnel, no_such_option=1))


class Odd(socket.socket):
    """A socket that does something to the bytes."""

    def sendall(self, *args: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize("made_by", [Odd, lambda **_: object()])
def test_a_socket_that_is_more_than_a_descriptor_is_refused(made_by: Any) -> None:
    class Wrapping(redis.Connection):
        def _connect(self) -> Any:
            return made_by()

    [master] = masters_of(of_class(Wrapping))
    with pytest.raises(MasterRefused, match=r"_connect\(\) returned .*; return a socket\.socket or an ssl\.SSLSocket"):
        master.connect(1.0)
