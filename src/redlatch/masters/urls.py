"""A master from a URL.

::

    redis://[user:password@]host[:port][/db][?option=value]
    unix://[user:password@]/path[?db=number]
    redis+sentinel://[user:password@]host[:port],host[:port],.../group[/db][?option=value]
    redis+cluster://[user:password@]host[:port],host[:port],...[?option=value]

The user and the password are those of the masters. The sentinels get `sentinel_username` and `sentinel_password`, or
none. All other options are for both, and `rediss+sentinel://` uses TLS for both. The hosts of a cluster are some of its
nodes.
"""

from __future__ import annotations

import re
import ssl
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.connection as redis_connection

from redlatch.errors import ConfigurationError
from redlatch.masters.cluster import Cluster
from redlatch.masters.master import Address, Group, Master
from redlatch.masters.server import Server, check_host, kind_opens_files
from redlatch.masters.settings import from_url, known_to_redis_py, wrong_value

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
OF_SENTINELS = {f"{scheme}+sentinel": scheme for scheme in SCHEMES[:4]}
OF_CLUSTERS = {f"{scheme}+cluster": scheme for scheme in SCHEMES[:4]}

PORT, SENTINEL_PORT = 6379, 26379

_OF_THE_MASTER = ("username", "password", "db", "credential_provider")

_INVALID = re.compile(r"Invalid value for ['`](\w+)['`]")

_ENCODED = "special characters in a password must be percent-encoded: '/' as %2F, '?' as %3F, '#' as %23 and '@' as %40"
_SUCH_AS = "such as redis+sentinel://s1,s2,s3/mymaster"
_SUCH_A_CLUSTER = "such as redis+cluster://10.0.0.1:7000,10.0.0.2:7000"

_SENTINELS = f"for sentinels write redis+sentinel://, or rediss+sentinel:// with TLS, {_SUCH_AS}"
_CLUSTER = f"for a cluster write redis+cluster://, or rediss+cluster:// with TLS, {_SUCH_A_CLUSTER}"
_TLS = "for TLS write rediss://, such as rediss://10.0.0.1:6379"
_SOCKET = "for a socket write unix://, such as unix:///run/redis.sock"
_DATABASE = "for locks in a database use redlatch.sql.Client"
_NO_STORE = "locks are kept on servers of Redis or Valkey; write redis:// and the port of such a server"
_INSTEAD = {
    **dict.fromkeys(("sentinel", "sentinels", "redis-sentinel", "redissentinel", "rediss-sentinel"), _SENTINELS),
    **dict.fromkeys(("sentinel+redis", "redis+sentinels", "valkey-sentinel", "unix+sentinel"), _SENTINELS),
    **dict.fromkeys(("redis-cluster", "rediscluster", "rediss-cluster", "redis+clusters", "cluster"), _CLUSTER),
    **dict.fromkeys(("redis+ssl", "redis+tls", "redis-ssl", "redis-tls", "ssl", "tls"), _TLS),
    **dict.fromkeys(("redis+socket", "redis+unix", "redis-socket", "socket", "file"), _SOCKET),
    **dict.fromkeys(("postgresql", "postgres", "mysql", "mariadb", "sqlite"), _DATABASE),
    **dict.fromkeys(
        ("http", "https", "tcp", "memcached", "memcache", "amqp", "etcd", "zookeeper", "mongodb"), _NO_STORE
    ),
}


def master_of_url(url: str, where: str) -> Master:
    """Return the master that a URL names. No error repeats a part of the URL that may be a password."""
    scheme, colon, rest = url.partition("://")
    kind_of_url = scheme.lower()
    if not colon or kind_of_url not in (*SCHEMES, *OF_SENTINELS, *OF_CLUSTERS):
        raise _unknown(scheme, bool(colon), where)
    if kind_of_url in OF_CLUSTERS:
        return _of_cluster(OF_CLUSTERS[kind_of_url], rest, where)
    if kind_of_url in OF_SENTINELS:
        return _behind_sentinels(OF_SENTINELS[kind_of_url], rest, where)
    _check_place(kind_of_url, rest, where)
    kind, options = _parsed(kind_of_url, rest, where)
    if kind_opens_files(kind) and not options.get("path"):
        raise ConfigurationError(f"{where}: unix:// needs the socket's path, such as unix:///run/redis.sock")
    return Master(kind, options, where=where)


def _check_place(scheme: str, rest: str, where: str) -> None:
    # No error quotes the host, port or database: each may be a part of a password.
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(authority) :]
    credentials, at, place = authority.rpartition("@")
    if "#" in tail or ("@" in tail and not at and not _is_place(place)):
        raise ConfigurationError(f"{where}: {_ENCODED}")
    if at and "@" in credentials and "," in credentials:
        raise ConfigurationError(f"{where}: several hosts in one URL, or {_ENCODED}")
    if scheme == "unix":
        return
    host, colon, port = _split(place)
    if "," in port:
        check_host(place, where)
    if host:
        check_host(host if host.startswith("%") else unquote(host), where)
    if colon and port and not _is_port(port):
        raise ConfigurationError(f"{where}: the port must be a number from 1 to 65535, such as redis://10.0.0.1:6379")
    if not _is_place(place):
        raise ConfigurationError(f"{where}: the host is malformed; an IPv6 address has brackets: redis://[::1]:6379")
    path = urlsplit(f"redis://host{tail}").path.strip("/")
    if path and not path.isdecimal():
        hint = f"; {_ENCODED}" if "@" in tail else ""
        raise ConfigurationError(f"{where}: the text after the first '/' must be a database number{hint}")


