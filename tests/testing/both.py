"""One text for both faces: a scenario is a coroutine, and `done` awaits what the asyncio face returns."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from redlatch import AsyncClient, Client
from redlatch.testing import AsyncMemoryClient, MemoryClient

T = TypeVar("T")

FACES = ("threads", "asyncio", "uvloop")

# What differs between two runs on real servers: addresses, and times.
_VARIES = re.compile(r"127\.0\.0\.1:\d+|memory-\d+:6379|\d+\.\d+|[\w.-]+:\d+(?= has)|(?<=for )\d+(?= s)")


class Both:
    """One face.

    Args:
        face: one of `FACES`.
    """

    def __init__(self, face: str) -> None:
        self.face = face
        self.memory: Callable[..., Any] = MemoryClient if face == "threads" else AsyncMemoryClient
        self.real: Callable[..., Any] = Client if face == "threads" else AsyncClient

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a scenario to its end."""
        if self.face == "threads":
            try:
                scenario.send(None)
            except StopIteration as ended:
                result: T = ended.value
                return result
            raise AssertionError("a call of the face for threads was awaited")
        factory = uvloop.new_event_loop if self.face == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(scenario)


async def done(value: Awaitable[T] | T) -> T:
    """Return the result of a call of either face."""
    return await value if inspect.isawaitable(value) else value


async def enter(lock: Any) -> Any:
    """Begin a ``with`` block of either face."""
    return await lock.__aenter__() if hasattr(lock, "__aenter__") else lock.__enter__()


async def leave(lock: Any) -> None:
    """End such a block."""
    await done(lock.__aexit__(None, None, None) if hasattr(lock, "__aexit__") else lock.__exit__(None, None, None))


async def outcome(call: Callable[[], Any]) -> str:
    """Return the result of a call, or its error, without what differs from run to run."""
    try:
        found = repr(await done(call()))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return _VARIES.sub("#", found)
