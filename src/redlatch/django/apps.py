"""The Django app ``redlatch.django`` and its system checks (docs/django.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured

from ..client import Client
from ..errors import ConfigurationError
from ..health import Health
from ..masters.listed import masters_of
from ..wire.dial.conversation import seconds
from .clients import aliases, arguments_of, new_client

CONNECT_TIMEOUT = 2.0

PAUSE = 0.02

TAG = "redlatch"


class RedlatchConfig(AppConfig):  # type: ignore[misc]
    name = "redlatch.django"
    label = "redlatch"

    def ready(self) -> None:
        checks.register(check_settings, TAG)
        checks.register(check_masters, TAG, deploy=True)
        checks.register(check_caches, TAG, deploy=True)


def check_settings(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    found = []
    for alias in [None, *_aliases()]:
        try:
            if alias is None:
                aliases()
            else:
                new_client(Client, alias).close()
        except ImproperlyConfigured as error:
            hint = "docs/django.md of redlatch describes the setting."
            found.append(checks.Error(str(error), hint=hint, id="redlatch.E001"))
    for cache, entry in getattr(settings, "CACHES", {}).items():
        alias = entry.get("REDLATCH")
        if alias is not None and alias not in _aliases():
            problem = f"settings.CACHES[{cache!r}] names the alias {alias!r}, which settings.REDLATCH does not have."
            found.append(checks.Error(problem, hint="Add the alias, or name another one.", id="redlatch.E001"))
    return found


def check_masters(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for alias in _aliases():
        try:
            client = new_client(Client, alias)
        except ImproperlyConfigured:
            continue
        where = f"settings.REDLATCH[{alias!r}]"
        found += _of_health(look(client), where)
        guarded = arguments_of(alias)[1].get("guard", True) is not None
        found += _of_list(len(client._masters), guarded, where)
    return found


def check_caches(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    masters = {name for alias in _aliases() for name in _names_of(alias)}
    for name in getattr(settings, "CACHES", {}):
        cache = caches[name]
        server = _server_of(cache)
        if server is None:
            continue
        where = f"settings.CACHES[{name!r}]"
        if _has_own_locks(cache):
            found.append(_cleared(where, "its locks are in its own database"))
            found += _of_health(look(Client(server, guard=None)), where)
        elif masters_of(server)[0].name in masters:
            found.append(_cleared(where, "its database is one of a master in settings.REDLATCH"))
    return found


def look(client: Client) -> Health:
    end = seconds() + CONNECT_TIMEOUT
    try:
        try:
            client.connect()
        except ConfigurationError:
            # `health` has the reason.
            return client.health()
        while not (health := client.health()).ready and seconds() < end:
            time.sleep(PAUSE)
        return health
    finally:
        client.close()


def _of_health(health: Health, where: str) -> Iterator[checks.CheckMessage]:
    missing = "; ".join(f"{master.address}: {master.why}" for master in health.masters if not master.voting)
    if health.refused:
        yield checks.Error(f"{where}: {health.refused}", id="redlatch.E002")
    elif not health.available:
        hint = "No lock can be acquired. Start the masters, or name others."
        problem = f"{where}: fewer masters vote than the {health.quorum} that must agree: {missing}"
        yield checks.Error(problem, hint=hint, id="redlatch.E002")
    elif missing:
        hint = "Locks can be acquired, but the loss of another master may stop that."
        yield checks.Warning(f"{where}: not every master votes: {missing}", hint=hint, id="redlatch.W001")
    for master in health.masters:
        if master.evicts:
            yield checks.Warning(
                f"{where}: {master.address} may evict keys before their time, and with them locks "
                f"(maxmemory-policy {master.evicts}).",
                hint="Set maxmemory-policy noeviction there, or put the locks on other servers.",
                id="redlatch.W003",
            )


def _of_list(masters: int, guarded: bool, where: str) -> Iterator[checks.CheckMessage]:
    if masters > 1 and not guarded:
        yield checks.Warning(
            f"{where}: guard=None lets a master vote that was restarted and has forgotten its locks.",
            hint="Remove guard from OPTIONS, or give a redlatch.Guard.",
            id="redlatch.W002",
        )
    if masters == 2:
        yield checks.Warning(
            f"{where}: a quorum of two masters needs both, so they fail more often than one.",
            hint="Use one master, or three.",
            id="redlatch.W004",
        )


def _cleared(where: str, why: str) -> checks.CheckMessage:
    return checks.Warning(
        f"{where}: cache.clear() deletes locks that are held, because {why}.",
        hint="Name masters in settings.REDLATCH that are no cache, or another database of the server.",
        id="redlatch.W005",
    )


def _aliases() -> list[str]:
    try:
        return aliases()
    except ImproperlyConfigured:
        return []


def _names_of(alias: str) -> list[str]:
    try:
        return [master.name for master in masters_of(arguments_of(alias)[0])]
    except (ImproperlyConfigured, ConfigurationError):
        return []


def _has_own_locks(cache: Any) -> bool:
    from .cache import LockMixin

    return isinstance(cache, LockMixin) and cache.lock_alias is None


def _server_of(cache: Any) -> Any:
    # None for a cache of another kind.
    if isinstance(cache, RedisCache):
        return cache._cache.get_client(None, write=True)
    # A cache of django-redis, which may not be installed. A sharded one has no single server.
    client = getattr(cache, "client", None)
    if client is None or not hasattr(client, "get_client"):
        return None
    try:
        return client.get_client(write=True)
    except NotImplementedError:
        return None
