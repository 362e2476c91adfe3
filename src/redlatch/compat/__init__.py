"""Drop-ins: the interfaces of slower clients, over redlatch's algorithm (docs/compat.md).

One import is changed::

    from redlatch.compat.redis_py import Lock               # redis.lock.Lock
    from redlatch.compat.redlock import Redlock             # redlock-py
    from redlatch.compat.pottery import Redlock             # pottery
    from redlatch.compat.redis_lock import Lock             # python-redis-lock
    from redlatch.compat.aioredlock import Aioredlock       # aioredlock

or, for code that cannot be edited, none, but this comes before it::

    redlatch.compat.install("redis_lock")
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

from . import shared

__all__ = ["install", "uninstall"]

# Those that are put under the original's name, each with the submodules that it stands in for, too.
_MODULES = {
    "redlock": (),
    "redis_lock": (),  # a package with submodules of its own
    "aioredlock": ("algorithm", "errors", "lock", "sentinel"),
}

# Larger packages, of which only these are replaced: our module, our name, and where the original is.
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

_displaced: dict[str, dict[str, ModuleType]] = {}  # modules of originals, while ours have their names
_replaced: dict[str, list[tuple[object, object]]] = {}  # (original, ours)


def install(*names: str) -> None:
    """Put drop-ins in the place of the originals, for code that cannot be edited.

    Args:
        names: of "redlock", "redis_lock" and "aioredlock", whose imports give the drop-in from now on; and of
            "pottery" and "redis", whose lock classes are replaced: `pottery.Redlock`, `AIORedlock` and `synchronize`,
            `redis.lock.Lock`, `redis.asyncio.lock.Lock`, and what `Redis.lock()` returns. What was installed already
            stays.

    Raises:
        ValueError: there is no drop-in of that name; nothing is done.
        ImportError: the original is imported already, or, of pottery, it is not there; nothing is done.
    """
    _check(names)
    for name in names:
        if name in _PARTS:
            importlib.import_module(name)
        elif name not in _displaced and name in sys.modules and name not in shared.brought_in:
            raise ImportError(
                f"install: {name} is imported already, and whoever did so would keep the original; "
                f"call redlatch.compat.install({name!r}) before its first import"
            )
    for name in names:
        if name in _PARTS and name not in _replaced:
            _replaced[name] = list(_pairs_of(name))
            _swap(name, _replaced[name])
        elif name in _MODULES and name not in _displaced:
            _displace(name)


def uninstall(*names: str) -> None:
    """Put the originals back; of code that has imported a drop-in meanwhile, it stays.

    Args:
        names: as for `install`; none means all that are installed.

    Raises:
        ValueError: there is no drop-in of that name; nothing is done.
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
    """Return the names of a package and of its submodules that are imported."""
    return [module for module in list(sys.modules) if module == name or module.startswith(f"{name}.")]


def _pairs_of(name: str) -> Iterator[tuple[object, object]]:
    for module, ours, place, original in _PARTS[name]:
        stand_in = getattr(importlib.import_module(f"{__name__}.{module}"), ours)
        yield getattr(importlib.import_module(place), original), stand_in


def _swap(name: str, pairs: list[tuple[object, object]]) -> None:
    """Replace the first of each pair by the second wherever modules of a package name it."""
    new_by_id = {id(old): new for old, new in pairs}
    for module in [sys.modules[found] for found in _own(name)]:
        for attribute, value in list(vars(module).items()):
            if id(value) in new_by_id:
                setattr(module, attribute, new_by_id[id(value)])
