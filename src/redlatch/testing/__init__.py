"""For tests of code that uses redlatch: clients without a server, and real masters on this machine.

The names are imported on first use (PEP 562): pytest imports this package for its plugin in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lazy import load as _load

if TYPE_CHECKING:
    from redlatch.testing.cleaning import clear
    from redlatch.testing.embedded import Masters, find_server, masters
    from redlatch.testing.groups import Sentinels, sentinels
    from redlatch.testing.memory.aio import AsyncMemoryClient
    from redlatch.testing.memory.control import Held
    from redlatch.testing.memory.masters import MemoryMasters
    from redlatch.testing.memory.threads import MemoryClient

_HOMES = {
    "AsyncMemoryClient": "memory.aio",
    "Held": "memory.control",
    "Masters": "embedded",
    "MemoryClient": "memory.threads",
    "MemoryMasters": "memory.masters",
    "Sentinels": "groups",
    "clear": "cleaning",
    "find_server": "embedded",
    "masters": "embedded",
    "sentinels": "groups",
}

__all__ = [
    "AsyncMemoryClient",
    "Held",
    "Masters",
    "MemoryClient",
    "MemoryMasters",
    "Sentinels",
    "clear",
    "find_server",
    "masters",
    "sentinels",
]


# A type checker would accept every name if it saw this function.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_load(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
