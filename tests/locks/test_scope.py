"""The scope that cancels the body of an ``async with``, and its own request beside those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redlatch.locks.scope import LossScope


async def left(body: Callable[[LossScope], Coroutine[Any, Any, None]]) -> tuple[bool, BaseException | None]:
    """Run a body in a scope; return what `leave` returned and the exception of the body."""
    scope = LossScope()
    try:
        await body(scope)
    except BaseException as error:
        return await scope.leave(error), error
    return await scope.leave(None), None


def task_of(scope: LossScope) -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_a_scope_needs_a_task() -> None:
    async def main() -> None:
        made: asyncio.Future[LossScope] = asyncio.get_running_loop().create_future()

        def call() -> None:
            try:
                made.set_result(LossScope())
            except RuntimeError as error:
                made.set_exception(error)

        asyncio.get_running_loop().call_soon(call)
        with pytest.raises(RuntimeError, match=r"^cancel_on_loss: "):
            await made

    asyncio.run(main())


def test_a_loss_cancels_the_body_once_and_is_all_there_is_to_report() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        scope.cancel()
        assert task_of(scope).cancelling() == 1
        await asyncio.sleep(3600)

    async def main() -> None:
        alone, error = await left(body)
        assert alone and isinstance(error, asyncio.CancelledError)
        # The code after the scope is not cancelled.
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_request_that_comes_as_the_body_ends_does_not_reach_the_code_after_it() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()

    async def main() -> None:
        assert await left(body) == (True, None)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_an_error_of_the_body_is_reported_and_not_the_loss() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        raise ValueError("mine")

    async def main() -> None:
        alone, error = await left(body)
        assert not alone and isinstance(error, ValueError)
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_cancellation_by_others_beside_the_loss_goes_on(ended: bool) -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        task_of(scope).cancel()
        if not ended:
            await asyncio.sleep(3600)

    async def main() -> None:
        if ended:
            # The body has no exception that could carry the cancellation.
            with pytest.raises(asyncio.CancelledError):
                await left(body)
        else:
            alone, error = await left(body)
            assert not alone and isinstance(error, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 1

    asyncio.run(main())


def test_a_request_from_before_the_scope_is_not_taken_for_one_of_others() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        # This code cleans up after a cancellation that will go on afterwards.
        alone, _ = await left(body)
        assert alone
        assert task.cancelling() == 1

    asyncio.run(main())


def test_nested_scopes_tell_their_requests_apart() -> None:
    async def main() -> None:
        outer = LossScope()

        async def body(inner: LossScope) -> None:
            outer.cancel()
            await asyncio.sleep(3600)

        inner = LossScope()
        try:
            await body(inner)
        except asyncio.CancelledError as error:
            assert not inner.lost and outer.lost
            assert await outer.leave(error)

    asyncio.run(main())
