"""Choose the compiled or the pure implementation, once. Only this module names both.

`REDLATCH_IMPL=c` or `=python` forces one. If the forced one cannot be imported, an ImportError says why. Without the
variable, the compiled one is used if it was built; if it cannot be imported, a RuntimeWarning says so. `load` can
import both into one process, so that one test runs on both.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# These import all other hot modules, except for the driver for asyncio.
_USED = "drivers.threads", "drivers.sleeper", "locks.core"

_KINDS = "quorum.kinds"

_PACKAGES = {"c": "redlatch._c", "python": "redlatch"}


@dataclass(frozen=True)
class Implementation:
    """One build of the hot modules: "c" or "python"."""

    name: str

    def module(self, path: str) -> ModuleType:
        """Return a hot module of this build, such as "wire.engine.fleet"."""
        return importlib.import_module(f"{_PACKAGES[self.name]}.{path}")

    def kind(self, home: str) -> Any:
        """Return the class of a kind of lock, such as "semaphore.Slot"."""
        module, _, name = home.partition(".")
        return getattr(self.module(f"{_KINDS}.{module}"), name)


def load(name: str) -> Implementation:
    """Import one implementation, "c" or "python"; an ImportError has the name of this module."""
    if name not in _PACKAGES:
        raise ImportError(f"REDLATCH_IMPL: 'c' or 'python' is needed, not {name!r}", name=__name__)
    found = Implementation(name)
    try:
        # A client imports nothing later: a fork meanwhile would leave the import's lock to the child (see `lazy`).
        for path in (*_USED, *_kinds()):
            found.module(path)
    except ImportError as error:
        raise ImportError(
            f"the {name!r} implementation of redlatch cannot be imported: {error}; "
            "the compiled one needs a C compiler and Python's headers when redlatch is installed",
            name=__name__,
        ) from error
    return found


def _kinds() -> list[str]:
    # The order must not depend on the file system.
    package = importlib.import_module(f"{__package__}.{_KINDS}")
    return sorted([f"{_KINDS}.{module.name}" for module in pkgutil.iter_modules(package.__path__)])


def _choose() -> Implementation:
    forced = os.environ.get("REDLATCH_IMPL", "")
    if forced:
        return load(forced)
    try:
        return load("c")
    except ImportError as error:
        # It was built, for example for another Python.
        if not isinstance(error.__cause__, ModuleNotFoundError):
            warnings.warn(f"{error}; redlatch runs as pure Python", RuntimeWarning, stacklevel=2)
        return load("python")


current = _choose()


def for_clients() -> Implementation:
    """Return the implementation for a new client: the pure one if gevent has patched `select`.

    While compiled code waits, no other greenlet can run. REDLATCH_IMPL overrides this choice.
    """
    monkey = sys.modules.get("gevent.monkey")
    cooperative = monkey is not None and monkey.is_module_patched("select")
    return load("python") if cooperative and not os.environ.get("REDLATCH_IMPL") else current
