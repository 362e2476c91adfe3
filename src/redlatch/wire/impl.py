"""Chooses the compiled or the pure implementation, once; the only file that names both.

`REDLATCH_IMPL=c` or `=python` forces one, and a forced choice that cannot be had is an ImportError that
says why. Without it the compiled one is used where it was built. Both can live in one process: `load`
gives either, which is how one test text runs over both.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

COMPILED, PURE = "c", "python"
_MODULES = {
    COMPILED: ("redlatch.wire._engine_c", "redlatch.wire._net_c"),
    PURE: ("redlatch.wire.engine", "redlatch.wire.net"),
}


@dataclass(frozen=True)
class Implementation:
    """One build of the hot path: its name ("c" or "python"), the engine and the system calls."""

    name: str
    engine: ModuleType
    net: ModuleType

    def fleet(self, addresses: list[str], quorum: int) -> Any:
        """Make the engine for these masters, none of them connected yet."""
        return self.engine.Fleet(self.net.Wires(len(addresses)), self.net, addresses, quorum)

    def ballot(self, command: object, size: int, quorum: int, waiter: object) -> Any:
        """Make the count of one command's votes."""
        return self.engine.Ballot(command, size, quorum, waiter)


def load(name: str) -> Implementation:
    """Import one implementation.

    Args:
        name: "c" or "python".

    Raises:
        ImportError: there is no such implementation, or it was not built.
    """
    if name not in _MODULES:
        raise ImportError(f"REDLATCH_IMPL: 'c' or 'python' is needed, not {name!r}")
    try:
        engine, net = (importlib.import_module(module) for module in _MODULES[name])
    except ImportError as error:
        raise ImportError(
            f"the {name!r} implementation of redlatch cannot be imported: {error}; "
            "the compiled one needs a C compiler and Python's headers when redlatch is installed"
        ) from error
    return Implementation(name, engine, net)


def _choose() -> Implementation:
    forced = os.environ.get("REDLATCH_IMPL", "")
    if forced:
        return load(forced)
    try:
        return load(COMPILED)
    except ImportError:
        return load(PURE)


current = _choose()
