"""Locks for Django: the app ``redlatch.django``, the setting REDLATCH, and caches with locks (docs/django.md).

Names are imported on first use, because Django imports this package before its settings and apps are ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import attributes as _attributes

# Not on first use: the module of this name would replace the function.
from .atomic import atomic

if TYPE_CHECKING:
    from .clients import get_async_client, get_client

__all__ = ["atomic", "get_async_client", "get_client"]

if not TYPE_CHECKING:
    __getattr__ = _attributes(__name__, {"get_async_client": ".clients", "get_client": ".clients"})
