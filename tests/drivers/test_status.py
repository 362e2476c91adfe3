"""How the figures of a client are put together: the present holds by group, and the masters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.client_queues import FOR_EVER, World
from support.forked import in_child

from redlatch import Client, impl
from redlatch.drivers.status import stats_of, stats_of_masters
from redlatch.health import Health, MasterHealth
from redlatch.stats import MasterStats
from redlatch.votes.units import Durations


@pytest.fixture
def world(implementation: impl.Implementation) -> World:
    return World(implementation)


def now(world: World) -> Any:
    return stats_of(world.quorum, ())


def test_holders_and_waiters_are_counted_by_group(world: World) -> None:
    world.holder().figures = world.quorum.groups.named("orders")
    waiter = world.waiter()
    other = world.hold()
    other.figures = world.quorum.groups.named("orders")
    world.join(other, FOR_EVER)
    stats = now(world)
    assert (stats.held, stats.waiting) == (1, 2)
    assert (stats.groups["orders"].held, stats.groups["orders"].waiting) == (1, 1)
    assert (stats.groups[""].held, stats.groups[""].waiting) == (0, 1)
    assert waiter.hold.figures is None


def test_a_lock_that_has_run_out_is_not_held(world: World) -> None:
    holder = world.holder()
    world.play.now = holder.deadline_ns - 1
    assert now(world).held == 1
    world.play.now = holder.deadline_ns
    assert now(world).held == 0


def test_a_hold_beside_the_head_counts_once(world: World) -> None:
    holder = world.holder()
    world.queues.note_unqueued(holder, world.now)
    assert now(world).held == 1


def test_a_released_lock_is_neither_held_nor_waited_for(world: World) -> None:
    holder = world.holder()
    world.leave(holder)
    holder.free()
    assert (now(world).held, now(world).waiting) == (0, 0)


def test_the_totals_are_the_sums_of_the_groups(world: World) -> None:
    for group in ("", "orders", "orders"):
        figures = world.quorum.groups.named(group)
        figures.win(1_000_000)
        figures.lose("expired")
    stats = now(world)
    assert (stats.acquired, stats.groups["orders"].acquired, stats.lost) == (3, 2, {"expired": 3})
    assert (stats.acquire_time.count, stats.acquire_time.sum) == (3, 0.003)


HEALTH = Health((MasterHealth("10.0.0.1:6379", False, "kept out", kept_out=9.0),), 1)


def test_a_master_without_a_guard_has_no_reply_times() -> None:
    assert stats_of_masters(HEALTH, None) == (MasterStats("10.0.0.1:6379", False),)


def test_a_guarded_master_has_its_quarantines_and_reply_times() -> None:
    times = Durations()
    times.count(1_000_000)
    guarded: Any = [SimpleNamespace(quarantines=2, reply_time=times)]
    [master] = stats_of_masters(HEALTH, guarded)
    assert (master.kept_out, master.quarantines, master.reply_time.sum) == (9.0, 2, 0.001)


def test_the_state_says_whether_the_client_can_be_used(implementation: impl.Implementation, three: list[str]) -> None:
    client = Client(three)
    status = client._driver.status
    assert (status.state, status.forked) == ("not connected", False)
    client.connect()
    assert status.state.endswith("of 3 connected")

    def look() -> None:
        assert (status.state, status.forked) == ("of the parent process", True)

    in_child(look)
    client.close()
    assert status.state == "closed"
