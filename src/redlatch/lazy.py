"""Import modules at their first use, and let no process fork meanwhile.

A fork copies the lock of a module that another thread is importing, but not the thread. The child would wait
indefinitely for the lock when it imports the module.
"""

from __future__ import annotations

import _thread

# This module and `logging`, which it imports, register handlers of forks. If a thread imported them while a fork waits,
# the fork would call only the later ones of these handlers.
import concurrent.futures.thread  # noqa: F401
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

# Reentrant: a module may import others in this way, and may fork.
_importing = _thread.RLock()


def load(name: str, package: str) -> ModuleType:
    """Import a module; the name may be relative to the package. A fork in another thread waits until then."""
    with _importing:
        return importlib.import_module(name, package)


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562) that imports each name from its module at its first use."""

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )
