"""What the calls that make a lock take beside its name and its ttl; `Client.lock` tells what each means."""

from __future__ import annotations

from collections.abc import Callable
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
