"""The drop-in for `redis_lock.django_cache`: a django-redis cache with locks. In Django's settings::

CACHES = {"default": {"BACKEND": "redlatch.compat.redis_lock.django_cache.RedisCache", ...}}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django_redis.cache import RedisCache as PlainRedisCache

from . import Lock
from . import reset_all as _reset_all


class RedisCache(PlainRedisCache):  # type: ignore[misc]
    """django-redis' cache with `lock`, `locked_get_or_set` and `reset_all`."""

    def _raw_client(self) -> Any:
        try:
            return self.client.get_client()
        except Exception as error:
            raise NotImplementedError(
                f"RedisCache doesn't have a raw client: {error}. "
                "Use 'redis_cache.client.DefaultClient' as the CLIENT_CLASS !"
            ) from error

    def lock(
        self, key: str, expire: float | None = None, id: str | bytes | None = None, auto_renewal: bool = False
    ) -> Lock:
        return Lock(self._raw_client(), key, expire=expire, id=id, auto_renewal=auto_renewal)

    def locked_get_or_set(
        self,
        key: str,
        value_creator: Callable[[], Any],
        version: int | None = None,
        expire: float | None = None,
        id: str | bytes | None = None,
        lock_key: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
    ) -> Any:
        """Return the cache's value for a key. If there is none, one caller creates it under a lock."""
        value = self.get(key, version=version)
        if value is not None:
            return value
        with self.lock(lock_key or f"get_or_set:{key}", expire=expire, id=id):
            value = self.get(key, version=version)
            if value is None:
                value = value_creator()
                if value is None:
                    raise ValueError("`value_creator` must return a value")
                self.set(key, value, timeout=timeout, version=version)
        return value

    def reset_all(self) -> None:
        """Delete all locks, even if other clients hold them."""
        _reset_all(self._raw_client())
