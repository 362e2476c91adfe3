"""Drop-ins: the interfaces of other lock clients, with redlatch's algorithm behind them (docs/compat.md).

Change one import::

    from redlatch.compat.redis_py import Lock               # redis.lock.Lock
    from redlatch.compat.redlock import Redlock             # redlock-py
    from redlatch.compat.pottery import Redlock             # pottery
    from redlatch.compat.redis_lock import Lock             # python-redis-lock
    from redlatch.compat.aioredlock import Aioredlock       # aioredlock

or, for code that cannot be edited, call this before the code imports the original::

    redlatch.compat.install("redis_lock")
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

from . import shared

__all__ = ["install", "uninstall"]

# Drop-ins for whole packages, with the original's submodules that they also replace.
_MODULES = {
    "redlock": (),
    "redis_lock": (),
    "aioredlock": ("algorithm", "errors", "lock", "sentinel"),
}

_PARTS = {
    "pottery": [
        ("pottery", "Redlock", "pottery.redlock", "Redlock"),
        ("pottery", "synchronize", "pottery.redlock", "synchronize"),
        ("pottery", "AIORedlock", "pottery.aioredlock", "AIORedlock"),
    ],
    "redis": [
        ("redis_py", "Lock", "redis.lock", "Lock"),
        ("redis_py", "AsyncLock", "redis.asyncio.lock", "Lock"),
    ],
}

_displaced: dict[str, dict[str, ModuleType]] = {}

_replaced: dict[str, list[tuple[object, object]]] = {}


def install(*names: str) -> None:
    """Replace originals by drop-ins, for code that cannot be edited.

    Args:
        names: any of "redlock", "redis_lock" and "aioredlock", whose next import gives the drop-in; "pottery", for
            `pottery.Redlock`, `AIORedlock` and `synchronize`; and "redis", for `redis.lock.Lock` and
            `redis.asyncio.lock.Lock`, and so for the result of `Redis.lock()`.

    Raises:
        ValueError: there is no drop-in of that name.
        ImportError: the original is already imported, or pottery is not installed. Nothing is installed.
    """
    _check(names)
    for name in names:
        if name in _PARTS:
            importlib.import_module(name)
        elif name not in _displaced and name in sys.modules and name not in shared.brought_in:
            raise ImportError(
                f"install: {name} is imported already, and the code that imported it would keep the original; "
                f"call redlatch.compat.install({name!r}) before its first import"
            )
    for name in names:
        if name in _PARTS and name not in _replaced:
            _replaced[name] = list(_pairs_of(name))
            _swap(name, _replaced[name])
        elif name in _MODULES and name not in _displaced:
            _displace(name)


def uninstall(*names: str) -> None:
    """Put the originals back; without names, all of them. Code that has imported a drop-in meanwhile keeps it.

    Raises:
        ValueError: there is no drop-in of that name.
    """
    _check(names)
    for name in names or [*_replaced, *_displaced]:
        if name in _replaced:
            _swap(name, [(ours, original) for original, ours in _replaced.pop(name)])
        elif name in _displaced:
            for module in _own(name):
                del sys.modules[module]
            sys.modules.update(_displaced.pop(name))


def _check(names: tuple[str, ...]) -> None:
    known = [*_MODULES, *_PARTS]
    for name in names:
        if name not in known:
            raise ValueError(f"names: {', '.join(map(repr, known))} have drop-ins, not {name!r}")


def _displace(name: str) -> None:
    ours = importlib.import_module(f"{__name__}.{name}")
    _displaced[name] = {module: sys.modules.pop(module) for module in _own(name)}
    sys.modules[name] = ours
    for part in _MODULES[name]:
        sys.modules[f"{name}.{part}"] = ours


def _own(name: str) -> list[str]:
    return [module for module in list(sys.modules) if module == name or module.startswith(f"{name}.")]


def _pairs_of(name: str) -> Iterator[tuple[object, object]]:
    for module, ours, place, original in _PARTS[name]:
        stand_in = getattr(importlib.import_module(f"{__name__}.{module}"), ours)
        yield getattr(importlib.import_module(place), original), stand_in


def _swap(name: str, pairs: list[tuple[object, object]]) -> None:
    new_by_id = {id(old): new for old, new in pairs}
    for module in [sys.modules[found] for found in _own(name)]:
        for attribute, value in list(vars(module).items()):
            if id(value) in new_by_id:
                setattr(module, attribute, new_by_id[id(value)])
