"""One server: its address, its credentials and its TLS files."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.server import Server, address_of, kind_opens_files

PASSWORD = "s3cr3tpw"


def test_an_ipv6_address_has_brackets() -> None:
    assert address_of("::1", 1) == "[::1]:1"
    assert address_of("host", 1) == "host:1"


def test_the_address_has_no_credentials() -> None:
    server = Server(redis_connection.Connection, {"host": "host", "port": 1, "username": "me", "password": PASSWORD})
    assert server.address == "host:1"
    assert PASSWORD not in repr(server)
    assert server.credentials() == ("me", PASSWORD)


def test_a_path_counts_only_for_unix_sockets() -> None:
    assert kind_opens_files(redis_connection.UnixDomainSocketConnection)
    assert Server(redis_connection.UnixDomainSocketConnection, {"path": "/run/x"}).address == "/run/x"
    with pytest.raises(ConfigurationError, match="path is only for unix://"):
        Server(redis_connection.Connection, {"path": "/run/x"})
    with pytest.raises(ConfigurationError, match="host is only for TCP"):
        Server(redis_connection.UnixDomainSocketConnection, {"path": "/run/x", "host": "h"})


def test_an_option_that_no_connection_has_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^masters: no connection has the option 'no_such_option'"):
        Server(redis_connection.Connection, {"no_such_option": 1})


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    server = Server(redis_connection.SSLConnection, {"ssl_ca_certs": str(tmp_path / "none")})
    with pytest.raises(ConfigurationError, match=r"masters\[0\]: ssl_ca_certs='.*none' cannot be read"):
        server.check_files("masters[0]")
