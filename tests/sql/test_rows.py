"""The statements of locks in a table, on each database, with the rows that they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from redlatch.sql.connection import OwnConnection, connect
from redlatch.sql.database import Database
from redlatch.sql.rows import MySQLRows, Rows
from redlatch.sql.table import layout_of, lock_table

TABLE = lock_table()


@pytest.fixture
def connection(each_database: str) -> Iterator[OwnConnection]:
    connection = connect(Database(each_database).engine)
    yield connection
    connection.close()


@pytest.fixture
def rows(each_database: str, connection: OwnConnection) -> Rows:
    kind = MySQLRows if each_database.startswith("mysql") else Rows
    channel = "redlatch" if each_database.startswith("postgresql") else None
    return kind(connection, layout_of(TABLE, "me"), channel)


@pytest.fixture
def key(name: str) -> bytes:
    return name.encode()


@pytest.fixture
def row(connection: OwnConnection, key: bytes) -> Callable[[], Any]:
    """Read the row of the key."""
    question = sa.select(TABLE).where(TABLE.c.name == key)
    return lambda: connection.run(lambda raw: raw.execute(question).one())


def test_a_row_is_taken_once(rows: Rows, key: bytes, row: Callable[[], Any]) -> None:
    assert rows.acquire(key, b"t", 60_000)
    assert not rows.acquire(key, b"u", 60_000)
    taken = row()
    assert (bytes(taken.token), taken.owner, taken.fence) == (b"t", "me", 0)
    assert 59_000_000 < taken.until_us - taken.since_us <= 60_100_000


def test_a_released_row_stays_and_is_taken_again(rows: Rows, key: bytes, row: Callable[[], Any]) -> None:
    assert rows.acquire(key, b"t", 60_000)
    assert not rows.release(key, b"u")
    assert rows.release(key, b"t")
    assert row().until_us == 0
    assert not rows.release(key, b"t")
    assert rows.acquire(key, b"u", 60_000)


def test_an_expired_row_belongs_to_nobody(rows: Rows, key: bytes) -> None:
    assert rows.acquire(key, b"t", 1)
    while rows.left_ms(key) is not None:
        pass
    assert not rows.owned(key, b"t") and not rows.extend(key, b"t", 1000) and not rows.release(key, b"t")
    assert rows.acquire(key, b"u", 60_000)


def test_a_holder_extends_but_never_shortens(rows: Rows, key: bytes, row: Callable[[], Any]) -> None:
    assert rows.acquire(key, b"t", 10_000)
    assert not rows.extend(key, b"u", 60_000)
    assert rows.extend(key, b"t", 60_000)
    until = row().until_us
    assert rows.extend(key, b"t", 1000)
    assert row().until_us == until
    assert 59_000 < (rows.left_ms(key) or 0) <= 60_000


def test_a_fence_is_the_proposed_one_or_above_the_highest(rows: Rows, key: bytes, row: Callable[[], Any]) -> None:
    assert rows.acquire_fenced(key, b"t", 60_000, 100, 104) == 100
    assert row().fence == 104
    assert rows.acquire_fenced(key, b"u", 60_000, 200, 204) == 0
    assert rows.release(key, b"t")
    # A client whose clock is behind proposes too little, and is told the highest fence that it may use.
    told = -rows.acquire_fenced(key, b"u", 60_000, 50, 54)
    assert told == row().fence > 104
    assert rows.confirm(key, b"u", told + 1, told + 5)
    assert not rows.confirm(key, b"u", told + 5, told + 9)
    assert not rows.confirm(key, b"t", told + 50, told + 60)
    assert row().fence == told + 5


def test_a_row_without_a_lock_is_free(rows: Rows, key: bytes) -> None:
    assert rows.left_ms(key) is None
    assert not rows.owned(key, b"t") and not rows.release(key, b"t")
    rows.tick()


def test_mysql_knows_a_row_that_somebody_else_has_made(with_table: Any, key: bytes) -> None:
    connections = [connect(Database(with_table("mysql+pymysql")).engine) for _ in range(2)]
    one, other = [MySQLRows(connection, layout_of(TABLE, "")) for connection in connections]
    assert one.acquire(key, b"t", 60_000)
    assert not other.acquire(key, b"u", 60_000)
    assert one.release(key, b"t")
    assert other.acquire(key, b"u", 60_000)
    for connection in connections:
        connection.close()


def test_a_row_that_somebody_has_deleted_is_made_again(rows: Rows, connection: OwnConnection, key: bytes) -> None:
    """Else a cleaner of old rows, or TRUNCATE between two tests, would block its names until the client is closed."""
    for token in (b"t", b"u"):
        assert rows.acquire(key, token, 60_000)
        connection.run(lambda raw: raw.execute(sa.delete(TABLE).where(TABLE.c.name == key)))
    assert rows.acquire_fenced(key, b"v", 60_000, 100, 104) == 100
