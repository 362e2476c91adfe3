"""Locks for Django: the app ``redlatch.django``, the setting REDLATCH, and caches with locks (docs/django.md).

The names are imported on first use, because Django imports this package before its settings and apps are ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lazy import load as _load

# `redlatch.django.atomic` is the function: if it were imported on first use, the module would replace it.
from .atomic import atomic

if TYPE_CHECKING:
    from .clients import get_async_client, get_client

_HOMES = {"get_async_client": "clients", "get_client": "clients"}

__all__ = ["atomic", "get_async_client", "get_client"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_load(f".{_HOMES[name]}", __name__), name)
        return value
