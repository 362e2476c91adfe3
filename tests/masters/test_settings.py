"""What becomes of each setting of redis-py: the table is complete, and says what happens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from redlatch.errors import ConfigurationError
from redlatch.masters import settings
from redlatch.masters.clients import master_of_client
from redlatch.masters.listed import masters_of
from redlatch.masters.settings import CONNECTION, OURS, REFUSED, TABLE, UNUSED

ROOT = Path(__file__).parents[2]
PASSWORD = "s3cr3tpw"

# The parameters of redis-py that stand for others.
OTHERS = {"self", "args", "kwargs", "connection_kwargs", "url"}


def internal(name: str) -> bool:
    """Return whether a class is one that only redis-py itself makes."""
    return "CacheProxy" in name or "MaintNotificationsAbstract" in name


def classes() -> Iterator[type]:
    """Return all classes of redis-py that a client is made of."""
    for module in (redis, redis.asyncio):
        yield from (module.Redis, module.RedisCluster)
        for name in dir(module.connection):
            kind = getattr(module.connection, name)
            if isinstance(kind, type) and name.endswith(("Connection", "ConnectionPool")) and not internal(name):
                yield kind
    for sentinel in (redis.sentinel, redis.asyncio.sentinel):
        yield from (sentinel.Sentinel, sentinel.SentinelConnectionPool, sentinel.SentinelManagedConnection)


def parameters() -> set[str]:
    found = {name for kind in classes() for name in inspect.signature(kind).parameters}
    found |= {*redis.connection.URL_QUERY_ARGUMENT_PARSERS, *redis.asyncio.connection.URL_QUERY_ARGUMENT_PARSERS}
    # What a client of a cluster hands on to those of its nodes.
    return found | {*redis.cluster.REDIS_ALLOWED_KEYS}


def test_every_parameter_of_redis_py_is_in_the_table() -> None:
    """A new parameter of redis-py fails here: decide whether a lock needs it, and add it to `settings.TABLE`."""
    assert {"host", "ssl_ca_certs", "cache_config", "min_other_sentinels", "queue_class"} <= parameters()
    assert {"startup_nodes", "address_remap", "read_from_replicas", "connection_pool_class"} <= parameters()
    assert parameters() - OTHERS - set(TABLE) == set()


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_everything_that_redis_py_puts_into_a_pool_is_in_the_table(module: Any) -> None:
    for options in ({}, {"ssl": True}, {"unix_socket_path": "/run/a.sock"}):
        assert set(module.Redis(**options).connection_pool.connection_kwargs) <= set(TABLE)
    sentinel = (redis if module is redis else redis.asyncio).sentinel.Sentinel([("s", 1)])
    assert set(sentinel.master_for("g").connection_pool.connection_kwargs) <= set(TABLE)


@pytest.mark.filterwarnings("ignore:.*'read_from_replicas':DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"ssl": True}, {"read_from_replicas": True}])
def test_everything_that_redis_py_gives_to_the_nodes_of_a_cluster_is_in_the_table(options: Any) -> None:
    client = redis.asyncio.RedisCluster(host="h", **options)
    [node] = client.nodes_manager.startup_nodes.values()
    assert {*client.connection_kwargs, *node.connection_kwargs} <= set(TABLE)


def test_every_setting_that_is_not_used_has_a_reason() -> None:
    assert {
        name for name, setting in TABLE.items() if setting.fate in (UNUSED, REFUSED) and not setting.reason
    } == set()
    assert {setting.fate for setting in TABLE.values()} == {CONNECTION, OURS, UNUSED, REFUSED}


def test_the_reference_lists_every_setting_that_is_not_used() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    rows: dict[str, list[str]] = {}
    for name, setting in TABLE.items():
        if setting.fate in (UNUSED, REFUSED):
            rows.setdefault(setting.reason, []).append(f"`{name}`")
    assert [
        row for row in (f"| {', '.join(names)} | {reason} |" for reason, names in rows.items()) if row not in page
    ] == []


VALUES: dict[str, Any] = {
    "db": 1,
    "username": "me",
    "password": "mine",
    "credential_provider": redis.UsernamePasswordCredentialProvider("me", "mine"),
    "host": "h",
    "port": 7,
    "path": "/run/a.sock",
    "socket_keepalive": False,
    "socket_keepalive_options": {4: 10},
    "socket_type": 2,
    "ssl_cert_reqs": "optional",
    "ssl_check_hostname": False,
    "ssl_include_verify_flags": [1],
    "ssl_exclude_verify_flags": [1],
    "ssl_min_version": 771,
    "ssl_validate_ocsp": True,
    "ssl_validate_ocsp_stapled": True,
    "ssl_ocsp_context": object(),
}


@pytest.mark.parametrize("name", [name for name, setting in TABLE.items() if setting.fate == CONNECTION])
def test_redis_pys_connection_gets_the_setting(name: str) -> None:
    value: Any = VALUES.get(name, "text")
    kind: Any = redis.connection.SSLConnection
    if name == "path":
        kind = redis.connection.UnixDomainSocketConnection
    if name not in {*inspect.signature(kind.__init__).parameters, *settings.known_to_redis_py(kind)}:
        pytest.skip("this redis-py has no such parameter")
    pool = redis.ConnectionPool(connection_class=kind, **{name: value})
    # Not `masters_of`, which reads the files.
    master = master_of_client(redis.Redis(connection_pool=pool), "masters[0]")
    assert master._options[name] is value
    # What redis-py makes of it is in a connection of its own, too.
    assert shown(master._connection(1.0)) == shown(
        kind(**{name: value}, socket_timeout=1.0, socket_connect_timeout=1.0)
    )


def shown(connection: Any) -> dict[str, Any]:
    plain = (int, str, bytes, float, list, dict, type(None))
    hidden = ("maint", "_maint", "orig", "_")
    return {
        key: value for key, value in vars(connection).items() if isinstance(value, plain) and not key.startswith(hidden)
    }


@pytest.mark.parametrize("name", [name for name, setting in TABLE.items() if setting.fate == REFUSED])
def test_a_setting_that_would_be_dropped_is_refused(name: str) -> None:
    kind = redis.connection.Connection
    with pytest.raises(ConfigurationError) as caught:
        settings.for_connection(kind, {name: print}, "masters[0]")
    assert str(caught.value) == f"masters[0]: {name} cannot be used: {TABLE[name].reason}"
    assert settings.for_connection(kind, {name: None}, "masters[0]") == {}


def test_an_option_that_an_older_redis_py_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = settings.known_to_redis_py
    monkeypatch.setattr(settings, "known_to_redis_py", lambda kind: known(kind) - {"ssl_ciphers"})
    with pytest.raises(
        ConfigurationError, match=r"^masters\[0\]: redis-py .* does not have the option ssl_ciphers yet"
    ):
        masters_of("rediss://host?ssl_ciphers=ECDHE")


def test_a_redis_connect_func_of_a_client_is_refused() -> None:
    def log_in(connection: Any) -> None:
        raise AssertionError

    for module in (redis, redis.asyncio):
        with pytest.raises(ConfigurationError, match=r"^masters\[0\]: redis_connect_func .* use credential_provider"):
            masters_of(module.Redis(redis_connect_func=log_in))


@pytest.mark.parametrize("name", [name for name, setting in TABLE.items() if setting.fate == UNUSED])
def test_a_setting_that_cannot_matter_is_left_out(name: str) -> None:
    assert settings.for_connection(redis.connection.Connection, {name: print}, "masters[0]") == {}


def test_a_setting_of_a_later_redis_py_is_refused_unless_it_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(redis.Redis):
        def __init__(self, shuffle: str = "no", **options: Any) -> None:
            super().__init__(**options)
            self.connection_pool.connection_kwargs["shuffle"] = shuffle

    monkeypatch.setattr(redis, "Redis", Later)
    masters_of(Later())
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: .* does not know the option 'shuffle' of redis-py"):
        masters_of(Later(shuffle="yes"))


@pytest.mark.parametrize("option", ["ssl=true", "ssl_cert_reqs=required", "ssl_ca_certs=/ca.pem"])
@pytest.mark.parametrize("place", ["redis://:{}@host?", "redis+sentinel://:{}@host/g?"])
def test_an_option_of_tls_in_a_url_without_tls_is_refused(place: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^masters\[0\]: ssl.*write rediss://") as caught:
        masters_of(place.format(PASSWORD) + option)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("scheme", ["rediss://:{}@host", "rediss+sentinel://:{}@s1,s2/g"])
@pytest.mark.parametrize("written", ["CERT_{}", "cert_{}", "ssl.CERT_{}", "{}"])
@pytest.mark.parametrize("check", ["required", "optional", "none"])
def test_celerys_names_of_the_certificate_checks_are_accepted(scheme: str, written: str, check: str) -> None:
    value = written.format(check if written == "{}" else check.upper())
    [master] = masters_of(f"{scheme.format(PASSWORD)}?ssl_cert_reqs={value}")
    for server in (master, *(master.group.sentinels if master.group else ())):
        assert server._options["ssl_cert_reqs"] == check


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (f"ssl_cert_reqs={PASSWORD}", "CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE is needed"),
        (f"ssl_min_version={PASSWORD}", "771 for TLS 1.2 is needed"),
        (f"protocol={PASSWORD}", "2 or 3 is needed"),
        ("protocol=4", "2 or 3 is needed"),
        (f"db={PASSWORD}", "a database number is needed"),
        (f"port={PASSWORD}", "a number from 1 to 65535 is needed"),
        (f"socket_timeout={PASSWORD}", "socket_timeout has a value that cannot be used"),
        ("socket_keepalive_options=1", "cannot be written in a URL"),
        ("credential_provider=me", "cannot be written in a URL"),
        ("client_name=two+words", "printable ASCII without spaces"),
        ("no_such_option=1", "no connection has the option 'no_such_option'"),
    ],
)
@pytest.mark.parametrize("place", ["rediss://me:{}@host?", "rediss+sentinel://me:{}@host/g?"])
def test_an_error_names_the_option_and_not_the_password(place: str, option: str, wanted: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        masters_of(["redis://a", place.format(PASSWORD) + option])
    said = str(caught.value)
    assert said.startswith("masters[1]: ") and option.partition("=")[0] in said and wanted in said
    assert "percent" not in said and PASSWORD not in f"{said} {caught.value.__cause__!r}"


def test_the_protocol_that_redis_py_gives_to_every_client_says_nothing() -> None:
    default = inspect.signature(redis.Redis.__init__).parameters["protocol"].default
    assert [masters_of(redis.Redis(protocol=protocol))[0].resp2 for protocol in (default, 3)] == [False, False]
    assert masters_of("redis://host?protocol=2")[0].resp2
    assert masters_of(redis.Redis(protocol=2))[0].resp2 == (default != 2)


def test_a_password_of_bytes_is_sent_as_it_is() -> None:
    [master] = masters_of(redis.Redis(username="me", password=b"\xffpw"))  # type: ignore[arg-type]
    assert master.credentials() == ("me", b"\xffpw")


def test_a_provider_for_asyncio_alone_is_refused() -> None:
    class Provider(redis.CredentialProvider):
        async def get_credentials_async(self) -> tuple[str, str]:
            raise AssertionError

    with pytest.raises(ConfigurationError, match=r"get_credentials_async\(\) is not enough"):
        masters_of(redis.asyncio.Redis(credential_provider=Provider()))


@pytest.mark.parametrize(
    "url", ["redis://a", "rediss://a", "unix:///s", "redis+sentinel://s1/g", "rediss+sentinel://s1/g"]
)
@pytest.mark.parametrize(
    "option", ["connection_class", "connection_pool", "service_name", "sentinels", "unix_socket_path"]
)
def test_an_option_of_a_pool_is_refused_in_a_url(url: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^masters\[1\]: {option} is no option of a URL") as caught:
        masters_of(["redis://b", f"{url}?{option}={PASSWORD}"])
    assert PASSWORD not in str(caught.value)
