"""The part of pottery's locks that the classes for threads and asyncio share, and the errors."""

from __future__ import annotations

import functools
import logging
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import redis

from ...errors import ConfigurationError, LockError, QuorumUnavailable
from ...quorum.hold import Hold
from ...votes.key import key_as_it_is
from ...votes.units import MILLISECOND
from .. import clients, shared

_original = shared.original("pottery")

logger = logging.getLogger("pottery")

# An attempt counts as the first one if it began within this time after the call.
AT_ONCE_NS = 5 * MILLISECOND

if _original is None:

    @dataclass
    class PrimitiveError(Exception):
        key: str
        masters: Iterable[Any]
        redis_errors: Iterable[redis.RedisError] = ()

    class QuorumNotAchieved(PrimitiveError, RuntimeError): ...

    class TooManyExtensions(PrimitiveError, RuntimeError): ...

    class ExtendUnlockedLock(PrimitiveError, RuntimeError): ...

    class ReleaseUnlockedLock(PrimitiveError, RuntimeError): ...

    class QuorumIsImpossible(PrimitiveError, RuntimeError): ...

else:
    PrimitiveError = _original.PrimitiveError  # type: ignore[misc]
    QuorumNotAchieved = _original.QuorumNotAchieved  # type: ignore[misc]
    TooManyExtensions = _original.TooManyExtensions  # type: ignore[misc]
    ExtendUnlockedLock = _original.ExtendUnlockedLock  # type: ignore[misc]
    ReleaseUnlockedLock = _original.ReleaseUnlockedLock  # type: ignore[misc]
    QuorumIsImpossible = _original.QuorumIsImpossible  # type: ignore[misc]


@functools.cache
def _default_masters() -> frozenset[Any]:
    url = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    return frozenset([redis.Redis.from_url(url, socket_timeout=1)])


class BaseRedlock:
    __slots__ = (
        "_extension_num",
        "_key",
        "_lease",
        "auto_release_time",
        "context_manager_blocking",
        "context_manager_timeout",
        "masters",
        "num_extensions",
        "raise_on_redis_errors",
    )

    _KEY_PREFIX: ClassVar[str] = "redlock"
    _AUTO_RELEASE_TIME: ClassVar[float] = 10
    _CLOCK_DRIFT_FACTOR: ClassVar[float] = 0.01
    _RETRY_DELAY: ClassVar[float] = 0.2
    _NUM_EXTENSIONS: ClassVar[int] = 3

    def __init__(
        self,
        *,
        key: str,
        masters: Iterable[Any] = frozenset(),
        raise_on_redis_errors: bool = False,
        auto_release_time: float = _AUTO_RELEASE_TIME,
        num_extensions: int = _NUM_EXTENSIONS,
        context_manager_blocking: bool = True,
        context_manager_timeout: float = -1,
    ) -> None:
        _check(context_manager_blocking, context_manager_timeout)
        self.key = key
        self.masters = frozenset(masters) or _default_masters()
        self.raise_on_redis_errors = raise_on_redis_errors
        self.auto_release_time = auto_release_time
        self.num_extensions = num_extensions
        self.context_manager_blocking = context_manager_blocking
        self.context_manager_timeout = context_manager_timeout
        self._lease: Any = None
        self._extension_num = 0

    @property
    def key(self) -> str:
        """The key on the masters, which begins with "redlock:"."""
        return self._key

    @key.setter
    def key(self, value: str) -> None:
        self._key = f"{self._KEY_PREFIX}:{value}"

    @property
    def _uuid(self) -> str:
        token = None if self._lease is None else shared.shown_token(self._lease)
        return "" if token is None else str(token.decode(errors="replace"))

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} key={self.key}>"

    def _lease_from(self, client: Any) -> Any:
        key = clients.encoder_of(next(iter(self.masters)))(self.key)
        key_as_it_is(key)
        try:
            return client.foreign(self.key, key, int(self.auto_release_time * 1000))
        except ConfigurationError as error:
            logger.warning("%s cannot be acquired: %s", self.key, error)
            return None

    def _trial(self, blocking: bool, timeout: float) -> shared.Trial | None:
        _check(blocking, timeout)
        if not (timeout == -1 or timeout >= 0):
            return None
        seconds = None if blocking and timeout == -1 else max(0.0, timeout)
        return shared.Trial(seconds, lambda: random.uniform(0, self._RETRY_DELAY))

    def _won(self, lease: Any) -> None:
        self._lease, self._extension_num = lease, 0

    def _log_if_enqueued(self, lease: Any, won: bool, began_ns: int) -> None:
        hold: Hold = lease._hold
        clock = lease._shared.quorum.clock
        waited_ns = clock.now() - began_ns
        if won and not hold.lease.hand_offs and hold.lease.since_ns - began_ns < AT_ONCE_NS:
            return
        what, name = type(self).__qualname__.lower(), self.key.split(":", maxsplit=1)[1]
        text = f"source=pottery sample#{what}.enqueued.%s=%dms sample#{what}.acquired.%s=%d"
        logger.info(text, name, -(-waited_ns // MILLISECOND), name, won)

    def _report(self, raises: bool | None, error: LockError) -> list[redis.RedisError]:
        """Log a QuorumUnavailable; raise QuorumIsImpossible if the call or the lock wants it. Return the causes."""
        errors = shared.redis_errors_of(error)
        if isinstance(error, QuorumUnavailable):
            logger.error("%s: %s", type(self).__qualname__, error)
            if self.raise_on_redis_errors if raises is None else raises:
                raise QuorumIsImpossible(self.key, self.masters, redis_errors=errors) from error
        return errors

    def _extensible(self) -> Any:
        if self._extension_num >= self.num_extensions:
            raise TooManyExtensions(self.key, self.masters)
        if self._lease is None:
            raise ExtendUnlockedLock(self.key, self.masters, redis_errors=[])
        return self._lease

    def _not_extended(self, raises: bool | None, error: LockError) -> Exception:
        return ExtendUnlockedLock(self.key, self.masters, redis_errors=self._report(raises, error))

    def _held(self) -> Any:
        if self._lease is None:
            raise ReleaseUnlockedLock(self.key, self.masters, redis_errors=[])
        return self._lease

    def _forget(self, lease: Any) -> None:
        # Another thread may have acquired a new lock through this object.
        if self._lease is lease:
            self._lease = None

    def _not_released(self, lease: Any, raises: bool | None, error: LockError) -> Exception:
        # If too many masters failed, `release` may be called again.
        errors = self._report(raises, error)
        if not isinstance(error, QuorumUnavailable):
            self._forget(lease)
        return ReleaseUnlockedLock(self.key, self.masters, redis_errors=errors)


def _check(blocking: bool, timeout: float) -> None:
    if not blocking and timeout != -1:
        raise ValueError("can't specify a timeout for a non-blocking call")
