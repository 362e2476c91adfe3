"""Masters from redis-py clients, those of Sentinel, too."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.connection as redis_connection
import redis.sentinel

from redlatch.errors import ConfigurationError
from redlatch.masters.clients import master_of_client
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
