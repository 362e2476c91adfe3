"""The owner of a re-entrant or read-write lock: the task that made the call, or an object of the thread.

That object is freed when the thread ends. A thread ident would not do, since the system reuses those of dead threads.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Coroutine[Any, Any, Any]])
AnyCall = TypeVar("AnyCall", bound=Callable[..., Any])


class ThreadOwner:
    """Identifies one thread. Only that thread's local storage keeps it alive."""

    __slots__ = ("__weakref__",)


def of_threads() -> Callable[[], ThreadOwner]:
    # `threading.local` is looked up here, because gevent may have replaced it since this module was imported.
    local = threading.local()

    def owner() -> ThreadOwner:
        try:
            return local.owner  # type: ignore[no-any-return]
        except AttributeError:
            local.owner = owner = ThreadOwner()
            return owner

    return owner


def running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No event loop is running.
        return None


class TaskTicket:
    """The ticket of an acquire that names its task, if any. A claim needs one while a ``with`` of its lock is open."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task = running_task()


def made_in_this_thread(ticket: object) -> bool:
    # The tickets of threads are their idents.
    return ticket == threading.get_ident()


def made_in_this_task(ticket: object) -> bool:
    return isinstance(ticket, TaskTicket) and ticket.task is not None and ticket.task is running_task()


def coroutine_function(method: AnyMethod) -> AnyMethod:
    """Mark a method that returns a coroutine, so that `inspect`, mocks and frameworks treat it as an ``async def``.

    The method runs in the caller's task, but its coroutine may run in another one: `asyncio.create_task`,
    `asyncio.gather` and, before Python 3.12, `asyncio.wait_for` do that.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(method)
    if sys.implementation.name == "cpython":
        # `inspect` 3.11 reads this flag. CPython makes coroutines by an instruction, not by the flag.
        code = method.__code__
        method.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    else:
        method._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return method


def named(call: str) -> Callable[[AnyCall], AnyCall]:
    """Give a method the name of a public call, which Python shows in reprs and if an await was forgotten."""

    def rename(method: AnyCall) -> AnyCall:
        method.__qualname__ = call
        return method

    return rename
