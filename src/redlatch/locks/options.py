"""What the calls that make a lock take beside its name and its ttl; `Client.lock` tells what each means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from ..errors import ConfigurationError


class Options(TypedDict, total=False):
    """For threads."""

    timeout: float | None
    auto_renew: bool
    max_hold: float | None
    on_lost: Callable[[Any, str], object] | None


class AsyncOptions(Options, total=False):
    """For asyncio."""

    cancel_on_loss: bool


class PlainOptions(Options, total=False):
    """For plain locks of threads."""

    fence: bool
    fair: bool


class AsyncPlainOptions(AsyncOptions, total=False):
    """For plain locks of asyncio."""

    fence: bool
    fair: bool


def several(what: str, given: object, drawn: list[Any] | None = None) -> list[Any]:
    """Return what an iterable gives.

    Args:
        what: the name of the argument, for errors.
        drawn: the list to put it into; after an interrupt it has what was given until then.

    Raises:
        TypeError: it is no iterable, or one name.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: an iterable of {what} is needed, not {type(given).__name__}")
    found = [] if drawn is None else drawn
    found.extend(given)
    return found


def check_permits(permits: object) -> None:
    """Refuse what is no number of permits.

    Raises:
        TypeError: it is no whole number.
        ConfigurationError: it is below 1.
    """
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"permits: a whole number is needed, not {type(permits).__name__}")
    if not 1 <= permits <= 1_000_000:
        raise ConfigurationError(f"permits: 1 to 1,000,000 are needed; got {permits}")
