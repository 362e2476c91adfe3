"""The types of arguments: masters and wakeups of a client, and the options of a lock besides name and ttl.

`Client` and `Client.lock` document them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

import redis
import redis.asyncio

from ..errors import ConfigurationError

MasterLike = str | redis.Redis | redis.asyncio.Redis
Masters = MasterLike | Iterable[MasterLike]
Wakeups = Literal["auto", "poll"]


class Options(TypedDict, total=False):
    """The options of all locks of a `Client`."""

    timeout: float | None
    auto_renew: bool
    max_hold: float | None
    on_lost: Callable[[Any, str], object] | None


class AsyncOptions(Options, total=False):
    """The options of all locks of an `AsyncClient`."""

    cancel_on_loss: bool


class PlainOptions(Options, total=False):
    """The options of `Client.lock`, `Client.rlock` and `Client.locked`."""

    fence: bool
    fair: bool


class AsyncPlainOptions(AsyncOptions, total=False):
    """The options of `AsyncClient.lock`, `AsyncClient.rlock` and `AsyncClient.locked`."""

    fence: bool
    fair: bool


def several(what: str, given: object, drawn: list[Any] | None = None) -> list[Any]:
    """Return the elements of an iterable as a list.

    Args:
        what: the name of the argument, for errors.
        given: the iterable.
        drawn: the list to put the elements into; None makes a new list. After an interrupt it contains the elements
            that were read until then.

    Raises:
        TypeError: the argument is not an iterable, or is one str or bytes.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: an iterable of {what} is needed, not {type(given).__name__}")
    found = [] if drawn is None else drawn
    found.extend(given)
    return found


def check_permits(permits: object) -> None:
    """Check the number of permits of a semaphore.

    Raises:
        TypeError: it is not a whole number.
        ConfigurationError: it is below 1 or above 1,000,000.
    """
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"permits: a whole number is needed, not {type(permits).__name__}")
    if not 1 <= permits <= 1_000_000:
        raise ConfigurationError(f"permits: 1 to 1,000,000 are needed; got {permits}")
