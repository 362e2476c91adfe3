"""Django's cache backend for Redis, with locks.

The locks are on the masters of settings.REDLATCH. Without that setting they are on the cache's own server, where
`cache.clear()` deletes them. For django-redis see `redlatch.django.django_redis_cache`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import redis
from django.core.cache.backends.redis import RedisCache as PlainRedisCache

from ..compat.clients import RENEWED_MS, async_client_of, encoder_of, home_of
from ..compat.redis_py import Lock
from ..compat.shared import redis_error_of
from .clients import DEFAULT_ALIAS, aliases, get_async_client, get_client
from .locks import AsyncCacheLock, CacheLock

# The servers of caches, kept for the life of the process. Django makes a cache object with its own connection pool for
# each thread and request, and the drop-in's client would end with the last pool.
_servers: set[Any] = set()


class LockMixin:
    """Gives a cache of Redis `lock` and `alock`. It must precede the cache's class in the list of bases."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)  # type: ignore[call-arg]
        self._params_of_locks = params

    @property
    def lock_alias(self) -> str | None:
        """The alias in settings.REDLATCH for the locks; None if they are on the cache's server.

        The cache's entry "REDLATCH" in settings.CACHES names it; by default it is "default", if that exists.
        """
        default = DEFAULT_ALIAS if DEFAULT_ALIAS in aliases() else None
        alias: str | None = self._params_of_locks.get("REDLATCH", default)
        return alias

    def lock(
        self,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: redis.Redis | None = None,
        thread_local: bool = True,
    ) -> Lock | CacheLock:
        """Make a lock with the interface of redis-py's `Lock`; nothing is sent yet.

        Args:
            key, version: the name; the cache makes a key of it, as for its values.
            timeout: the time to live in seconds. With None the lock is renewed until it is released. Default None.
            sleep: a shorter `blocking_timeout` means one attempt; no effect on the masters of settings.REDLATCH.
                Default 0.1.
            blocking: if True, `acquire` and ``with`` wait. Default True.
            blocking_timeout: seconds that they wait. Default None: no limit.
            client: a redis-py client of another server; not with settings.REDLATCH. Default the cache's own.
            thread_local: if True, only the thread that acquired the lock can release it. Default True.

        Returns:
            The drop-in for redis-py's `Lock`; on the masters of settings.REDLATCH a `CacheLock` with the same methods.

        Raises:
            ImproperlyConfigured: settings.REDLATCH is malformed, or lacks the alias of the cache.
            TypeError: `client` is given, although settings.REDLATCH has the masters.
        """
        alias = self.lock_alias
        if alias is None:
            server, made = self._server_and_key(key, version, client)
            return Lock(_kept(server), made, timeout, sleep, blocking, blocking_timeout, thread_local)
        _refuse(client, alias)
        name = self._key_of_lock(key, version)
        make = partial(_lock, get_client(alias), name, timeout)
        return CacheLock(make, name, timeout, sleep, blocking, blocking_timeout, thread_local)

    def alock(
        self,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: redis.Redis | None = None,
        thread_local: bool = True,
    ) -> AsyncCacheLock:
        """Make a lock for asyncio; nothing is sent yet. It excludes the locks of `lock`.

        The arguments and errors are those of `lock`; with `thread_local` the lock belongs to a task.
        """
        alias = self.lock_alias
        if alias is not None:
            _refuse(client, alias)
            name = self._key_of_lock(key, version)

            def lock() -> Any:
                return _lock(get_async_client(alias), name, timeout)

            return AsyncCacheLock(lock, name, timeout, sleep, blocking, blocking_timeout, thread_local)
        server, name = self._server_and_key(key, version, client)
        make = partial(_own_lock, _kept(server), name, timeout)
        return AsyncCacheLock(
            make, name, timeout, sleep, blocking, blocking_timeout, thread_local, error_of=redis_error_of
        )

    def _key_of_lock(self, key: str, version: int | None) -> str:
        return str(self.make_and_validate_key(key, version=version))  # type: ignore[attr-defined]

    def _server_and_key(self, key: str, version: int | None, client: Any) -> tuple[Any, str]:
        made = self._key_of_lock(key, version)
        return (self._cache.get_client(made, write=True) if client is None else client), made  # type: ignore[attr-defined]


class RedisCache(LockMixin, PlainRedisCache):  # type: ignore[misc]
    """Django's own cache for Redis, with `lock` and `alock`."""


def _refuse(client: Any, alias: str) -> None:
    if client is not None:
        raise TypeError(f"client: the masters of settings.REDLATCH[{alias!r}] have the locks; give no client")


def _lock(client: Any, name: str, timeout: float | None) -> Any:
    return client.lock(name, timeout or None, auto_renew=not timeout)


def _own_lock(server: Any, name: str, timeout: float | None) -> Any:
    client = async_client_of([server])
    ttl_ms = int(timeout * 1000) if timeout else RENEWED_MS
    return client.foreign(name, encoder_of(server)(name), ttl_ms, None, not timeout)


def _kept(server: Any) -> Any:
    home = home_of(server)
    if home is not None:
        _servers.add(home.server)
    return server
