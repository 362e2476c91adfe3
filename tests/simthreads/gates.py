"""What instrumented code calls: it counts the points at which CPython could switch threads.

`instrument` runs this file under a name inside the package redlatch, because `redlatch.drivers.lifetime.nested` looks
at the names of the modules on the stack: a gate must look like a part of the function that calls it.

CPython looks at its eval breaker when a function begins, after a call of anything that is not a Python function, and
when a loop goes round. There, and only there, it switches threads or raises KeyboardInterrupt.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

FAR = 1 << 60

left = FAR  # points that the running thread may pass before the kernel decides again


def point() -> None:
    """Let the kernel decide; `kernel` puts its own function here."""


def enter() -> None:
    """Stand at the beginning of a function, or at the end of a loop's body."""
    global left
    left -= 1
    if left < 0:
        point()


def draw() -> None:
    """Have the running thread stopped soon, perhaps; `kernel` puts its own function here."""


def hot() -> None:
    """Stand at the beginning of a function in which threads meet."""
    global left
    draw()
    left -= 1
    if left < 0:
        point()


def value(result: Any) -> Any:
    """Pass a result on, and stand at a point behind it."""
    global left
    left -= 1
    if left < 0:
        point()
    return result


def call0(function: Any) -> Any:
    """Call a function; behind a Python function there is no point."""
    global left
    result = function()
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def call1(function: Any, one: Any) -> Any:
    """Call it with one argument."""
    global left
    result = function(one)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def call2(function: Any, one: Any, two: Any) -> Any:
    """Call it with two."""
    global left
    result = function(one, two)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def call3(function: Any, one: Any, two: Any, three: Any) -> Any:
    """Call it with three."""
    global left
    result = function(one, two, three)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def calln(function: Any, /, *args: Any, **named: Any) -> Any:
    """Call it with more, or with names."""
    global left
    result = function(*args, **named)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result
