"""The functions that instrumented code calls: they count the points at which CPython could switch threads.

`instrument` runs this file under a name inside the package redlatch, because `redlatch.drivers.lifetime.nested` checks
the names of the modules on the stack: a gate must look like a part of the function that calls it.

CPython checks its eval breaker at the start of a function, after a call of anything that is not a Python function, and
at the jump back of a loop. There, and only there, it switches threads or raises KeyboardInterrupt.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

FAR = 1 << 60

left = FAR  # the points that the running thread may still pass before the kernel decides again


def point() -> None:
    """Let the kernel decide; `kernel` replaces this function."""


def enter() -> None:
    """Pass the point at the start of a function, or at the end of a loop's body."""
    global left
    left -= 1
    if left < 0:
        point()


def draw() -> None:
    """Decide at random whether to preempt the running thread soon; `kernel` replaces this function."""


def hot() -> None:
    """Pass the point at the start of a function in a module of `instrument.HOT`."""
    global left
    draw()
    left -= 1
    if left < 0:
        point()


def value(result: Any) -> Any:
    """Return a result, and pass the point after it."""
    global left
    left -= 1
    if left < 0:
        point()
    return result


def call0(function: Any) -> Any:
    """Call a function; only a function that is not Python's has a point after it."""
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
    """Call it with two arguments."""
    global left
    result = function(one, two)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def call3(function: Any, one: Any, two: Any, three: Any) -> Any:
    """Call it with three arguments."""
    global left
    result = function(one, two, three)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result


def calln(function: Any, /, *args: Any, **named: Any) -> Any:
    """Call it with more arguments, or with keywords."""
    global left
    result = function(*args, **named)
    kind = type(function)
    if kind is not MethodType and kind is not FunctionType:
        left -= 1
        if left < 0:
            point()
    return result