def _split(place: str) -> tuple[str, str, str]:
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        return host, rest[:1], rest[1:]
    host, colon, port = place.rpartition(":")
    return (host, colon, port) if colon else (port, "", "")


def _is_place(text: str) -> bool:
    try:
        found = urlsplit(f"redis://{text}")
        return found.port is None or found.port > 0
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def _unknown(scheme: str, has_scheme: bool, where: str) -> ConfigurationError:
    known = ", ".join(f"{name}://" for name in (*SCHEMES, "redis+sentinel", "redis+cluster"))
    wanted = f"one of {known} is needed, such as redis://localhost:6379"
    if not (scheme or has_scheme):
        return ConfigurationError(f"{where}: an empty URL; there may be a comma too many: {wanted}")
    if not has_scheme:
        return ConfigurationError(f"{where}: a URL without a scheme; write redis:// before the host: {wanted}")
    family = scheme.lower()
    instead = _INSTEAD.get(family) or (_DATABASE if _INSTEAD.get(family.partition("+")[0]) == _DATABASE else wanted)
    # Any other text may be credentials in the wrong place.
    shown = f" {scheme!r}" if scheme.isalnum() or family in _INSTEAD else ""
    return ConfigurationError(f"{where}: unknown scheme{shown}; {instead}")


def _parsed(scheme: str, rest: str, where: str) -> tuple[type, dict[str, Any]]:
    try:
        options: dict[str, Any] = redis_connection.parse_url(f"{scheme.replace('valkey', 'redis')}://{rest}")
    except ValueError as error:
        named = _INVALID.match(str(error))
        if named is None:
            raise
        raise wrong_value(named[1], where) from None
    from_url(parse_qs(rest.partition("?")[2]), where)
    kind = options.pop("connection_class", redis_connection.Connection)
    return kind, _verifying(kind, options) if issubclass(kind, redis_connection.SSLConnection) else options


def _verifying(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    # redis-py < 6 did not verify chain and host name by default.
    checks = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
    # redis-py 5.0 takes Python's default, which is not lower.
    return {name: value for name, value in checks.items() if name in known_to_redis_py(kind)} | options


def _behind_sentinels(scheme: str, rest: str, where: str) -> Master:
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    name, _, db = path.rstrip("/").partition("/")
    if "#" in rest or "@" in path or "@" in query:
        raise ConfigurationError(f"{where}: {_ENCODED}")
    if not name:
        raise ConfigurationError(f"{where}: the name of the group is missing, {_SUCH_AS}")
    if db and not db.isdecimal():
        raise ConfigurationError(f"{where}: the text behind the group must be a database number, {_SUCH_AS}/1")
    kind, options = _parsed(scheme, f"{credentials}{at}sentinel/{db}?{query}", where)
    del options["host"]
    own = {option: options.pop(f"sentinel_{option}", None) for option in ("username", "password")}
    shared = {option: value for option, value in options.items() if option not in _OF_THE_MASTER} | own
    sentinels = [Server(kind, shared | _sentinel_at(host, where), where) for host in hosts.split(",")]
    return Master(kind, options, Group(unquote(name), sentinels, where=where), where)


def _sentinel_at(text: str, where: str) -> dict[str, object]:
    place = _place_of(text)
    if place is None:
        raise ConfigurationError(f"{where}: a host of the sentinels is malformed; host[:port] is needed, {_SUCH_AS}")
    return {"host": place[0], "port": place[1] or SENTINEL_PORT}


def _of_cluster(scheme: str, rest: str, where: str) -> Master:
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if "#" in rest or "@" in path or "@" in query:
        raise ConfigurationError(f"{where}: {_ENCODED}")
    if path.strip("/") not in ("", "0"):
        raise ConfigurationError(f"{where}: a cluster has no other database than 0; leave out what follows the hosts")
    kind, options = _parsed(scheme, f"{credentials}{at}cluster/?{query}", where)
    seeds: list[Address] = []
    for text in hosts.split(","):
        seed = _place_of(text)
        if seed is None:
            raise ConfigurationError(
                f"{where}: a host of the cluster is malformed; host[:port] is needed, {_SUCH_A_CLUSTER}"
            )
        seeds.append((seed[0], seed[1] or PORT))
    return Cluster(kind, options, seeds, where)


def _place_of(text: str) -> tuple[str, int | None] | None:
    try:
        found = urlsplit(f"redis://{text}")
        host, port = found.hostname, found.port
    except ValueError:
        return None
    return None if not host or port == 0 else (host, port)
