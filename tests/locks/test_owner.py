"""The owner of a lock: one object for each thread, and the running task."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest
from support.faces import PATIENCE, in_thread

from redlatch.locks.owner import coroutine_function, named, of_threads, running_task


def test_a_thread_has_one_owner_and_another_thread_another() -> None:
    owner = of_threads()
    assert owner() is owner()
    assert in_thread(owner).result(PATIENCE) is not owner()


def test_two_locks_have_separate_owners_for_one_thread() -> None:
    assert of_threads()() is not of_threads()()


def test_the_owner_of_a_thread_ends_with_the_thread() -> None:
    owner = of_threads()
    seen: list[weakref.ref[Any]] = []
    thread = threading.Thread(target=lambda: seen.append(weakref.ref(owner())))
    thread.start()
    thread.join(PATIENCE)
    gc.collect()
    assert seen[0]() is None


def test_the_owner_of_a_task_is_the_task_and_nobody_outside() -> None:
    assert running_task() is None

    async def main() -> None:
        assert running_task() is asyncio.current_task() is not None
        # A callback of the loop belongs to no task.
        called: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: called.set_result(running_task()))
        assert await called is None

    asyncio.run(main())


def test_a_method_that_is_marked_counts_as_a_coroutine_function() -> None:
    async def run() -> str:
        return "done"

    def call() -> Coroutine[Any, Any, str]:
        return run()

    assert not inspect.iscoroutinefunction(call)
    marked = coroutine_function(call)
    assert marked is call
    assert inspect.iscoroutinefunction(marked)
    assert asyncio.iscoroutinefunction(marked)
    assert asyncio.run(marked()) == "done"


def test_the_warning_of_a_forgotten_await_shows_the_public_call() -> None:
    @named("AsyncLock.acquire")
    async def _acquire() -> None: ...

    call = _acquire()
    with pytest.warns(RuntimeWarning, match="coroutine 'AsyncLock.acquire' was never awaited"):
        del call
        gc.collect()
