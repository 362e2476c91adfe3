"""Chooses the compiled or the pure implementation, once; the only file that names both.

`REDLATCH_IMPL=c` or `=python` forces one, and a forced choice that cannot be had is an ImportError that
says why. Without it the compiled one is used where it was built, and one that was built and cannot be
loaded is warned of. Both can live in one process: `load` gives either, which is how one test text runs over
both.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType

_PACKAGES = {"c": "redlatch._c", "python": "redlatch"}


@dataclass(frozen=True)
class Implementation:
    """One build of the hot modules.

    Args:
        name: "c" or "python".
    """

    name: str

    def module(self, path: str) -> ModuleType:
        """Return a hot module of this build, such as "wire.engine"."""
        return importlib.import_module(f"{_PACKAGES[self.name]}.{path}")


def load(name: str) -> Implementation:
    """Import one implementation.

    Args:
        name: "c" or "python".

    Raises:
        ImportError: there is no such implementation, or it was not built.
    """
    if name not in _PACKAGES:
        raise ImportError(f"REDLATCH_IMPL: 'c' or 'python' is needed, not {name!r}")
    found = Implementation(name)
    try:
        found.module("drivers.threads")  # which imports all the others but one
    except ImportError as error:
        raise ImportError(
            f"the {name!r} implementation of redlatch cannot be imported: {error}; "
            "the compiled one needs a C compiler and Python's headers when redlatch is installed"
        ) from error
    return found


def _choose() -> Implementation:
    forced = os.environ.get("REDLATCH_IMPL", "")
    if forced:
        return load(forced)
    try:
        return load("c")
    except ImportError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):  # it was built, but not for this Python, say
            warnings.warn(f"{error}; redlatch runs as pure Python", RuntimeWarning, stacklevel=2)
        return load("python")


current = _choose()


def for_clients() -> Implementation:
    """Return what a client is made of now: the pure one where gevent has made greenlets of threads.

    While compiled code waits, none of the other greenlets would run.
    """
    monkey = sys.modules.get("gevent.monkey")
    cooperative = monkey is not None and monkey.is_module_patched("select")
    return load("python") if cooperative and not os.environ.get("REDLATCH_IMPL") else current
