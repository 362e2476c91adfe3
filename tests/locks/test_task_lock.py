"""The calls of a lock for asyncio: the claim that an `async with` releases, and its body after a loss."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from redlatch import LockLost, NotOwned
from redlatch.testing import AsyncMemoryClient


@pytest.fixture
def client() -> AsyncMemoryClient:
    return AsyncMemoryClient(1)


def test_its_calls_are_coroutine_functions_with_the_public_names(client: AsyncMemoryClient) -> None:
    lock = client.lock("job")
    for call in (lock.acquire, lock.release):
        assert inspect.iscoroutinefunction(call)
        assert call.__qualname__ == f"AsyncLock.{call.__name__}"


def test_a_body_that_a_loss_has_cancelled_raises_lock_lost(client: AsyncMemoryClient) -> None:
    async def use() -> None:
        async with client.lock("job", cancel_on_loss=True) as lock:
            client.lose(lock)
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        asyncio.run(use())


def test_a_loss_is_noted_on_the_exception_of_a_cancelled_body(client: AsyncMemoryClient) -> None:
    async def use() -> None:
        async with client.lock("job", cancel_on_loss=True) as lock:
            client.lose(lock)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine") as raised:
        asyncio.run(use())
    assert "LockLost" in raised.value.__notes__[0]


def test_a_body_that_has_released_the_lock_may_not_release_that_of_another_task(client: AsyncMemoryClient) -> None:
    async def use() -> None:
        lock = client.lock("job")
        with pytest.raises(NotOwned, match="another thread or task"):
            async with lock:
                await lock.release()
                async with asyncio.TaskGroup() as group:
                    group.create_task(lock.__aenter__())
        assert lock.token

    asyncio.run(use())


def test_an_acquire_after_a_wait_goes_on_with_the_claim_of_the_with(client: AsyncMemoryClient) -> None:
    async def use() -> None:
        lock = client.lock("job")
        async with lock:
            ticket = lock._hold.ticket
            await lock.release()
            await lock._acquire_again(ticket)
            assert lock._hold.entered is lock._hold.ticket
        assert not lock.token

    asyncio.run(use())
