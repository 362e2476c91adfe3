"""What is known of one master: before it is tried, while it is down, and while it is kept out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redlatch.drivers.master_health import count_at_risk, health_of
from redlatch.errors import MasterQuarantined
from redlatch.masters.listed import masters_of
from redlatch.votes.units import SECOND

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
