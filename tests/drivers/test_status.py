"""The figures of a client: the present holds by group, and the masters; what is known of one master."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.client_queues import FOR_EVER, World
from support.forked import in_child

from redlatch import Client, impl
from redlatch.drivers.status import count_at_risk, health_of, stats_of, stats_of_masters
from redlatch.errors import MasterQuarantined
from redlatch.health import Health, MasterHealth
from redlatch.masters.listed import masters_of
from redlatch.stats import MasterStats
from redlatch.votes.units import SECOND, Durations


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


NOW = 1000 * SECOND
[MASTER] = masters_of(["redis://user:secret@10.0.0.1:6380"])


def link(up: bool, cause: BaseException | None = None, evicts: str = "") -> Any:
    return SimpleNamespace(up=up, cause=cause, traits=SimpleNamespace(evicts=evicts))


@pytest.mark.parametrize("tried", [None, link(False)])
def test_a_master_that_was_not_tried_yet(tried: Any) -> None:
    health = health_of(MASTER, tried, None, NOW)
    assert (health.address, health.voting, health.why) == ("10.0.0.1:6380", False, "not connected yet")


def test_a_master_that_votes_says_nothing_of_an_earlier_cause() -> None:
    health = health_of(MASTER, link(True, ConnectionResetError()), None, NOW)
    assert (health.voting, health.why, health.kept_out) == (True, "", 0.0)


def test_a_master_that_is_kept_out_says_how_much_is_left_now() -> None:
    cause = MasterQuarantined.kept_out(NOW + 9 * SECOND, "it was restarted", NOW)
    health = health_of(MASTER, link(False, cause), None, NOW + 4 * SECOND)
    assert (health.why, health.kept_out) == ("kept out for 5.0 s more: it was restarted", 5.0)


def test_a_master_that_is_kept_out_for_a_time_that_is_not_known_yet() -> None:
    health = health_of(MASTER, link(False, MasterQuarantined("it was flushed")), None, NOW)
    assert (health.why, health.kept_out) == ("it was flushed", 0.0)


@pytest.mark.parametrize(("up", "evicts"), [(True, "allkeys-lru"), (False, "")])
def test_a_master_that_may_evict_locks_says_so_while_it_is_connected(up: bool, evicts: str) -> None:
    assert health_of(MASTER, link(up, evicts="allkeys-lru"), None, NOW).evicts == evicts


class Held:
    """A held lock that was last asked for at this time; `lacking` is as for `Hold`."""

    def __init__(self, asked_ns: int, lacking: tuple[int, int] = (0, 0), is_held: bool = True) -> None:
        self.lease = SimpleNamespace(asked_ns=asked_ns)
        self.lacking = lacking
        self._is_held = is_held

    def held(self, now_ns: int) -> bool:
        return self._is_held


def held(*holds: Held) -> list[Any]:
    return [*holds]


def connected(index: int, adopted_ns: int = 10, up: bool = True, suspected: bool = False, votes: bool = True) -> Any:
    monitor = object() if votes else None
    return SimpleNamespace(index=index, up=up, adopted_ns=adopted_ns, suspected=suspected, monitor=monitor)


@pytest.mark.parametrize(
    ("hold", "third", "at_risk"),
    [
        (Held(20), connected(2), 0),
        (Held(20), connected(2, up=False), 1),
        (Held(20), connected(2, suspected=True), 1),
        (Held(20), connected(2, votes=False), 1),
        (Held(20), connected(2, adopted_ns=21), 1),
        (Held(20, (20, 0b100)), connected(2), 1),
        # An earlier extension found that.
        (Held(20, (19, 0b100)), connected(2), 0),
        (Held(20, (20, 0b100), is_held=False), connected(2), 0),
    ],
)
def test_a_lock_is_at_risk_if_no_vote_can_be_spared(hold: Any, third: Any, at_risk: int) -> None:
    links = [connected(0), connected(1), third]
    assert count_at_risk([hold], links, 2, True, NOW) == at_risk
    # It may stand in two lists of the client.
    assert count_at_risk([hold, hold], links, 2, True, NOW) == at_risk


def test_no_lock_is_at_risk_among_two_masters_or_with_two_votes_to_spare() -> None:
    assert count_at_risk(held(Held(20, (20, 1))), [connected(0), connected(1)], 2, True, NOW) == 0
    five = [connected(index, up=index > 0) for index in range(5)]
    assert count_at_risk(held(Held(20)), five, 3, False, NOW) == 0
    assert count_at_risk(held(Held(20, (20, 0b10))), five, 3, False, NOW) == 1


def test_a_master_that_votes_again_says_for_how_long_locks_may_lack_its_vote() -> None:
    guarded: Any = SimpleNamespace(marker=SimpleNamespace(masters=(), horizon=1000, since=0), heals_ns=NOW + 3 * SECOND)
    voting = SimpleNamespace(up=True, cause=None, traits=SimpleNamespace(evicts=""), monitor=object())
    assert health_of(MASTER, voting, guarded, NOW).heals == 3.0  # type: ignore[arg-type]
    assert health_of(MASTER, voting, guarded, NOW + 9 * SECOND).heals == 0.0  # type: ignore[arg-type]
    assert health_of(MASTER, link(False), guarded, NOW).heals == 0.0
