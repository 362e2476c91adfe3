"""What `connect` finds wrong."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.exceptions as redis_errors
from support.faces import Face, await_true
from support.selection import on_one_face

from redlatch import ConfigurationError, Guard, MasterQuarantined, MasterRefused, QuorumUnavailable
from redlatch.locks.connecting import cure_of
from redlatch.masters.server import whole_cluster
from redlatch.testing import embedded

Fleet = Callable[..., embedded.Masters]


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        (redis_errors.AuthenticationError("WRONGPASS ..."), "password"),
        (redis_errors.NoPermissionError("NOPERM ..."), "right"),
        (redis_errors.ResponseError("ERR DB index is out of range"), "database"),
        (redis_errors.ResponseError("CLUSTERDOWN Hash slot not served"), "write redis+cluster://"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "redis://"),
        (MasterRefused("it was left for others"), ""),
        (redis_errors.ResponseError("LOADING ..."), ""),
        (ConnectionRefusedError(111, "Connection refused"), ""),
        (MasterQuarantined("it was flushed"), ""),
        (TimeoutError("timed out"), ""),
    ],
)
def test_only_errors_that_last_have_a_cure(cause: BaseException, part: str) -> None:
    assert part in cure_of(cause) and bool(cure_of(cause)) == bool(part)


def refusal(client: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        client.connect(**options)
    return str(caught.value)


def test_a_wrong_password_is_told_at_once_with_its_cure(connect: Face, three: list[str]) -> None:
    said = refusal(connect([url.replace("//", "//nobody:wrong@") for url in three]))
    assert said.count("give the right user and password in the URL") == 3
    assert "WRONGPASS" in said and "wrong@" not in said


def test_a_database_that_does_not_exist_is_told(connect: Face, url: str) -> None:
    assert "choose a database that the server has" in refusal(connect(f"{url}/999"))


@on_one_face("threads")
@pytest.mark.parametrize("db", ["", "/1"])
@pytest.mark.parametrize("guard", [None, Guard()])
def test_a_node_of_a_cluster_is_refused(connect: Face, fleet: Fleet, db: str, guard: Guard | None) -> None:
    """All slots are on the node, so every name works until the cluster grows."""
    [url] = fleet(1, config={"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}).urls
    with redis.Redis.from_url(url) as server:
        server.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await_true(lambda: b"cluster_state:ok" in server.execute_command("CLUSTER", "INFO"))
        assert server.set("name", "value")
    said = refusal(connect(f"{url}{db}", guard=guard))
    address = url.removeprefix("redis://")
    whole = whole_cluster(f"redis+cluster://{address}")
    assert said == f"masters[0]: {address} is a node of a cluster; {whole}"


def test_one_node_of_a_cluster_among_others_is_refused_by_the_first_use(
    connect: Face, urls: list[str], fleet: Fleet, name: str
) -> None:
    nodes = fleet(1, config={"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}).urls
    with pytest.raises(ConfigurationError, match=r"^masters\[2\]: .* is a node of a cluster"):
        client = connect([*urls[:2], *nodes], guard=None)
        client.connect()
        client.lock(name).acquire()


def test_a_user_without_the_rights_is_told(connect: Face, url: str, name: str) -> None:
    with redis.Redis.from_url(url) as server:
        server.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", "-@all", "+hello", "+select", "+client")
        try:
            assert "grant the right" in refusal(connect(url.replace("//", f"//{name}:pw@")))
        finally:
            server.execute_command("ACL", "DELUSER", name)


def test_a_minority_with_such_an_error_is_told_only_to_those_who_require_all(
    connect: Face, three: list[str], name: str
) -> None:
    urls = [*three[:2], three[2].replace("//", "//nobody:wrong@")]
    client = connect(urls)
    client.connect()
    client.connect(require="quorum")
    assert "password" in refusal(client, require="all")
    assert client.lock(name).acquire()


def test_masters_that_are_down_are_told_to_those_who_require_them(connect: Face, three: list[str], name: str) -> None:
    some = connect([*three[:2], "redis://127.0.0.1:1"])
    some.connect()
    some.connect(require="quorum")
    with pytest.raises(QuorumUnavailable, match="2 of 3 masters vote, 3 are required") as caught:
        some.connect(require="all")
    assert list(caught.value.causes) == ["127.0.0.1:1"]
    none = connect(["redis://127.0.0.1:1"])
    none.connect()
    with pytest.raises(QuorumUnavailable, match="0 of 1 masters vote, 1 are required"):
        none.connect(require="quorum")


def test_masters_that_are_all_there_are_enough(connect: Face, three: list[str]) -> None:
    client = connect(three)
    client.connect(require="all")
    client.connect(require="quorum")
    with pytest.raises(ConfigurationError, match="require: 'all', 'quorum' or None is needed, got 'most'"):
        client.connect(require="most")
