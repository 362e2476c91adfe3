"""What is known of one master: before it is tried, while it is down, and while it is kept out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redlatch.drivers.master_health import health_of
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
