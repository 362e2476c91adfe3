"""The drop-in for Redlock, AIORedlock and synchronize of pottery 3::

    from redlatch.compat.pottery import AIORedlock, Redlock, synchronize    # was: from pottery import ...

docs/migrate-pottery.md has the differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...votes.units import SECOND
from ...wire.engine.net import now_ns
from .aio import AIORedlock
from .base import (
    ExtendUnlockedLock,
    PrimitiveError,
    QuorumIsImpossible,
    QuorumNotAchieved,
    ReleaseUnlockedLock,
    TooManyExtensions,
    logger,
)
from .threads import Redlock

__all__ = [
    "AIORedlock",
    "ExtendUnlockedLock",
    "PrimitiveError",
    "QuorumIsImpossible",
    "QuorumNotAchieved",
    "Redlock",
    "ReleaseUnlockedLock",
    "TooManyExtensions",
    "synchronize",
]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def synchronize(
    *,
    key: str,
    masters: Iterable[Any] = frozenset(),
    raise_on_redis_errors: bool = False,
    auto_release_time: float = Redlock._AUTO_RELEASE_TIME,
    blocking: bool = True,
    timeout: float = -1,
) -> Callable[[AnyFunction], AnyFunction]:
    """Make a decorator that allows one call of the function at a time; arguments as for `Redlock` and its `acquire`."""
    make = functools.partial(
        Redlock,
        key=key,
        masters=masters,
        raise_on_redis_errors=raise_on_redis_errors,
        auto_release_time=auto_release_time,
        context_manager_blocking=blocking,
        context_manager_timeout=timeout,
    )

    def decorate(function: AnyFunction) -> AnyFunction:
        @functools.wraps(function)
        def synchronized(*args: Any, **named: Any) -> Any:
            lock, began, got = make(), now_ns() / SECOND, None
            try:
                with lock:
                    got = now_ns() / SECOND
                    return function(*args, **named)
            finally:
                waited = ((got or now_ns() / SECOND) - began) * 1000
                held = "never acquired lock" if got is None else f"held for {(now_ns() / SECOND - got) * 1000:.0f} ms"
                logger.info("%s() waited for %s for %d ms; %s", function.__qualname__, lock.key, waited, held)

        return synchronized  # type: ignore[return-value]

    return decorate
