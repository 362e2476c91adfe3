"""A cluster as one master: its name, its nodes, where they are reached, and what to write for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.masters.cluster import Cluster, map_hosts, url_of_cluster
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Address

SEEDS = [("b", 7001), ("a", 7000)]

PATIENCE = 10.0


def made(seeds: list[Address] = SEEDS, known: list[Address] | None = None, **options: Any) -> Cluster:
    return Cluster(redis_connection.Connection, options, seeds, known=known or [])


@pytest.fixture
def listener() -> Iterator[Callable[[], Address]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname


def test_the_hosts_that_the_user_gives_name_the_cluster_in_any_order() -> None:
    assert made().name == made(SEEDS[::-1]).name == "cluster:a:7000,b:7001"


def test_further_nodes_are_seeds_but_no_part_of_the_name() -> None:
    cluster = made(known=[("a", 7000), ("c", 7002)])
    assert cluster.seeds == (("b", 7001), ("a", 7000), ("c", 7002))
    assert cluster.name == "cluster:a:7000,b:7001"


def test_its_nodes_have_its_options() -> None:
    cluster = made(username="me", password="mine", client_name="shop")
    for node in (cluster.node(("n", 1)), cluster.seed(("n", 1))):
        assert (node.address, node.credentials(), node.client_name) == ("n:1", ("me", "mine"), "shop")
        assert node.in_cluster and not node.is_cluster


def test_it_has_no_other_database() -> None:
    with pytest.raises(ConfigurationError, match="a cluster has no other database than 0"):
        made(db=1)


def test_a_host_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="placeholder"):
        made([("${HOST}", 7000)])


def test_it_is_no_server_itself() -> None:
    """Found by reading: redis-py would have connected to localhost:6379."""
    for connect in (made().connect, made().client):
        with pytest.raises(MasterRefused, match=r"^cluster:a:7000,b:7001 is a cluster, and only its nodes can be"):
            connect(PATIENCE)


# --- where nodes are reached ---------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [False, True])
def test_a_node_is_reached_where_the_map_says(listener: Callable[[], Address], function: bool) -> None:
    cluster = made()
    known = {"10.0.0.1:7000": f"127.0.0.1:{listener()[1]}"}
    map_hosts([cluster], known.__getitem__ if function else known)
    node = cluster.node(("10.0.0.1", 7000))
    with node.connect(PATIENCE) as sock:
        assert sock.getpeername() == listener()
    # Its name does not depend on who reaches it where.
    assert node.name == "10.0.0.1:7000"


def test_a_map_knows_ipv6_addresses(listener: Callable[[], Address]) -> None:
    cluster = made()
    map_hosts([cluster], {"[fd00::1]:7000": f"127.0.0.1:{listener()[1]}"})
    cluster.node(("fd00::1", 7000)).connect(PATIENCE).close()


def test_a_node_that_is_not_in_the_map_and_a_seed_are_reached_as_they_are(listener: Callable[[], Address]) -> None:
    cluster = made()
    map_hosts([cluster], {f"127.0.0.1:{listener()[1] + 1}": "127.0.0.1:1"})
    cluster.node(listener()).connect(PATIENCE).close()
    map_hosts([remapped := made()], lambda address: "127.0.0.1:1")
    remapped.seed(listener()).connect(PATIENCE).close()


def test_the_map_is_a_copy(listener: Callable[[], Address]) -> None:
    cluster, known = made(), {"x:1": f"127.0.0.1:{listener()[1]}"}
    map_hosts([cluster], known)
    known.clear()
    cluster.node(("x", 1)).connect(PATIENCE).close()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda address: {}[address], r"KeyError\('n:1'\)"),
        (lambda address: "host", r"host_map: 'host' is no address; 'host:port' is needed, such as '10\.0\.0\.1:7000'"),
        (lambda address: None, "host_map: None is no address"),
    ],
)
def test_a_function_that_fails_is_why_its_node_cannot_be_used(function: Any, why: str) -> None:
    cluster = made()
    map_hosts([cluster], function)
    with pytest.raises(MasterRefused, match=rf"^n:1 has no place in host_map or address_remap: .*{why}"):
        cluster.node(("n", 1)).connect(PATIENCE)


@pytest.mark.parametrize("wrong", ["host", "host:", ":7000", "host:0", "host:65536", "host:x", 7000, ("h", 1)])
def test_a_map_with_something_else_is_refused(wrong: Any) -> None:
    for host_map in ({wrong: "h:1"}, {"h:1": wrong}):
        with pytest.raises(ConfigurationError, match=r"^host_map: .* is no address; 'host:port' is needed"):
            map_hosts([made()], host_map)


def test_no_map_changes_nothing() -> None:
    map_hosts(masters_of("redis://host"), None)
    map_hosts([cluster := made()], None)
    assert cluster.reached is None


def test_a_map_is_only_for_a_cluster() -> None:
    with pytest.raises(ConfigurationError, match=r"^host_map: it is for the nodes of a cluster, and no cluster"):
        map_hosts(masters_of("redis://host"), {"a:1": "b:1"})


def test_a_map_is_a_mapping_or_a_function() -> None:
    with pytest.raises(TypeError, match=r"^host_map: a mapping or a function is needed, not list"):
        map_hosts([made()], [("a:1", "b:1")])


def test_there_is_one_map() -> None:
    cluster = Cluster(redis_connection.Connection, {}, SEEDS, reached=lambda address: address)
    with pytest.raises(ConfigurationError, match=r"^host_map: the RedisCluster has an address_remap already"):
        map_hosts([cluster], {"a:1": "b:1"})


# --- what to write -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["redis://:s3cr3tpw@a:1", "redis://b"], "redis+cluster://a:1,b:6379"),
        (["rediss://:s3cr3tpw@a:1", "rediss://[fd00::1]:2"], "rediss+cluster://a:1,[fd00::1]:2"),
        (["redis+cluster://me:s3cr3tpw@b:2,a:1?client_name=shop"], "redis+cluster://a:1,b:2"),
        (["redis://a:1/0", "redis://b:1/0", "valkey://a:2"], "redis+cluster://a:1,b:1,a:2"),
    ],
)
def test_the_url_of_a_cluster_names_its_nodes_and_no_credentials(given: list[str], written: str) -> None:
    assert url_of_cluster(masters_of(given)) == written
    masters_of(written)


# --- the URL -------------------------------------------------------------------------------------------------


def cluster_of(url: str) -> Cluster:
    [master] = masters_of(url)
    assert isinstance(master, Cluster)
    return master


def refusal(url: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        masters_of(url)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "seeds"),
    [
        ("a", [("a", 6379)]),
        ("a:7000", [("a", 7000)]),
        ("a:7000,b,c:7002", [("a", 7000), ("b", 6379), ("c", 7002)]),
        ("a:7000,a:7000,b:7000", [("a", 7000), ("b", 7000)]),
        ("[::1]:7000,[fe80::1]", [("::1", 7000), ("fe80::1", 6379)]),
        ("10.0.0.1:7000,node-2.example.com:7001", [("10.0.0.1", 7000), ("node-2.example.com", 7001)]),
        ("a:7000,b:7000/", [("a", 7000), ("b", 7000)]),
        ("a:7000/0", [("a", 7000)]),
    ],
)
def test_the_hosts_are_seeds(hosts: str, seeds: list[Address]) -> None:
    assert list(cluster_of(f"redis+cluster://{hosts}").seeds) == seeds


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("redis", redis_connection.Connection),
        ("valkey", redis_connection.Connection),
        ("rediss", redis_connection.SSLConnection),
        ("valkeys", redis_connection.SSLConnection),
        ("REDISS", redis_connection.SSLConnection),
    ],
)
def test_the_scheme_says_whether_tls_is_used(scheme: str, kind: type) -> None:
    cluster = cluster_of(f"{scheme}+cluster://a,b")
    assert type(cluster.node(("c", 1))._connection(1.0)) is type(cluster.seed(("a", 6379))._connection(1.0)) is kind


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("", "a host of the cluster is malformed"),
        ("a:7000,,b:7000", "a host of the cluster is malformed"),
        ("a:7000,", "a host of the cluster is malformed"),
        ("a:0", "a host of the cluster is malformed"),
        ("a:70000", "a host of the cluster is malformed"),
        ("a:b", "a host of the cluster is malformed"),
        ("::1", "a host of the cluster is malformed"),
        ("a b:7000", "the host has a space"),
        ("${HOST}:7000", "the host has a placeholder"),
        ("a:7000/1", "a cluster has no other database than 0"),
        ("a:7000/name", "a cluster has no other database than 0"),
        ("a:7000?db=1", "a cluster has no other database than 0"),
        ("user:p#ss@a:7000", "special characters in a password must be percent-encoded"),
        ("user:p/ss@a:7000", "special characters in a password must be percent-encoded"),
        ("user:p?ss@a:7000", "special characters in a password must be percent-encoded"),
        ("a:7000?no_such_option=1", "no_such_option"),
    ],
)
def test_a_wrong_url_is_refused(rest: str, why: str) -> None:
    assert why in refusal(f"redis+cluster://{rest}")


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://user:s3cr3tpw@a:b",
        "redis+cluster://user:s3cr3tpw@a:7000/1",
        "redis+cluster://user:s3cr3t/pw@a:7000",
        "redis+cluster://user:s3cr3t@pw@a:7000,,b",
        "redis+clusters://user:s3cr3tpw@a",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    assert "s3cr3t" not in refusal(url)


def test_nodes_inherit_tls_and_the_protocol() -> None:
    cluster = cluster_of("rediss+cluster://me:s3cr3tpw@a,b?ssl_cert_reqs=none&ssl_check_hostname=false&protocol=2")
    for node in (cluster.node(("c", 7003)), cluster.seed(("a", 6379))):
        connection: Any = node._connection(1.5)
        assert (node.credentials(), node.resp2, node.db) == (("me", "s3cr3tpw"), True, 0)
        assert not connection.check_hostname
        assert connection.socket_connect_timeout == 1.5


@pytest.mark.parametrize("host", ["%", "a b", "${HOST}", "a,b", "user@host"])
def test_no_node_has_a_host_that_cannot_be(host: str) -> None:
    with pytest.raises(ConfigurationError):
        made().node((host, 1))
