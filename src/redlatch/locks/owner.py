"""Who holds a lock that knows its holder: the thread, or the task, that made the call.

An owner is an object that is gone when its thread is, or a task that can be asked whether it is done. It is never a
number: the numbers of dead threads are given to new ones.
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
    """Names one thread. Only that thread's local storage keeps it alive."""

    __slots__ = ("__weakref__",)


def of_threads() -> Callable[[], ThreadOwner]:
    """Return a function that returns the owner of the calling thread, always the same one.

    Each caller of this has storage of its own, made now: gevent, which puts greenlets in the place of threads, may have
    replaced `threading.local` since this module was imported.
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

    What it does before it returns the coroutine is done in the task of the caller: `asyncio.wait_for` before Python
    3.12, `asyncio.create_task` and `asyncio.gather` run the coroutine in another one.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(method)
    method._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return method
