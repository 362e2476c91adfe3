"""The times until which asyncio tasks wait."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from redlatch import impl

SECOND = 1_000_000_000
NOW = 7_000 * SECOND


@pytest.fixture
def deadlines(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("drivers.deadlines")


@pytest.fixture
def future(implementation: impl.Implementation) -> Any:
    """Return a function that makes futures which end at a time."""
    make, loop = implementation.module("drivers.light_future").new_light_future, asyncio.new_event_loop()
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
