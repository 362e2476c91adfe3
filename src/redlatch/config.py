"""Checks of arguments: ttls, timeouts and other times, types, and the names of several locks.

Each raises TypeError for a value of a wrong type, and ConfigurationError for one that cannot work, such as NaN.
`what` is the name of the argument, for errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import ConfigurationError

# A hundred years. The sum of two such times, in nanoseconds, still fits into 63 bits.
MAX_TTL_MS = 100 * 365 * 86_400_000
MAX_SECONDS = MAX_TTL_MS // 1000

SWITCH = "True or False"


def ttl_ms_of(ttl: object, drift_factor: float, max_ttl_ms: int = MAX_TTL_MS) -> int:
    """Return a ttl in whole milliseconds; the drift allowance must leave some validity."""
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl: seconds as a number are needed, not {type(ttl).__name__}")
    # The first comparison also refuses NaN, infinities and huge integers, so that the second can compute with the ttl.
    if not 0 < ttl <= MAX_SECONDS or (milliseconds := round(ttl * 1000)) < 1:
        raise ConfigurationError(f"ttl: a finite number of seconds, 0.001 to {MAX_SECONDS}, is needed; got {ttl}")
    if milliseconds > max_ttl_ms:
        raise ConfigurationError(
            f"ttl: {ttl} s is above the {max_ttl_ms / 1000:g} s of the guard; use a shorter ttl with auto_renew=True, "
            f"or guard=Guard(max_ttl={ttl})"
        )
    if milliseconds <= milliseconds * drift_factor + 2:
        raise ConfigurationError(
            f"ttl: {ttl} s leaves no validity after the drift allowance of "
            f"{milliseconds * drift_factor + 2:.2f} ms; use a longer one"
        )
    return milliseconds


def timeout_of(timeout: object, blocking: bool) -> float | None:
    """Return how many seconds to wait for a lock; None means no limit. Without `blocking` no timeout may be given."""
    if not isinstance(blocking, bool):
        raise TypeError(f"blocking: True or False is needed, not {type(blocking).__name__}; was timeout= meant?")
    if not blocking:
        if timeout is not None:
            raise ConfigurationError("timeout: must not be given with blocking=False")
        return 0.0
    return seconds_of("timeout", timeout)


def closing_of(release: object, timeout: object) -> tuple[bool, int]:
    """Check the arguments of `close`; return the timeout, which must be finite, in nanoseconds."""
    if not isinstance(release, bool):
        raise TypeError(f"release: True or False is needed, not {type(release).__name__}")
    seconds = seconds_of("timeout", timeout)
    if seconds is None:
        raise ConfigurationError(f"timeout: a finite number of seconds is needed, so that close ends; got {timeout}")
    return release, int(seconds * 1_000_000_000)


def seconds_of(what: str, value: object) -> float | None:
    """Return a waiting time in seconds. None, or more than a hundred years, means no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what}: seconds as a number or None are needed, not {type(value).__name__}")
    # `not >=` also refuses NaN.
    if not value >= 0:
        raise ConfigurationError(f"{what}: seconds of at least 0, or None, are needed; got {value}")
    return None if value > MAX_SECONDS else float(value)


def attempt_ns_of(attempt_timeout: object) -> int | None:
    """Return the time limit of an attempt; None means that the ttl sets it."""
    if attempt_timeout is None:
        return None
    seconds = seconds_of("attempt_timeout", attempt_timeout)
    if seconds is None or int(seconds * 1_000_000_000) < 1:
        raise ConfigurationError(f"attempt_timeout: finite seconds above 0, or None, are needed; got {attempt_timeout}")
    return int(seconds * 1_000_000_000)


def patience_ns_of(patience: object) -> int:
    if patience is None:
        raise TypeError("patience: a number of seconds is needed, not None")
    seconds = seconds_of("patience", patience)
    return int((MAX_SECONDS if seconds is None else seconds) * 1_000_000_000)


def heartbeat_ns_of(heartbeat: object) -> int:
    """Return the time without running after which a client stops renewing; 0 sets no limit."""
    seconds = seconds_of("heartbeat", heartbeat)
    if seconds is not None and seconds < 0.001:
        raise ConfigurationError(f"heartbeat: seconds of at least 0.001, or None, are needed; got {heartbeat}")
    return int((seconds or 0.0) * 1_000_000_000)


def check_type(what: str, value: object, kinds: type | tuple[type, ...], needed: str) -> None:
    # True and False are no numbers.
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"{what}: {needed} is needed, not {type(value).__name__}")


def check_count(what: str, count: int, most: int) -> None:
    check_type(what, count, int, "a whole number")
    if not 1 <= count <= most:
        raise ConfigurationError(f"{what}: 1 to {most:,} are needed; got {count}")


def several(what: str, given: object, drawn: list[Any] | None = None) -> list[Any]:
    """Return the elements of an iterable as a list.

    Args:
        drawn: the list to put the elements into. After an interrupt it contains those that were read until then.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: an iterable of {what} is needed, not {type(given).__name__}")
    found = [] if drawn is None else drawn
    found.extend(given)
    return found


def distinct(names: object) -> list[Any]:
    """Return the names without duplicates, in the order in which every client asks for them."""
    listed = several("names", names)
    for name in listed:
        if not isinstance(name, (str, bytes)):
            raise TypeError(f"names: each must be str or bytes, not {type(name).__name__}")
    if not listed:
        raise ConfigurationError("names: at least one is needed")
    by_key = {name.encode(errors="surrogatepass") if isinstance(name, str) else name: name for name in reversed(listed)}
    return [by_key[key] for key in sorted(by_key)]
