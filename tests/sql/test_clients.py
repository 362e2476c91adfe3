"""What both clients of a database share, and the table that they make."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable
from support.faces import PATIENCE, at_once

from redlatch import ConfigurationError, QuorumUnavailable, sql
from redlatch.sql.clients import OnDatabase
from redlatch.sql.shedlock import shedlock_table
from redlatch.sql.table import lock_table

from .conftest import ONE_EACH, FindUrl, SqlFace, execute


@pytest.mark.parametrize(
    ("url", "given", "chosen"),
    [
        ("postgresql+psycopg://h/x", "auto", "auto"),
        ("postgresql+psycopg://h/x", "poll", "poll"),
        ("mysql+pymysql://h/x", "auto", "poll"),
        ("sqlite:///x.db", "auto", "poll"),
    ],
)
def test_only_postgresql_tells_of_releases(url: str, given: str, chosen: str) -> None:
    assert sql.Client(url)._wakeups(given) == chosen  # type: ignore[arg-type]


def test_an_unknown_way_to_wake_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="wakeups"):
        sql.Client("sqlite:///x.db", wakeups="never")  # type: ignore[arg-type]


def test_fences_need_a_table_of_ours() -> None:
    choices: list[dict[str, Any]] = [{"mode": "session"}, {"dialect": "shedlock"}]
    for options in choices:
        with pytest.raises(ConfigurationError, match="fence"):
            sql.Client("postgresql+psycopg://h/x", **options).lock("a", fence=True)


def test_a_fair_lock_is_refused_in_every_way() -> None:
    client = sql.Client("sqlite:///x.db")
    makes: list[Callable[[], object]] = [
        lambda: client.fair_lock("a"),
        lambda: client.lock("a", fair=True),
        lambda: client.semaphore("a", 2),
        lambda: client.rw_lock("a"),
        lambda: client.latch("a", 2),
        lambda: client.lock("a").condition(),
    ]
    for make in makes:
        with pytest.raises(ConfigurationError, match="need a server of Redis or Valkey"):
            make()


def test_both_clients_stand_on_it() -> None:
    assert issubclass(sql.Client, OnDatabase) and issubclass(sql.AsyncClient, OnDatabase)


class SlowToClose(sqlite3.Connection):
    """A connection that takes a moment to close."""

    still_open = 0

    def close(self) -> None:
        SlowToClose.still_open += 1
        time.sleep(0.2)
        super().close()
        SlowToClose.still_open -= 1


def test_when_close_returns_the_connection_is_closed(connect: SqlFace, with_table: FindUrl, name: str) -> None:
    """The advice before a fork is to close the client."""
    url = with_table("sqlite")
    client = connect(sa.create_engine(url, connect_args={"factory": SlowToClose}))
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    assert client.raw._dial.is_open()
    client.close()
    assert (client.raw._dial.is_open(), SlowToClose.still_open) == (False, 0)


def test_close_does_not_wait_longer_than_its_timeout(connect: SqlFace, with_table: FindUrl, name: str) -> None:
    client = connect(with_table("sqlite"))
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    # As while a database does not answer a client that connects.
    with client.raw._dial._opening:
        client.close(timeout=0.05)
        assert client.raw._dial.is_open()


DOCUMENT = Path(__file__).parents[2] / "docs/databases.md"
KINDS: dict[str, Any] = {
    "PostgreSQL": postgresql.dialect,
    "MySQL and MariaDB": mysql.dialect,
    "SQLite": sqlite.dialect,
}
DIALECTS = {name: dialect() for name, dialect in KINDS.items()}


def plain(ddl: object) -> str:
    return " ".join(str(ddl).split()).rstrip("; ")


@pytest.mark.parametrize("name", list(DIALECTS))
def test_the_documentation_has_the_ddl_of_the_table(name: str) -> None:
    text = DOCUMENT.read_text().partition(f"\n#### {name}\n")[2]
    block = re.search(r"```sql\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert plain(block[1]) == plain(CreateTable(lock_table()).compile(dialect=DIALECTS[name]))


@pytest.mark.parametrize("driver", ONE_EACH)
def test_the_documented_ddl_makes_a_table_that_works(threads: SqlFace, url_of: FindUrl, driver: str, name: str) -> None:
    url = url_of(driver)
    heading = {"postgresql": "PostgreSQL", "mysql": "MySQL and MariaDB", "sqlite": "SQLite"}[driver.partition("+")[0]]
    text = DOCUMENT.read_text().partition(f"\n#### {heading}\n")[2]
    block = re.search(r"```sql\n(.*?)```", text, re.DOTALL)
    assert block is not None
    execute(url, "DROP TABLE IF EXISTS documented", block[1].replace("redlatch_lock", "documented"))
    assert threads(url, table="documented").lock(name).acquire(timeout=PATIENCE)


def test_the_alembic_snippet_makes_and_drops_the_table(url_of: FindUrl) -> None:
    text = DOCUMENT.read_text().partition("\n### With Alembic\n")[2]
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    for driver in ONE_EACH:
        url = url_of(driver)
        execute(url, "DROP TABLE IF EXISTS redlatch_lock")
        engine = sa.create_engine(url)
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            migration: dict[str, object] = {}
            exec(block[1], migration)
            migration["upgrade"]()  # type: ignore[operator]
            assert sa.inspect(connection).has_table("redlatch_lock")
            migration["downgrade"]()  # type: ignore[operator]
            assert not sa.inspect(connection).has_table("redlatch_lock")
        engine.dispose()


@pytest.mark.parametrize("driver", ONE_EACH)
def test_several_may_make_the_table_at_once(url_of: FindUrl, driver: str) -> None:
    url = url_of(driver)
    execute(url, "DROP TABLE IF EXISTS redlatch_lock")
    clients = [sql.Client(url) for _ in range(4)]
    at_once([client.create_table for client in clients])
    assert execute(url, "SELECT count(*) FROM redlatch_lock")[0][0] == 0


@pytest.mark.parametrize("options", [{"mode": "session"}, {"dialect": "shedlock"}])
def test_there_may_be_no_table_of_ours(url_of: FindUrl, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="create_table"):
        sql.Client(url_of("postgresql+psycopg"), **options).create_table()


def test_a_database_that_cannot_be_reached_says_so() -> None:
    with pytest.raises(QuorumUnavailable, match=r"table redlatch_lock cannot be made in postgresql://127.0.0.1:1/x"):
        sql.Client("postgresql+psycopg://me@127.0.0.1:1/x").create_table()


def test_shedlocks_table_is_made_from_what_it_documents(url_of: FindUrl) -> None:
    for driver in ("postgresql+psycopg", "mysql+pymysql"):
        engine = sa.create_engine(url_of(driver))
        table = shedlock_table("shedlock_made")
        table.create(engine)
        table.drop(engine)
        engine.dispose()
