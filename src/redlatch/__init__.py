"""redlatch: a distributed lock client for Redis and Valkey, for threads and for asyncio.

The public names are loaded with their first use (PEP 562): importing redis-py costs more than 100 ms, and
`import redlatch` must not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncLock
    from .client import Client, Lock
    from .errors import (
        AlreadyHeld,
        ClientClosed,
        ClientForked,
        ClientUnusable,
        ConfigurationError,
        LockBusy,
        LockError,
        LockLost,
        LockTimeout,
        MasterQuarantined,
        MasterRefused,
        NotOwned,
        QuorumUnavailable,
        WrongLoop,
    )
    from .protocol.policy import Guard, Handoff, Retry

    IMPL: str

__version__ = "0.1.0"

_HOMES = {
    "Client": "client",
    "Lock": "client",
    "AsyncClient": "aio",
    "AsyncLock": "aio",
    "Guard": "protocol.policy",
    "Handoff": "protocol.policy",
    "Retry": "protocol.policy",
    "AlreadyHeld": "errors",
    "ClientClosed": "errors",
    "ClientForked": "errors",
    "ClientUnusable": "errors",
    "ConfigurationError": "errors",
    "LockBusy": "errors",
    "LockError": "errors",
    "LockLost": "errors",
    "LockTimeout": "errors",
    "MasterQuarantined": "errors",
    "MasterRefused": "errors",
    "NotOwned": "errors",
    "QuorumUnavailable": "errors",
    "WrongLoop": "errors",
}

__all__ = [
    "IMPL",
    "AlreadyHeld",
    "AsyncClient",
    "AsyncLock",
    "Client",
    "ClientClosed",
    "ClientForked",
    "ClientUnusable",
    "ConfigurationError",
    "Guard",
    "Handoff",
    "Lock",
    "LockBusy",
    "LockError",
    "LockLost",
    "LockTimeout",
    "MasterQuarantined",
    "MasterRefused",
    "NotOwned",
    "QuorumUnavailable",
    "Retry",
    "WrongLoop",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "IMPL":  # "c" or "python": which implementation runs
        value = importlib.import_module(".impl", __name__).current.name
    elif name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
