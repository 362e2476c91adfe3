"""The owner of a lock that knows its holder: the thread or task that made the call.

An owner is an object that dies with its thread, or a task, which knows whether it is done. It is never a thread ident:
the system reuses the idents of dead threads.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Coroutine[Any, Any, Any]])


class ThreadOwner:
    """Identifies one thread. Only that thread's local storage keeps it alive."""

    __slots__ = ("__weakref__",)


def of_threads() -> Callable[[], ThreadOwner]:
    """Return a function that returns the owner of the calling thread, always the same one.

    Each call of `of_threads` makes its own storage. `threading.local` is looked up only then, because gevent may have
    replaced it since this module was imported.
    """
    local = threading.local()

    def owner() -> ThreadOwner:
        try:
            return local.owner  # type: ignore[no-any-return]
        except AttributeError:
            local.owner = owner = ThreadOwner()
            return owner

    return owner


def running_task() -> asyncio.Task[Any] | None:
    """Return the task that is running, if any."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # there is no loop
        return None


def coroutine_function(method: AnyMethod) -> AnyMethod:
    """Mark a method that returns a coroutine, so that mocks and frameworks take it for an ``async def``.

    The method itself runs in the caller's task. Its coroutine may run in another one: `asyncio.create_task`,
    `asyncio.gather` and, before Python 3.12, `asyncio.wait_for` do that.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(method)
    method._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return method
