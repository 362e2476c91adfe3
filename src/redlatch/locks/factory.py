"""What a client of either face is made of: the checks of its arguments, its policy and its driver."""

from __future__ import annotations

import itertools
import math
import random
import secrets
from typing import Any

from .. import config, impl
from ..errors import ConfigurationError
from ..protocol.policy import SECOND, Policy, Retry


class BaseClient:
    """The part of a client that needs neither threads nor asyncio."""

    def __init__(
        self,
        driver: str,
        masters: object,
        ttl: float,
        prefix: str | bytes,
        drift_factor: float,
        attempt_timeout: float | None,
        retry: Retry | None,
    ) -> None:
        if not isinstance(drift_factor, (int, float)) or not 0 <= drift_factor < 1:
            raise ConfigurationError(
                f"drift_factor: a share of the ttl from 0 to below 1 is needed, got {drift_factor}"
            )
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry: a redlatch.Retry is needed, not {type(retry).__name__}")
        config.ttl_ms_of(ttl, drift_factor)
        self._ttl = ttl
        self._prefix = _prefix_of(prefix)
        self._masters = config.masters_of(masters)
        implementation = impl.current
        self._policy: Policy = implementation.module("protocol.policy").Policy(
            masters=tuple(master.address for master in self._masters),
            drift_factor=drift_factor,
            attempt_ns=_attempt_ns(attempt_timeout),
            retry=retry or Retry(),
            clock=implementation.module("wire.net").now_ns,
            random=random.Random().random,
            token=Tokens(),
        )
        self._driver = implementation.module(f"drivers.{driver}").Driver(self._masters, self._policy)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._policy.masters)}>"

    def _lock_arguments(
        self, name: str | bytes, ttl: float | None, timeout: float | None
    ) -> tuple[Any, Policy, str | bytes, bytes, int, float | None]:
        """Check what a lock is asked for with; return the arguments of its constructor."""
        return (
            self._driver,
            self._policy,
            name,
            config.key_of(self._prefix, name),
            config.ttl_ms_of(self._ttl if ttl is None else ttl, self._policy.drift_factor),
            config.seconds_of("timeout", timeout),
        )


class Tokens:
    """Values that are never used twice: 80 random bits of this client, and a counter.

    The random part is drawn with the first token, which is after any fork that the client survives.
    """

    def __init__(self) -> None:
        self._prefix = b""
        self._count = itertools.count()

    def __call__(self) -> bytes:
        if not self._prefix:
            self._prefix = secrets.token_hex(10).encode()
        return b"%b%012x" % (self._prefix, next(self._count))


def _prefix_of(prefix: object) -> bytes:
    if isinstance(prefix, (str, bytes)):
        return prefix.encode() if isinstance(prefix, str) else prefix
    raise TypeError(f"prefix: str or bytes is needed, not {type(prefix).__name__}")


def _attempt_ns(attempt_timeout: object) -> int | None:
    seconds = config.seconds_of("attempt_timeout", attempt_timeout)
    if attempt_timeout is not None and (seconds is None or not math.isfinite(seconds) or seconds <= 0):
        raise ConfigurationError(f"attempt_timeout: finite seconds above 0, or None, are needed; got {attempt_timeout}")
    return None if seconds is None else int(seconds * SECOND)
