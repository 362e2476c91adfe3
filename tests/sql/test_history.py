"""What a client remembers of its database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from support.databases import Server

from redlatch.sql import history
from redlatch.sql.database import Database
from redlatch.sql.history import History, Life, clock_us, life_of

ONE = Life("one", 100.0)


@pytest.fixture
def of_table() -> History:
    return History("db", by_session=False)


def test_nothing_is_doubted_at_the_first_connection(of_table: History) -> None:
    assert of_table.doubt_about(ONE) == ""


@pytest.mark.parametrize(
    ("life", "doubt"),
    [(Life("one", 100.9), ""), (Life("two", 100.0), "another server"), (Life("one", 102.0), "restarted")],
)
def test_another_life_of_the_server_is_doubted(of_table: History, life: Life, doubt: str) -> None:
    of_table.note(ONE)
    assert doubt in of_table.doubt_about(life)
    assert bool(doubt) is bool(of_table.doubt_about(life))
    of_table.note(life)
    assert of_table.doubt_about(life) == ""


def test_a_session_is_doubted_at_every_new_connection() -> None:
    of_session = History("db", by_session=True)
    of_session.note(ONE)
    assert "session" in of_session.doubt_about(ONE)


def test_nothing_is_doubted_twice(of_table: History) -> None:
    of_table.note(ONE)
    of_table.forget()
    assert of_table.doubt_about(Life("two", 0.0)) == ""


def test_a_leap_of_the_clock_is_doubted_until_it_is_noted(
    of_table: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, engine = [1_000_000_000_000_000], sa.create_engine("sqlite://")
    monkeypatch.setattr(history, "clock_us", lambda raw: clock[0])
    with engine.connect() as raw:
        of_table.note(ONE)
        assert of_table.is_due()
        assert of_table.read_clock(raw) == ""
        assert not of_table.is_due()
        clock[0] += 5_000_000
        assert "set forward by 4.9" in of_table.read_clock(raw) or "set forward by 5.0" in of_table.read_clock(raw)
        assert "set forward" in of_table.doubt_about(ONE)
        of_table.note(ONE)
        assert of_table.doubt_about(ONE) == ""
        clock[0] -= 5_000_000
        assert of_table.read_clock(raw) == ""
    engine.dispose()
    assert "was set back by" in caplog.text


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
def test_a_server_keeps_its_life(databases: Callable[[str], Server], kind: str, driver: str) -> None:
    database = Database(databases(kind).url(driver))
    lives = []
    for _ in range(2):
        with database.engine.connect() as raw:  # type: ignore[union-attr]
            lives.append(life_of(raw, database))
    assert lives[0].identity == lives[1].identity != database.address
    assert abs(lives[0].started - lives[1].started) < history.SAME_START
    assert lives[0].started > 1e9


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
def test_the_clock_is_that_of_the_world_in_any_time_zone(
    databases: Callable[[str], Server], kind: str, driver: str
) -> None:
    import time

    engine = Database(databases(kind).url(driver)).engine
    zone = "SET TIME ZONE 'Asia/Tokyo'" if kind == "postgresql" else "SET time_zone = '+09:00'"
    with engine.connect() as raw:  # type: ignore[union-attr]
        raw.execute(sa.text(zone))
        assert abs(clock_us(raw) / 1e6 - time.time()) < 5
