"""The cache backend of django-redis with locks: ``"BACKEND": "redlatch.django.django_redis_cache.RedisCache"``.

`cache.lock` takes the arguments of django-redis. `redlatch.django.cache` describes where the locks are.
"""

from __future__ import annotations

from typing import Any

from django_redis.cache import RedisCache as PlainRedisCache
from django_redis.client import ShardClient

from .cache import LockMixin

__all__ = ["RedisCache"]


class RedisCache(LockMixin, PlainRedisCache):  # type: ignore[misc]
    """django-redis' cache, whose `lock` is redlatch's, with `alock`."""

    def _key_of_lock(self, key: str, version: int | None) -> str:
        return str(self.client.make_key(key, version=version))

    def _server_and_key(self, key: str, version: int | None, client: Any) -> tuple[Any, str]:
        made = self._key_of_lock(key, version)
        if client is not None:
            return client, made
        own = self.client
        if isinstance(own, ShardClient):
            return own.get_server(made), made
        return own.get_client(write=True), made
