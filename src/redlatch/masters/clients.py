"""Make a master from a redis-py client. The client itself is neither used nor closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection as redis_connection
import redis.sentinel

from redlatch.errors import ConfigurationError
from redlatch.masters.cluster import Cluster
from redlatch.masters.master import Address, Group, Master
from redlatch.masters.server import Server
from redlatch.masters.settings import is_default, is_of_redis_py

# A subclass of a connection may define these: those that redlatch calls to open a socket, and those for messages.
# `__del__` and `disconnect` may close a tunnel whose socket is in use.
_CALLED = frozenset({"__init__", "_connect", "_wrap_socket_with_ssl", "host", "port"})
_FOR_MESSAGES = frozenset({"__repr__", "__str__", "repr_pieces", "description_format", "_host_error", "_error_message"})

# Methods by which a pool may change a connection before its use.
_OF_A_POOL = ("ensure_connection", "get_available_connection", "get_connection", "make_connection")

_STOCK = (
    redis_connection.SSLConnection,
    redis_connection.UnixDomainSocketConnection,
    redis_connection.Connection,
    redis.asyncio.connection.SSLConnection,
    redis.asyncio.connection.UnixDomainSocketConnection,
    redis.asyncio.connection.Connection,
)
_MANAGED = (redis.sentinel.SentinelManagedConnection, redis.asyncio.sentinel.SentinelManagedConnection)
_SENTINEL_POOLS = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)

CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)

# redis-py's own function sends READONLY, for reads from replicas.
_READONLY = tuple(kind.on_connect for kind in CLUSTERS)


def master_of_client(client: Any, where: str) -> Master:
    """Copy the settings of a redis-py client for threads or asyncio, which may come from `Sentinel.master_for`."""
    pool = client.connection_pool
    kind, options = _kind_of(pool, where), _options_of(pool.connection_kwargs, where)
    if not isinstance(pool, _SENTINEL_POOLS):
        return Master(kind, options, where=where)
    if not pool.is_master:
        raise ConfigurationError(f"{where}: a client of slave_for() reads from replicas; master_for() is needed")
    return Master(kind, options, _group_of(pool, where), where)


def cluster_of_client(client: Any, where: str) -> Cluster:
    """Copy the settings of a redis-py client of a cluster, for threads or asyncio.

    The seeds are all nodes that the client knows. Those that the user has given name the cluster, if they are known.
    """
    pool = pool_of_nodes(client, where)
    options = _options_of(_without_readonly(client, pool.connection_kwargs), where)
    # redis-py before version 7.1 keeps the user's own list only until it knows the nodes.
    first = _addresses(getattr(client, "startup_nodes", None) or client.nodes_manager.startup_nodes.values())
    return Cluster(
        _kind_of(pool, where),
        options,
        first,
        where,
        getattr(client.nodes_manager, "address_remap", None),
        _addresses(_nodes_of(client)),
    )


def pool_of_nodes(client: Any, where: str) -> Any:
    """Return a connection pool of a client of a cluster; with asyncio a node is the pool of its connections."""
    for node in _nodes_of(client):
        pool = node if isinstance(client, redis.asyncio.RedisCluster) else _pool_of(node)
        if pool is not None:
            return pool
    raise ConfigurationError(f"{where}: the {type(client).__name__} knows no node of its cluster")


def _pool_of(node: Any) -> Any:
    return None if node.redis_connection is None else node.redis_connection.connection_pool


def _nodes_of(client: Any) -> Iterator[Any]:
    manager = client.nodes_manager
    # Another thread may use the client.
    yield from list(manager.nodes_cache.values())
    yield from list(manager.startup_nodes.values())


def _addresses(nodes: Iterable[Any]) -> list[Address]:
    return [(str(node.host), int(node.port)) for node in nodes]


def _without_readonly(client: Any, given: dict[str, Any]) -> dict[str, Any]:
    own = getattr(given.get("redis_connect_func"), "__func__", None)
    if own not in _READONLY or getattr(client, "user_on_connect_func", None) is not None:
        return given
    return {name: value for name, value in given.items() if name != "redis_connect_func"}


def check_pool(pool: Any, where: str) -> None:
    """Refuse settings that redlatch would have to ignore."""
    Server(_kind_of(pool, where), _options_of(pool.connection_kwargs, where), where)


def _options_of(given: dict[str, Any], where: str) -> dict[str, Any]:
    provider = given.get("credential_provider")
    asked = getattr(type(provider), "get_credentials", None)
    if provider is not None and asked in (None, redis.CredentialProvider.get_credentials):
        raise ConfigurationError(
            f"{where}: the credential_provider has no get_credentials(); redlatch logs in from a thread, so "
            "get_credentials_async() is not enough"
        )
    return {name: value for name, value in given.items() if name != "protocol" or not is_default(name, value)}


def _kind_of(pool: Any, where: str) -> Any:
    """Return the connection class for threads that behaves as that of a pool, or refuse the pool."""
    kind: Any = getattr(pool, "connection_class", None)
    stock = next((base for base in _STOCK if isinstance(kind, type) and issubclass(kind, base)), None)
    if stock is None:
        name = getattr(kind, "__qualname__", kind)
        raise ConfigurationError(f"{where}: the connection_class {name} is no class of redis-py")
    own = _overrides(type(pool), _OF_A_POOL) + [name for name in _OF_A_POOL if name in getattr(pool, "__dict__", ())]
    if own:
        raise ConfigurationError(
            f"{where}: the pool has its own {own[0]}, which redlatch does not call; give a client with redis-py's "
            "pool, and open the socket in the _connect() of a connection_class"
        )
    counterpart: type = getattr(redis_connection, stock.__name__)
    changed = [name for name in _overrides(kind, dir(stock)) if name.rpartition(".")[2] not in _FOR_MESSAGES]
    if not changed:
        return counterpart
    unused = [name for name in changed if name.rpartition(".")[2] not in _CALLED]
    if stock is counterpart and not issubclass(kind, _MANAGED) and not unused:
        return kind
    why = f"redlatch does not call {unused[0]}" if unused and stock is counterpart else f"it has its own {changed[0]}"
    raise ConfigurationError(
        f"{where}: the connection_class {kind.__qualname__} cannot be used, because {why}; give a redis.Redis whose "
        "connection_class is a subclass of redis.Connection, redis.SSLConnection or redis.UnixDomainSocketConnection "
        "and opens the socket in _connect(), or one of redis-py's own classes"
    )


def _overrides(kind: type, names: Iterable[str]) -> list[str]:
    ignored = set(dir(object)) - {"__init__", "__getattribute__", "__setattr__", "__new__"}
    ignored |= {"__dict__", "__weakref__", "__module__", "__annotations__", "__abstractmethods__", "_abc_impl"}
    ignored |= {"__slots__", "__orig_bases__", "__parameters__", "__static_attributes__", "__firstlineno__"}
    wanted = set(names) - ignored | {"__getattr__"}
    found = []
    for base in kind.__mro__:
        if base is not object and base is not Generic and not is_of_redis_py(base):
            found += [f"{base.__qualname__}.{name}" for name in sorted(wanted.intersection(vars(base)))]
    return found


def _group_of(pool: Any, where: str) -> Group:
    # The group must refer to neither the pool nor the clients of the sentinels.
    manager = pool.sentinel_manager
    sentinels = []
    for sentinel in manager.sentinels:
        own = sentinel.connection_pool
        sentinels.append(Server(_kind_of(own, where), _options_of(own.connection_kwargs, where), where))
    name = pool.service_name
    # redis-py 5.0 has no such argument.
    host = getattr(manager, "_force_master_ip", None)
    name = name.decode() if isinstance(name, bytes) else name
    return Group(name, sentinels, host, manager.min_other_sentinels, where)
