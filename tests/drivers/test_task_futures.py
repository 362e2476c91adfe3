"""The future of a task that waits for its ballot: how it is woken, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from redlatch import impl

SECOND = 1_000_000_000
NOW = 7_000 * SECOND
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
    return implementation.module("drivers.task_futures").new_light_future


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


# --- deadlines ------------------------------------------------------------------------------------------------


@pytest.fixture
def deadlines(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("drivers.task_futures")


@pytest.fixture
def future(implementation: impl.Implementation) -> Any:
    """Return a function that makes futures which end at a time."""
    make, loop = implementation.module("drivers.task_futures").new_light_future, asyncio.new_event_loop()
    yield lambda until_ns: make(loop, until_ns)
    loop.close()


def test_a_short_wait_that_begins_later_ends_before_a_long_one(deadlines: ModuleType, future: Any) -> None:
    queues = deadlines.Deadlines()
    first, long, short = future(NOW + SECOND), future(NOW + 1000 * SECOND), future(NOW + SECOND + 1)
    for each, now in ((first, NOW), (long, NOW), (short, NOW + 1)):
        queues.add(each, now)
    first.wake_soon()
    assert queues.earliest() == short.until_ns
    assert queues.due(short.until_ns - 1) == []
    assert queues.due(short.until_ns) == [short]
    assert queues.earliest() == long.until_ns


def test_a_wait_whose_time_is_over_when_it_begins_is_due_at_once(deadlines: ModuleType, future: Any) -> None:
    queues = deadlines.Deadlines()
    late = future(NOW - SECOND)
    queues.add(late, NOW)
    assert queues.earliest() == late.until_ns
    assert queues.due(NOW) == [late]
    assert queues.earliest() is None


@pytest.mark.parametrize("ended", ["wake_soon", "cancel"])
def test_futures_that_are_done_are_dropped_behind_one_that_ends_late(
    deadlines: ModuleType, future: Any, ended: str
) -> None:
    queues = deadlines.Deadlines()
    for number in range(10_000):
        each = future(NOW + 1000 * SECOND + number)
        if number:
            getattr(each, ended)()
        queues.add(each, NOW + number)
    assert queues.earliest() == NOW + 1000 * SECOND
    assert len(queues.clear()) < 1000
    assert queues.clear() == []
