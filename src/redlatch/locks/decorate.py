"""Functions that run while they hold a lock, whose name is made of their arguments."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import ConfigurationError

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def check_template(template: object) -> None:
    """Refuse what is no template.

    Raises:
        TypeError: it is no str.
    """
    if not isinstance(template, str):
        hint = ': write @client.locked("name")' if callable(template) else ""
        raise TypeError(f"template: a str is needed, such as 'report:{{day}}', not {type(template).__name__}{hint}")


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return what makes the lock's name of a call's arguments.

    Raises:
        ConfigurationError: the template names what is no argument of the function, or is malformed.
    """
    signature = inspect.signature(function)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ConfigurationError(f"template: {template!r} is malformed: {error}") from None
    for field in fields:
        first = field.replace("[", ".").partition(".")[0]
        if first not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                f"template: {{{field}}} is no argument of {_name_of(function)}, whose arguments are: {known}"
            )

    def name(*args: Any, **named: Any) -> str:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def locking(
    make: Callable[..., Any], template: str, ttl: float | None, options: Mapping[str, Any]
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator for functions of threads."""
    check_template(template)

    def decorate(function: AnyFunction) -> AnyFunction:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"locked: {_name_of(function)} is a coroutine function; use an AsyncClient for it")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"locked: {_name_of(function)} is a generator function, which returns before it runs; "
                "use a with statement in its body"
            )
        name = namer(template, function)

        @functools.wraps(function)
        def locked(*args: Any, **named: Any) -> Any:
            with make(name(*args, **named), ttl, options):
                return function(*args, **named)

        return locked  # type: ignore[return-value]

    return decorate


def async_locking(
    make: Callable[..., Any], template: str, ttl: float | None, options: Mapping[str, Any]
) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator for coroutine functions."""
    check_template(template)

    def decorate(function: AnyFunction) -> AnyFunction:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"locked: {_name_of(function)} is no coroutine function; use a Client for it")
        name = namer(template, function)

        @functools.wraps(function)
        async def locked(*args: Any, **named: Any) -> Any:
            async with make(name(*args, **named), ttl, options):
                return await function(*args, **named)

        return locked  # type: ignore[return-value]

    return decorate
