"""A master from a redis-py client. The client itself is neither used nor closed."""

from __future__ import annotations

from typing import Any

import redis.asyncio.sentinel
import redis.connection as redis_connection
import redis.sentinel

from redlatch.errors import ConfigurationError
from redlatch.masters.group import Group
from redlatch.masters.master import Master
from redlatch.masters.server import Server

# Options whose asyncio objects do not work with threads.
_OF_ASYNCIO = frozenset({"retry", "event_dispatcher"})


def master_of_client(client: Any, where: str) -> Master:
    """Copy the settings of a redis-py client.

    Args:
        client: a client for threads or asyncio, which may come from `Sentinel.master_for`.
        where: the argument that names this master, for the error.

    Raises:
        ConfigurationError: the client is one for replicas.
    """
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    if not isinstance(pool, (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)):
        return Master(_kind_of(pool), options)
    if not pool.is_master:
        raise ConfigurationError(f"{where}: a client of slave_for() reads from replicas; master_for() is needed")
    return Master(_kind_of(pool), options, _group_of(pool))


def _kind_of(pool: Any) -> type:
    """Return the class of connections for threads that does what the class of a pool does."""
    name = pool.connection_class.__name__
    if "Unix" in name:
        return redis_connection.UnixDomainSocketConnection
    return redis_connection.SSLConnection if "SSL" in name else redis_connection.Connection


def _group_of(pool: Any) -> Group:
    """Return the group of a Sentinel pool. It refers to neither the pool nor the clients of the sentinels."""
    manager = pool.sentinel_manager
    sentinels = []
    for sentinel in manager.sentinels:
        own = sentinel.connection_pool
        options = {name: value for name, value in own.connection_kwargs.items() if name not in _OF_ASYNCIO}
        sentinels.append(Server(_kind_of(own), options))
    name = pool.service_name
    # redis-py 5.0 has no such argument.
    host = getattr(manager, "_force_master_ip", None)
    return Group(name.decode() if isinstance(name, bytes) else name, sentinels, host, manager.min_other_sentinels)
