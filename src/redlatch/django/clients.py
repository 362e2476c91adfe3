"""The setting REDLATCH, and its clients: one for each alias and process, and for asyncio one for each event loop.

MASTERS and OPTIONS of an alias are the arguments of a client. MASTERS may also be a function: Django's error reports
show settings, but not the results of functions.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from ..aio import AsyncClient
from ..client import Client
from ..errors import ConfigurationError
from ..locks.factory import BaseClient

DEFAULT_ALIAS = "default"

_KEYS = {"MASTERS", "OPTIONS"}


def aliases() -> list[str]:
    return list(_setting())


def arguments_of(alias: str) -> tuple[Any, dict[str, Any]]:
    setting = _setting()
    if alias not in setting:
        known = ", ".join(map(repr, setting)) or "none"
        raise ImproperlyConfigured(f"settings.REDLATCH has no alias {alias!r}; its aliases are: {known}")
    entry = setting[alias]
    if not isinstance(entry, Mapping) or "MASTERS" not in entry or not set(entry) <= _KEYS:
        raise ImproperlyConfigured(
            f"settings.REDLATCH[{alias!r}] needs a dictionary with 'MASTERS', a list of URLs, and, if you like, "
            "'OPTIONS', the other arguments of redlatch.Client"
        )
    options = entry.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(
            f"settings.REDLATCH[{alias!r}]['OPTIONS'] needs a dictionary, not {type(options).__name__}"
        )
    masters = entry["MASTERS"]
    return masters() if callable(masters) else masters, dict(options)


def _setting() -> Mapping[str, Any]:
    setting = getattr(settings, "REDLATCH", {})
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured(
            "settings.REDLATCH needs a dictionary with an entry for each alias, such as "
            f"{{'default': {{'MASTERS': ['redis://10.0.0.1']}}}}, not {type(setting).__name__}"
        )
    return setting


AnyClient = TypeVar("AnyClient", bound=BaseClient)


def get_client(alias: str = DEFAULT_ALIAS) -> Client:
    """Return this process's client for an alias of settings.REDLATCH. It connects on first use, and is never closed.

    Raises:
        ImproperlyConfigured: the setting has no such alias, or an argument in it is invalid.
    """
    return _registry[0].client(alias)


def get_async_client(alias: str = DEFAULT_ALIAS) -> AsyncClient:
    """Return the running event loop's client for an alias of settings.REDLATCH.

    Raises:
        ImproperlyConfigured: the setting has no such alias, or an argument in it is invalid.
        RuntimeError: no event loop is running.
    """
    return _registry[0].async_client(alias, asyncio.get_running_loop())


def new_client(kind: Callable[..., AnyClient], alias: str) -> AnyClient:
    masters, options = arguments_of(alias)
    try:
        return kind(masters, **options)
    except (ConfigurationError, TypeError) as error:
        raise ImproperlyConfigured(f"settings.REDLATCH[{alias!r}]: {error}") from error


class Registry:
    def __init__(self) -> None:
        # Re-entrant for signal handlers.
        self._one_at_a_time = threading.RLock()
        self._clients: dict[str, Client] = {}
        self._of_loops: dict[tuple[str, asyncio.AbstractEventLoop], AsyncClient] = {}

    def client(self, alias: str) -> Client:
        client = self._clients.get(alias)
        if client is None:
            with self._one_at_a_time:
                client = self._clients.get(alias) or new_client(Client, alias)
                client = self._clients.setdefault(alias, client)
        return client

    def async_client(self, alias: str, loop: asyncio.AbstractEventLoop) -> AsyncClient:
        client = self._of_loops.get((alias, loop))
        if client is None:
            with self._one_at_a_time:
                # `async_to_sync` makes a loop for each call.
                for key in [key for key in self._of_loops if key[1].is_closed()]:
                    _abandon(self._of_loops.pop(key))
                client = self._of_loops[alias, loop] = new_client(AsyncClient, alias)
        return client

    def close(self) -> None:
        with self._one_at_a_time:
            clients, of_loops = list(self._clients.values()), dict(self._of_loops)
            self._clients.clear()
            self._of_loops.clear()
        for client in clients:
            client.close()
        for (_, loop), async_client in of_loops.items():
            if loop.is_closed():
                _abandon(async_client)


def _abandon(client: AsyncClient) -> None:
    client._driver.drop()


_registry = [Registry()]


def _begin_anew() -> None:
    _registry[0] = Registry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "REDLATCH":
        _registry[0].close()


setting_changed.connect(_forget)
