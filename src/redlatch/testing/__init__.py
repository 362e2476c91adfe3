"""For tests of code that uses redlatch: clients without a server, and real masters on this machine.

The names are imported on first use (PEP 562): pytest imports this package for its plugin in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import attributes as _attributes

if TYPE_CHECKING:
    from redlatch.testing.clusters import Cluster, cluster
    from redlatch.testing.embedded import Masters, clear, find_server, masters
    from redlatch.testing.groups import Sentinels, sentinels
    from redlatch.testing.memory.aio import AsyncMemoryClient
    from redlatch.testing.memory.control import Held
    from redlatch.testing.memory.masters import MemoryMasters
    from redlatch.testing.memory.threads import MemoryClient

__all__ = [
    "AsyncMemoryClient",
    "Cluster",
    "Held",
    "Masters",
    "MemoryClient",
    "MemoryMasters",
    "Sentinels",
    "clear",
    "cluster",
    "find_server",
    "masters",
    "sentinels",
]


_HOMES = {
    **dict.fromkeys(["Cluster", "cluster"], ".clusters"),
    **dict.fromkeys(["Masters", "clear", "find_server", "masters"], ".embedded"),
    **dict.fromkeys(["Sentinels", "sentinels"], ".groups"),
    "AsyncMemoryClient": ".memory.aio",
    "Held": ".memory.control",
    "MemoryClient": ".memory.threads",
    "MemoryMasters": ".memory.masters",
}

# A type checker would accept every name if it saw this function.
if not TYPE_CHECKING:
    __getattr__ = _attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
