"""The log of the masters, one message for each change; which lists of masters are refused, and with what words."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from redlatch.drivers.master_log import MOST_SHOWN, MasterLog, refuse_list, refuse_twin, report_set_back, twin_of
from redlatch.errors import MasterRefused
from redlatch.masters.listed import masters_of
from redlatch.wire.bridge.scriptless import TraitsWithoutScripts
from redlatch.wire.server_traits import Traits

MASTERS = masters_of(["redis://one:6379", "redis://two:6379", "redis://three:6379"])
REFUSED, LATE = ConnectionRefusedError("no"), TimeoutError("late")


@pytest.fixture
def log() -> MasterLog:
    return MasterLog(MASTERS, 2, True)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """Return the warnings since the last call."""
    caplog.set_level(logging.WARNING, "redlatch")

    def read() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return read


def traits_of(run_id: str = "a", tracking: bool = True, **info: str) -> Traits:
    return Traits({"run_id": run_id, "role": "master", **info}, 3, tracking)


def test_a_master_is_reported_once_and_again_when_the_kind_of_cause_changes(log: MasterLog, told: Any) -> None:
    for cause in (REFUSED, ConnectionRefusedError("another text"), LATE, REFUSED):
        log.report_unusable(1, cause, 1, False)
    reported = told()
    assert len(reported) == 3
    assert reported[0] == "master two:6379 cannot be used: no; 1 of 3 are connected, 2 must agree"
    # Each master counts for itself.
    log.report_unusable(2, REFUSED, 1, True)
    assert told() == ["master three:6379 cannot be used: no; 1 of 3 are connected so far, 2 must agree"]


def test_only_a_master_that_was_reported_comes_back_and_may_then_be_reported_again(log: MasterLog, told: Any) -> None:
    log.report_back(0, 3)
    assert told() == []
    log.report_unusable(0, REFUSED, 2, False)
    told()
    log.report_back(0, 3)
    log.report_back(0, 3)
    assert told() == ["master one:6379 is back: 3 of 3 are connected, 2 must agree"]
    log.report_unusable(0, REFUSED, 2, False)
    assert len(told()) == 1


def test_a_long_cause_is_cut_and_made_printable(log: MasterLog, told: Any) -> None:
    log.report_unusable(0, ValueError("a\r\nb" + "x" * 2 * MOST_SHOWN), 0, False)
    [message] = told()
    assert "a\\r\\nb" in message
    assert MOST_SHOWN < len(message) < MOST_SHOWN + 200


@pytest.mark.parametrize(
    ("before", "guarded", "reported"),
    [(None, False, False), ("a", False, False), ("b", False, True), ("b", True, False)],
)
def test_a_server_that_was_started_again_is_reported_unless_a_guard_decides_about_it(
    log: MasterLog, told: Any, before: str | None, guarded: bool, reported: bool
) -> None:
    log.report_server(0, traits_of(), before and traits_of(before), guarded)
    assert ["another server process" in message for message in told()] == [True] * reported


def test_one_master_that_does_not_push_is_reported_for_all(log: MasterLog, told: Any) -> None:
    for index in (0, 1):
        log.report_server(index, traits_of(tracking=False), None, True)
    [message] = told()
    assert message.startswith("master one:6379 does not say when a key changes")
    MasterLog(MASTERS, 2, False).report_server(0, traits_of(tracking=False), None, True)
    assert told() == []


def test_each_master_without_scripts_is_reported_once(log: MasterLog, caplog: pytest.LogCaptureFixture) -> None:
    without = TraitsWithoutScripts({"run_id": "a", "role": "master"}, 3, True)
    with caplog.at_level("INFO", logger="redlatch"):
        for index in (0, 1, 0):
            log.report_server(index, without, None, True)
        log.report_server(2, traits_of(), None, True)
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":6379")[0] for text in told] == ["master one", "master two"]
    assert "WATCH" in told[0]


def test_each_master_that_may_evict_keys_is_reported_once(log: MasterLog, told: Any) -> None:
    evicting = traits_of(maxmemory_policy="allkeys-lru", maxmemory="1000000")
    for index in (0, 0, 1):
        log.report_server(index, evicting, evicting, True)
    assert ["allkeys-lru" in message and "noeviction is needed" in message for message in told()] == [True, True]


def test_a_clock_that_was_set_back_is_reported_in_seconds(told: Any) -> None:
    report_set_back(MASTERS, 2, 1_500_000_000)
    assert told() == ["the clock of master three:6379 was set back by 1.500 s: its keys stay longer"]


@pytest.mark.parametrize(
    ("known", "twin"), [({}, None), ({0: "a"}, 0), ({0: "b", 2: "a"}, 2), ({1: "a"}, None), ({0: "b"}, None)]
)
def test_two_masters_with_one_run_id_are_one_server(known: dict[int, str], twin: int | None) -> None:
    assert twin_of(1, "a", known, MASTERS) == twin


def test_two_databases_of_one_server_are_two_masters_where_that_is_wanted() -> None:
    masters = masters_of(["redis://one/1", "redis://one/2", "redis://two/2"], by_db=True)
    assert twin_of(0, "a", {1: "a"}, masters) is None
    assert twin_of(1, "a", {2: "a"}, masters) == 2


def test_a_twin_is_named() -> None:
    assert str(refuse_twin(1, 0, MASTERS)).startswith("two:6379 is the same server as masters[0] (one:6379)")


def test_the_error_of_a_list_names_the_master_once() -> None:
    assert str(refuse_list(1, MasterRefused("two:6379 is a replica"), MASTERS)) == "masters[1]: two:6379 is a replica"
    assert str(refuse_list(1, MasterRefused("no"), MASTERS)) == "masters[1] (two:6379): no"


class Named:
    """A master that is no element of a list."""

    address, listed_as = "postgresql://db/shop", "database"


def test_a_master_that_is_no_element_of_a_list_is_named_as_it_wishes() -> None:
    masters: list[Any] = [Named()]
    assert str(refuse_list(0, MasterRefused("no"), masters)) == "database (postgresql://db/shop): no"
    refused = MasterRefused("postgresql://db/shop has no table")
    assert str(refuse_list(0, refused, masters)) == "database: postgresql://db/shop has no table"
