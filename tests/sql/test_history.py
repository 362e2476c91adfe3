"""What a client remembers of its database."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import Server, server_of

from redlatch.sql import history
from redlatch.sql.database import Database
from redlatch.sql.files import REPLACED, DatabaseFile
from redlatch.sql.history import SAME_START, History, Life, clock_us, life_of, life_of_file

ONE = Life("one", 100.0)


@pytest.fixture
def of_table() -> History:
    return History("db", by_session=False)


def test_nothing_is_doubted_at_the_first_connection(of_table: History) -> None:
    assert of_table.doubt_about(ONE) == ""


@pytest.mark.parametrize(
    ("life", "doubt"),
    [
        (Life("one", 100.0), ""),
        (Life("two", 100.0), "another server"),
        (Life("one", 100.000001), "restarted"),
    ],
)
def test_another_life_of_the_server_is_doubted(of_table: History, life: Life, doubt: str) -> None:
    of_table.note(ONE)
    assert doubt in of_table.doubt_about(life)
    assert bool(doubt) is bool(of_table.doubt_about(life))
    of_table.note(life)
    assert of_table.doubt_about(life) == ""


@pytest.mark.parametrize(
    ("started", "connections", "doubt"),
    [(100.9, 8, ""), (100.9, 7, ""), (102.0, 8, "restarted"), (100.9, 6, "restarted")],
)
def test_a_start_that_was_computed_counts_with_the_connections_since(
    of_table: History, started: float, connections: int, doubt: str
) -> None:
    """MySQL reports its uptime in whole seconds, but counts connections from 1 after each start."""
    of_table.note(Life("one", 100.0, SAME_START, 7))
    found = of_table.doubt_about(Life("one", started, SAME_START, connections))
    assert doubt in found and bool(doubt) is bool(found)


def test_another_file_of_sqlite_is_doubted_in_its_own_words(of_table: History) -> None:
    file = DatabaseFile("/x/locks.db", 1, 2, 3)
    of_table.note(life_of_file(file))
    assert of_table.doubt_about(life_of_file(file)) == ""
    for other in (file._replace(inode=4), file._replace(born_ns=5), file._replace(device=6)):
        assert of_table.doubt_about(life_of_file(other)) == REPLACED


def test_a_file_without_a_time_of_birth_is_doubted_at_every_new_connection(of_table: History) -> None:
    file = DatabaseFile("/x/locks.db", 1, 2, 0)
    of_table.note(life_of_file(file))
    assert of_table.doubt_about(life_of_file(file)) == REPLACED


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
    assert not lives[1].is_another_start(lives[0])
    assert lives[0].started > 1e9
    # PostgreSQL knows its start exactly.
    assert kind == "mariadb" or (lives[0].started == lives[1].started and not lives[0].spread)


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
def test_a_server_that_is_started_again_at_once_has_another_life(kind: str, driver: str) -> None:
    """Its data may be older ones, on the same port, within a second (row 75)."""
    with server_of(kind) as server:
        database = Database(server.url(driver))

        def life() -> Life:
            with database.engine.connect() as raw:  # type: ignore[union-attr]
                return life_of(raw, database)

        server.kill()
        server.start()
        for _ in range(5):
            former = life()
        server.kill()
        server.start()
        found = life()
    assert found.identity == former.identity and found.is_another_start(former)


def test_the_uuid_of_mysql_belongs_to_its_identity() -> None:
    class MySQL:
        dialect = SimpleNamespace(name="mysql")

        def execute(self, statement: Any) -> Any:
            rows: list[Any] = [("port", "3306"), ("server_uuid", self.uuid)] if "VARIABLES" in str(statement) else []
            return SimpleNamespace(fetchall=lambda: rows, scalar_one=lambda: 0)

        def __init__(self, uuid: str) -> None:
            self.uuid = uuid

    database = Database("mysql+pymysql://h/x")
    one, two = (life_of(MySQL(uuid), database) for uuid in ("one", "two"))  # type: ignore[arg-type]
    assert one.identity == "port=3306:server_uuid=one" and one.identity != two.identity


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
