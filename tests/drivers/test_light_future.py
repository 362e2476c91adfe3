"""The future of a task that waits for its ballot: how it is woken, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from redlatch import impl

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME")


def ended() -> asyncio.Future[None]:
    """Return a future of the running loop that has ended."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


class Waiting:
    """A task that waits for a future, and what happened in which order. Make one in a running loop."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.future = make(asyncio.get_running_loop(), 0)
        self.seen: list[str] = []
        self.task = asyncio.ensure_future(self.wait())

    async def wait(self) -> None:
        NAME.set("the task")
        await self.future
        self.seen.append("awake in " + NAME.get("the loop"))

    def call(self, *names: str) -> None:
        """Call methods of the future in the loop, outside of any task."""

        def work() -> None:
            for name in names:
                if name == "wake":
                    self.future.wake(ended())
                else:
                    getattr(self.future, name)()
            self.seen.append("called")

        asyncio.get_running_loop().call_soon(work)


@pytest.fixture
def make(implementation: impl.Implementation) -> Any:
    return implementation.module("drivers.light_future").new_light_future


def run(make: Any, *names: str) -> list[str]:
    """Let a task wait, call these methods of its future, and return what happened."""

    async def main() -> list[str]:
        waiting = Waiting(make)
        await asyncio.sleep(0)
        assert not waiting.future.done
        waiting.call(*names)
        await asyncio.wait_for(waiting.task, 5)
        assert waiting.future.done
        return waiting.seen

    return asyncio.run(main())


def test_wake_lets_the_task_go_on_at_once_in_its_own_context(make: Any) -> None:
    assert run(make, "wake") == ["awake in the task", "called"]


def test_wake_soon_lets_the_task_go_on_in_the_next_turn(make: Any) -> None:
    assert run(make, "wake_soon") == ["called", "awake in the task"]


@pytest.mark.parametrize("names", [("wake", "wake"), ("wake", "wake_soon"), ("wake", "cancel")])
def test_nothing_wakes_a_task_a_second_time(make: Any, names: tuple[str, ...]) -> None:
    assert run(make, *names) == ["awake in the task", "called"]


def test_a_task_does_not_wait_for_a_future_that_is_done(make: Any) -> None:
    async def main() -> list[str]:
        waiting = Waiting(make)
        waiting.future.wake(ended())
        await asyncio.sleep(0)
        return waiting.seen

    assert asyncio.run(main()) == ["awake in the task"]


def test_a_task_that_waits_can_be_cancelled(make: Any) -> None:
    async def main() -> None:
        waiting = Waiting(make)
        await asyncio.sleep(0)
        waiting.task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await waiting.task
        assert waiting.future.done and waiting.seen == []
        # It is awake already.
        assert waiting.future.cancel() is False

    asyncio.run(main())


def test_a_future_belongs_to_a_loop_and_ends_at_its_time(make: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        future = make(loop, 700)
        assert future.get_loop() is loop and future.until_ns == 700
        assert asyncio.isfuture(future)

    asyncio.run(main())
