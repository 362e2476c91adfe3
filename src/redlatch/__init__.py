"""redlatch: a distributed lock client for Redis and Valkey, for threads and for asyncio.

The public names are imported at their first use (PEP 562). The import of redis-py takes more than 100 ms, and
`import redlatch` must be faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lazy import load as _load

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncLock, AsyncRateLimit, AsyncSemaphore
    from .client import Client, Lock, RateLimit, Semaphore
    from .errors import (
        AlreadyHeld,
        ClientClosed,
        ClientForked,
        ClientUnusable,
        ConfigurationError,
        DuplicateTask,
        LockBusy,
        LockError,
        LockLost,
        LockTimeout,
        MasterQuarantined,
        MasterRefused,
        NotOwned,
        NotReplicated,
        QuorumUnavailable,
        Retryable,
        WrongLoop,
    )
    from .guard.settings import Guard
    from .health import Health, MasterHealth
    from .holder import Holder
    from .locks.readwrite import RWLock
    from .locks.reentrant import AsyncRLock, RLock
    from .locks.task_condition import AsyncCondition
    from .locks.task_latch import AsyncLatch
    from .locks.task_multi import AsyncMultiLock
    from .locks.thread_condition import Condition
    from .locks.thread_latch import Latch
    from .locks.thread_multi import MultiLock
    from .loss import Loss, LossKind
    from .quorum.policy import Handoff, Retry
    from .stats import Histogram, LockStats, MasterStats, Stats

    IMPL: str

__version__ = "0.1.0"

_HOMES = {
    "Client": "client",
    "Lock": "client",
    "AsyncClient": "aio",
    "AsyncCondition": "locks.task_condition",
    "AsyncLatch": "locks.task_latch",
    "AsyncLock": "aio",
    "AsyncMultiLock": "locks.task_multi",
    "AsyncRLock": "locks.reentrant",
    "AsyncRateLimit": "aio",
    "AsyncSemaphore": "aio",
    "Condition": "locks.thread_condition",
    "Latch": "locks.thread_latch",
    "MultiLock": "locks.thread_multi",
    "RLock": "locks.reentrant",
    "RWLock": "locks.readwrite",
    "RateLimit": "client",
    "Semaphore": "client",
    "Guard": "guard.settings",
    "Handoff": "quorum.policy",
    "Health": "health",
    "Histogram": "stats",
    "Holder": "holder",
    "Loss": "loss",
    "LossKind": "loss",
    "LockStats": "stats",
    "MasterHealth": "health",
    "MasterStats": "stats",
    "Retry": "quorum.policy",
    "Stats": "stats",
    "AlreadyHeld": "errors",
    "ClientClosed": "errors",
    "ClientForked": "errors",
    "ClientUnusable": "errors",
    "ConfigurationError": "errors",
    "DuplicateTask": "errors",
    "LockBusy": "errors",
    "LockError": "errors",
    "LockLost": "errors",
    "LockTimeout": "errors",
    "MasterQuarantined": "errors",
    "MasterRefused": "errors",
    "NotOwned": "errors",
    "NotReplicated": "errors",
    "QuorumUnavailable": "errors",
    "Retryable": "errors",
    "WrongLoop": "errors",
}

__all__ = [
    "IMPL",
    "AlreadyHeld",
    "AsyncClient",
    "AsyncCondition",
    "AsyncLatch",
    "AsyncLock",
    "AsyncMultiLock",
    "AsyncRLock",
    "AsyncRateLimit",
    "AsyncSemaphore",
    "Client",
    "ClientClosed",
    "ClientForked",
    "ClientUnusable",
    "Condition",
    "ConfigurationError",
    "DuplicateTask",
    "Guard",
    "Handoff",
    "Health",
    "Histogram",
    "Holder",
    "Latch",
    "Lock",
    "LockBusy",
    "LockError",
    "LockLost",
    "LockStats",
    "LockTimeout",
    "Loss",
    "LossKind",
    "MasterHealth",
    "MasterQuarantined",
    "MasterRefused",
    "MasterStats",
    "MultiLock",
    "NotOwned",
    "NotReplicated",
    "QuorumUnavailable",
    "RLock",
    "RWLock",
    "RateLimit",
    "Retry",
    "Retryable",
    "Semaphore",
    "Stats",
    "WrongLoop",
    "__version__",
]


# A type checker that sees this function accepts every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # IMPL is "c" or "python": the implementation in use.
        if name == "IMPL":
            value = _load(".impl", __name__).current.name
        elif name in _HOMES:
            value = getattr(_load(f".{_HOMES[name]}", __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
