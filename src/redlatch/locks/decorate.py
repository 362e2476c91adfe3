"""Decorators that run a function under a lock, whose name is made from the function's arguments.

No function body may run without its lock. So the decorators refuse a coroutine or generator, which runs only after its
function has returned (see `Client.locked`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from ..errors import ConfigurationError

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

# The name of an argument, followed by attributes and items.
_FIELD = re.compile(r"([^.\[\]]+)(\.[^.\[\]]+|\[[^\]]+\])*")


def check_template(template: object) -> None:
    if not isinstance(template, str):
        hint = ': write @client.locked("name")' if callable(template) else ""
        raise TypeError(f"template: a str is needed, such as 'report:{{day}}', not {type(template).__name__}{hint}")


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"locked: {_name_of(function)} has no signature that can be read: {error}") from None
    fields = fields_of(template)
    for field in fields:
        found = _FIELD.fullmatch(field)
        if field and found is None:
            raise ConfigurationError(f"template: {template!r} is malformed: {{{field}}} is no field")
        if found is None or found[1] not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                f"template: {{{field}}} is no argument of {_name_of(function)}, whose arguments are: {known}"
            )

    # Without fields, the arguments are not bound: another decorator may pass some that the signature does not have.
    if not fields:
        fixed = template.format()
        return lambda *args, **named: fixed

    def name(*args: Any, **named: Any) -> str:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name


def fields_of(template: str) -> list[str]:
    # A format specification may have fields, too.
    found, texts = [], [template]
    try:
        for depth in range(3):
            parts = [part for text in texts for part in string.Formatter().parse(text) if part[1] is not None]
            if parts and depth == 2:
                raise ValueError("fields are nested too deeply")
            for _, field, _, conversion in parts:
                if conversion not in (None, "s", "r", "a"):
                    raise ValueError(f"{{{field}!{conversion}}} has an unknown conversion")
                found.append(str(field))
            texts = [str(text) for _, _, text, _ in parts]
    except ValueError as error:
        raise ConfigurationError(f"template: {template!r} is malformed: {error}") from None
    return found


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    # An object may have its code in `__call__`.
    return test(function) or (not inspect.isroutine(function) and test(type(function).__call__))


def _refuse_others(function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(f"locked: {_name_of(function)} is a class; decorate its methods, or a function that makes it")
    if not callable(function):
        raise TypeError(f"locked: a function is needed, not {type(function).__name__}")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise TypeError(
            f"locked: {_name_of(function)} is a generator function, which returns before it runs; "
            "use a with statement in its body"
        )


def _refuse_result(function: Any, result: Any, hint: str) -> None:
    """Refuse a returned awaitable or generator, and close it, so that it never runs."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        what, hint = "a generator", "use a with statement in its body"
    elif inspect.isawaitable(result):
        what = "an awaitable"
    else:
        return
    if isinstance(result, (Coroutine, Generator)):
        result.close()
    elif asyncio.isfuture(result):
        # Other awaitables, such as a pool, may have a close() with another meaning.
        result.cancel()
    raise TypeError(f"locked: {_name_of(function)} returned {what}, which would run without the lock; {hint}")


def _refuse_context(function: Any, result: Any) -> None:
    """Refuse a context manager that `contextlib` made from a generator function: its body has not run yet."""
    inner = inspect.unwrap(function)
    if not (inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)):
        return
    if isinstance(result, (AbstractContextManager, AbstractAsyncContextManager)):
        raise TypeError(
            f"locked: {_name_of(function)} returned a context manager, whose body would run without the lock; "
            "use a with statement in its body"
        )


def _through(decorate: Callable[[Any], Any]) -> Callable[[AnyFunction], AnyFunction]:
    # Decorate the function inside a static or class method.

    def decorate_any(function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(decorate(function.__func__))
        return decorate(function)

    return decorate_any


def locking(
    make: Callable[..., Any], template: str, ttl: float | None, options: Mapping[str, Any]
) -> Callable[[AnyFunction], AnyFunction]:
    check_template(template)
    # This checks the options, and sends nothing.
    make("any name", ttl, options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _refuse_others(function)
        if _is(inspect.iscoroutinefunction, function):
            raise TypeError(f"locked: {_name_of(function)} is a coroutine function; use an AsyncClient for it")
        name = namer(template, function)

        @functools.wraps(function)
        def locked(*args: Any, **named: Any) -> Any:
            with make(name(*args, **named), ttl, options):
                result = function(*args, **named)
                _refuse_result(function, result, "use an AsyncClient for it")
                _refuse_context(function, result)
                return result

        return locked

    return _through(decorate)


def async_locking(
    make: Callable[..., Any], template: str, ttl: float | None, options: Mapping[str, Any]
) -> Callable[[AnyFunction], AnyFunction]:
    check_template(template)
    # This checks the options, and sends nothing.
    make("any name", ttl, options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _refuse_others(function)
        # A wrapper around a coroutine function may be a plain function that returns the coroutine.
        if not (_is(inspect.iscoroutinefunction, function) or inspect.iscoroutinefunction(inspect.unwrap(function))):
            raise TypeError(f"locked: {_name_of(function)} is no coroutine function; use a Client for it")
        name = namer(template, function)

        @functools.wraps(function)
        async def locked(*args: Any, **named: Any) -> Any:
            async with make(name(*args, **named), ttl, options):
                result = function(*args, **named)
                # If the result is not awaitable, a wrapper has already run the coroutine.
                if inspect.isawaitable(result):
                    result = await result
                # A result that is awaitable but no coroutine, such as a task, is allowed.
                if not inspect.isawaitable(result) or inspect.iscoroutine(result):
                    _refuse_result(function, result, "await it in the function")
                return result

        return locked

    return _through(decorate)
