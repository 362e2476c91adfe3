"""One server: its address, its credentials and its TLS files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.listed import masters_of
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ssl_ca_data", "s3cr3t"),
        ("ssl_ca_data", ""),
        ("ssl_ca_path", "/nowhere/s3cr3t"),
        ("ssl_ciphers", "S3CR3T"),
        ("ssl_exclude_verify_flags", ["s3cr3t"]),
        ("ssl_include_verify_flags", ["s3cr3t"]),
        ("ssl_min_version", 99),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_option_of_tls_that_cannot_be_used_is_named(option: str, value: Any, asynchronous: bool) -> None:
    module: Any = redis.asyncio if asynchronous else redis
    client = module.Redis(ssl=True, **{option: value})
    with pytest.raises(ConfigurationError) as caught:
        masters_of(["redis://b", client])
    text = f"masters[1]: the option {option} has a value that cannot be used"
    assert str(caught.value).startswith(text) and "s3cr3t" not in str(caught.value).lower()


@pytest.mark.parametrize(
    "query", ["ssl_ciphers=FOO", "ssl_min_version=99", "ssl_ca_data=foo", "ssl_ca_path=/nonexistent"]
)
@pytest.mark.parametrize("url", ["rediss://a", "rediss+sentinel://s1/g"])
def test_an_option_of_tls_that_cannot_be_used_is_named_in_a_url(url: str, query: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^masters\[0\]: the option {query.partition('=')[0]} has a value"):
        masters_of(f"{url}?{query}")


def test_options_of_tls_that_can_be_used_are_accepted(tmp_path: Path) -> None:
    masters_of(f"rediss://a?ssl_ciphers=ECDHE%2BAESGCM&ssl_min_version=772&ssl_ca_path={tmp_path}")
