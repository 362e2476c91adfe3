"""Releases that are done later, because their row was locked."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from redlatch.sql import late
from redlatch.sql.late import LATE_PAUSE, LATE_SHARE, LateReleases
from redlatch.votes.units import SECOND

LATER = 1000 * SECOND


def busy() -> OperationalError:
    return OperationalError("a statement", {}, sqlite3.OperationalError(1205, "Lock wait timeout exceeded"))


class Rows:
    """Rows of which some are locked; each try takes a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.takes_ns = SECOND, 0
        self.locked: set[bytes] = set()
        self.tried: list[bytes] = []
        self.failure: Exception | None = None
        monkeypatch.setattr(late, "now_ns", lambda: self.now_ns)

    def release(self, key: bytes, token: bytes) -> bool:
        self.tried.append(key)
        self.now_ns += self.takes_ns
        if self.failure is not None:
            raise self.failure
        if key in self.locked:
            raise busy()
        return token == b"t"

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows(monkeypatch)


@pytest.fixture
def releases(rows: Rows) -> LateReleases:
    releases = LateReleases(rows.release)
    releases.add(b"k", b"t", LATER)
    return releases


def test_a_release_that_is_due_is_done_once(rows: Rows, releases: LateReleases) -> None:
    assert releases
    rows.pass_time(LATE_PAUSE)
    releases.retry()
    assert not releases
    rows.pass_time(LATE_PAUSE)
    releases.retry()
    assert rows.tried == [b"k"]
    assert releases.forget(b"k", b"t")
    assert not releases.forget(b"k", b"t")


def test_commands_that_come_meanwhile_do_not_make_it_try_more_often(rows: Rows, releases: LateReleases) -> None:
    rows.locked.add(b"k")
    for _ in range(10):
        releases.retry()
    assert rows.tried == []
    rows.pass_time(LATE_PAUSE)
    for _ in range(10):
        releases.retry()
    assert rows.tried == [b"k"]


def test_a_server_that_waits_long_for_a_row_is_asked_less_often(rows: Rows, releases: LateReleases) -> None:
    """Each command waits for a try, and other locks must be renewed."""
    rows.locked.add(b"k")
    rows.takes_ns = SECOND
    for _ in range(100):
        rows.pass_time(LATE_PAUSE)
        releases.retry()
    assert len(rows.tried) <= 1 + 100 * LATE_PAUSE / LATE_SHARE


def test_a_row_that_stays_locked_lets_the_others_pass(rows: Rows, releases: LateReleases) -> None:
    releases.add(b"m", b"t", LATER)
    rows.locked.add(b"k")
    for _ in range(2):
        rows.pass_time(LATE_PAUSE)
        releases.retry()
    assert releases.forget(b"m", b"t")
    assert releases


def test_a_row_of_somebody_else_is_not_released(rows: Rows) -> None:
    releases = LateReleases(rows.release)
    releases.add(b"k", b"other", LATER)
    rows.pass_time(LATE_PAUSE)
    releases.retry()
    assert not releases and not releases.forget(b"k", b"other")


def test_a_row_that_has_expired_is_left_alone(rows: Rows, releases: LateReleases) -> None:
    rows.now_ns = LATER
    releases.retry()
    assert not releases and rows.tried == []


def test_the_end_tries_at_once(rows: Rows, releases: LateReleases) -> None:
    releases.retry_at_once()
    assert rows.tried == [b"k"]


def test_another_failure_is_raised(rows: Rows, releases: LateReleases) -> None:
    rows.failure = OperationalError("a statement", {}, sqlite3.OperationalError("gone"))
    rows.pass_time(LATE_PAUSE)
    with pytest.raises(OperationalError):
        releases.retry()
    assert not releases
