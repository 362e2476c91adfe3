"""The types of arguments: masters and wakeups of a client, and the options of a lock besides name and ttl.

`Client` and `Client.lock` document them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, ForwardRef, Literal, TypedDict, TypeVar

import redis
import redis.asyncio

from ..errors import ConfigurationError
from ..loss import Loss
from ..quorum.policy import Handoff, Retry
from ..votes.units import UNBOUNDED

MasterLike = str | redis.Redis | redis.asyncio.Redis
Masters = MasterLike | Iterable[MasterLike]
Wakeups = Literal["auto", "poll"]

AnyMaker = TypeVar("AnyMaker", bound=Callable[..., Any])

# The options that are True or False, and their defaults. The default of the others is None.
_DEFAULTS = {"auto_renew": False, "cancel_on_loss": False, "fence": False, "fair": False}


class CommonOptions(TypedDict, total=False):
    """The options of all locks."""

    timeout: float | None
    auto_renew: bool
    max_hold: float | None
    group: str | None


class Options(CommonOptions, total=False):
    """The options of all locks of a `Client`."""

    on_lost: Callable[[Any, Loss], None] | None


class AsyncOptions(CommonOptions, total=False):
    """The options of all locks of an `AsyncClient`."""

    on_lost: Callable[[Any, Loss], Awaitable[object] | None] | None
    cancel_on_loss: bool


class PlainOptions(Options, total=False):
    """The options of `Client.lock`, `Client.rlock` and `Client.locked`."""

    fence: bool
    fair: bool


class AsyncPlainOptions(AsyncOptions, total=False):
    """The options of `AsyncClient.lock`, `AsyncClient.rlock` and `AsyncClient.locked`."""

    fence: bool
    fair: bool


def spelled_out(options: type[Any]) -> Callable[[AnyMaker], AnyMaker]:
    """Make a decorator: `inspect.signature`, and so `help` and mocks, name each option of a function.

    The function itself takes them as ``**options``: eight defaults that a call does not give cost 1,000 instructions.

    Args:
        options: one of the types of options.
    """

    def decorate(function: AnyMaker) -> AnyMaker:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        named = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=_text_of(kind)
            )
            for name, kind in options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
        return function

    return decorate


def _text_of(annotation: Any) -> Any:
    """Return an annotation as the other parameters have it: TypedDict wraps its text, and `help` would show that."""
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def check_options(given: Mapping[str, object], allowed: Collection[str]) -> None:
    """Check the names of options, and those values that are True or False.

    Raises:
        TypeError: an option does not exist, or has another value; the message names it.
    """
    for name, value in given.items():
        if name not in allowed:
            raise TypeError(f"{name}: there is no such option; the options are {', '.join(allowed)}")
        if name in _DEFAULTS and not isinstance(value, bool):
            raise TypeError(f"{name}: True or False is needed, not {type(value).__name__}")


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


def check_client(drift_factor: object, retry: object, wait_release: object) -> None:
    """Refuse options that have a wrong type or are out of range."""
    if isinstance(drift_factor, bool) or not isinstance(drift_factor, (int, float)):
        raise TypeError(f"drift_factor: a number is needed, not {type(drift_factor).__name__}")
    if not 0 <= drift_factor < 1:
        raise ConfigurationError(f"drift_factor: a share of the ttl from 0 to below 1 is needed, got {drift_factor}")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry: a redlatch.Retry is needed, not {type(retry).__name__}")
    if not isinstance(wait_release, bool):
        raise TypeError(f"wait_release: True or False is needed, not {type(wait_release).__name__}")


def check_group(group: object) -> None:
    """Refuse a group of locks whose name is not a str, or cannot be exported: one such label would end each scrape."""
    if not isinstance(group, str):
        raise TypeError(f"group: a str or None is needed, not {type(group).__name__}")
    try:
        group.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"group: {group!r} has characters that UTF-8 does not have") from error


def check_waiting(wakeups: object, handoff: object, max_waiters: object, refuse_late: object) -> None:
    """Refuse options about waiting that have a wrong type or are out of range."""
    if wakeups not in ("auto", "poll"):
        raise ConfigurationError(f"wakeups: 'auto' or 'poll' is needed, got {wakeups!r}")
    if handoff is not None and not isinstance(handoff, Handoff):
        raise TypeError(f"handoff: a redlatch.Handoff is needed, not {type(handoff).__name__}")
    if max_waiters is not None:
        if isinstance(max_waiters, bool) or not isinstance(max_waiters, int):
            raise TypeError(f"max_waiters: a whole number, or None, is needed, not {type(max_waiters).__name__}")
        if not 0 <= max_waiters < UNBOUNDED:
            raise ConfigurationError(f"max_waiters: at least 0, or None, is needed; got {max_waiters}")
    if not isinstance(refuse_late, bool):
        raise TypeError(f"refuse_late: True or False is needed, not {type(refuse_late).__name__}")


def distinct(names: object) -> list[Any]:
    """Return the names without duplicates, in the order in which every client asks for them.

    Args:
        names: an iterable of str or bytes.

    Raises:
        ConfigurationError: there are no names.
        TypeError: the argument is one str or bytes, or not an iterable, or an element is neither str nor bytes.
    """
    listed = several("names", names)
    for name in listed:
        if not isinstance(name, (str, bytes)):
            raise TypeError(f"names: each must be str or bytes, not {type(name).__name__}")
    if not listed:
        raise ConfigurationError("names: at least one is needed")
    by_key = {name.encode(errors="surrogatepass") if isinstance(name, str) else name: name for name in reversed(listed)}
    return [by_key[key] for key in sorted(by_key)]
