"""The condition of a lock, by the algorithm of `quorum.condition`."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NoReturn

from ..errors import ConfigurationError
from ..votes.key import derived_key
from ..votes.kinds import CONDITION
from .lock import BaseLock


class BaseCondition:
    """The part of a condition that both faces share. The lock must exclude all other holders."""

    def __init__(self, lock: Any, name: str | bytes = "") -> None:
        if lock._hold.kind.shares:
            raise ConfigurationError(
                f"condition: {lock.name!r} may have several holders at a time; only an exclusive lock has a condition",
                name=lock.name,
            )
        if lock._shared.no_scripts:
            raise ConfigurationError(lock._shared.no_scripts, name=lock.name)
        self._lock: Any = lock
        self._name = name
        self._shared: Any = lock._shared
        # The digest of the name follows the suffix if there is one.
        key = derived_key(lock._hold.key, CONDITION.suffixes[0] + _digest(name))
        self._queue = self._shared.quorum.condition(lock._hold, key, lock._ttl_ms)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: it belongs to one lock object")

    def __repr__(self) -> str:
        named = f" {self._name!r}" if self._name else ""
        return f"<{type(self).__name__}{named} of {self._lock!r}>"

    @property
    def lock(self) -> BaseLock:
        """The lock of this condition."""
        return self._lock  # type: ignore[no-any-return]

    def _count_of(self, n: object) -> int:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f"n: a whole number is needed, not {type(n).__name__}")
        if n < 1:
            raise ConfigurationError(f"n: at least 1 is needed; got {n}")
        self._lock.check()
        return n


def _digest(name: object) -> bytes:
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"name: str or bytes is needed, not {type(name).__name__}")
    raw = name.encode() if isinstance(name, str) else name
    return blake2b(raw, digest_size=8).hexdigest().encode() if raw else b""
