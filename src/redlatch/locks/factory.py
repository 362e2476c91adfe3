"""What a client of either face is made of: the checks of its arguments, its policy and its driver."""

from __future__ import annotations

import random
import secrets
from binascii import hexlify
from collections.abc import Callable
from typing import Any, NoReturn

from .. import config, impl
from ..errors import ConfigurationError
from ..protocol.hold import Hold
from ..protocol.key import prefix_of
from ..protocol.policy import SECOND, Policy, Retry
from .lock import Shared


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
        wait_release: bool,
        on_lost: Callable[[Any, str], object] | None,
        **options: Any,
    ) -> None:
        _check(drift_factor, retry, wait_release, on_lost)
        self._ttl_ms = config.ttl_ms_of(ttl, drift_factor)
        self._prefix = prefix_of(prefix)
        self._masters = config.masters_of(masters)
        implementation = impl.current
        self._key_of: Callable[[bytes, object], bytes] = implementation.module("protocol.key").key_of
        self._hold_of: type[Hold] = implementation.module("protocol.hold").Hold
        self._policy: Policy = implementation.module("protocol.policy").Policy(
            masters=tuple(master.address for master in self._masters),
            drift_factor=drift_factor,
            attempt_ns=_attempt_ns(attempt_timeout),
            retry=retry or Retry(),
            clock=implementation.module("wire.net").BootClock(),
            random=random.Random().random,
            token=_tokens(),
        )
        self._driver = implementation.module(f"drivers.{driver}").Driver(self._masters, self._policy, **options)
        self._shared = Shared(self._driver, self._policy, wait_release, on_lost)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied or pickled; make one per process")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._policy.masters)}>"

    def _ttl_of(self, ttl: object) -> int:
        return config.ttl_ms_of(ttl, self._policy.drift_factor)


def _check(drift_factor: object, retry: object, wait_release: object, on_lost: object) -> None:
    """Refuse options of the wrong type or out of their range."""
    if isinstance(drift_factor, bool) or not isinstance(drift_factor, (int, float)):
        raise TypeError(f"drift_factor: a number is needed, not {type(drift_factor).__name__}")
    if not 0 <= drift_factor < 1:
        raise ConfigurationError(f"drift_factor: a share of the ttl from 0 to below 1 is needed, got {drift_factor}")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry: a redlatch.Retry is needed, not {type(retry).__name__}")
    if not isinstance(wait_release, bool):
        raise TypeError(f"wait_release: True or False is needed, not {type(wait_release).__name__}")
    if on_lost is not None and not callable(on_lost):
        raise TypeError(f"on_lost: something to call, or None, is needed, not {type(on_lost).__name__}")


_PIECES = [slice(start, start + 32) for start in range(0, 32 * 100, 32)]


def _tokens() -> Callable[[], bytes]:
    """Return what draws values that are never used twice: 128 random bits each, from the system, in hexadecimal.

    They are drawn by the hundred, the first ones with the first acquire: a client that has got so far is of no use in
    a forked child, so no two processes share any.
    """
    drawn: list[bytes] = []
    take = drawn.pop

    def token() -> bytes:
        try:
            return take()
        except IndexError:
            drawn.extend(map(hexlify(secrets.token_bytes(16 * len(_PIECES))).__getitem__, _PIECES))
            return take()

    return token


def _attempt_ns(attempt_timeout: object) -> int | None:
    if attempt_timeout is None:
        return None
    seconds = config.seconds_of("attempt_timeout", attempt_timeout)
    if seconds is None or int(seconds * SECOND) < 1:
        raise ConfigurationError(f"attempt_timeout: finite seconds above 0, or None, are needed; got {attempt_timeout}")
    return int(seconds * SECOND)
