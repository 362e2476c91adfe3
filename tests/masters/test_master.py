"""One master: its name in the list, with and without Sentinel."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.group import Group
from redlatch.masters.master import Master
from redlatch.masters.server import Server

PATIENCE = 10.0


def behind_sentinels(db: int = 0) -> Master:
    sentinels = [Server(redis_connection.Connection, {"host": host, "port": 26379}) for host in ("s2", "s1")]
    return Master(redis_connection.Connection, {"db": db}, Group("mymaster", sentinels))


def test_a_master_is_named_by_its_address_and_its_database() -> None:
    assert Master(redis_connection.Connection, {"host": "host", "port": 1}).name == "host:1"
    assert Master(redis_connection.Connection, {"host": "host", "port": 1, "db": 2}).name == "host:1/2"


def test_a_master_behind_sentinels_is_named_by_its_group() -> None:
    assert behind_sentinels().name == "sentinel:mymaster"
    assert behind_sentinels(3).name == "sentinel:mymaster/3"


def test_its_name_may_list_the_sentinels_in_order() -> None:
    master = behind_sentinels(3)
    master.name_sentinels()
    assert master.name == "sentinel:mymaster@s1:26379,s2:26379/3"


def test_it_is_reached_where_the_sentinels_say() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with behind_sentinels().connect_at((host, port), PATIENCE) as sock:
            assert sock.getpeername() == (host, port)


def test_the_tls_files_for_the_sentinels_are_checked_too(tmp_path: Path) -> None:
    sentinel = Server(redis_connection.SSLConnection, {"host": "s1", "ssl_ca_certs": str(tmp_path / "none")})
    master = Master(redis_connection.Connection, {}, Group("mymaster", [sentinel]))
    with pytest.raises(ConfigurationError, match="ssl_ca_certs"):
        master.check_files("masters[0]")
