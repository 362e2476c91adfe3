"""`redlatch.fence`: the numbers in a table refuse the writes of a former holder, on real databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from support.databases import Server
from support.django_databases import add_database, prepare, remove_database
from support.faces import PATIENCE, await_true, in_thread
from support.transactions import DATABASES, Site, entered, resolve

from redlatch import Client, ConfigurationError, LockLost, fence
from redlatch.sqlalchemy import hold

prepare()

from django.db import connections, transaction  # noqa: E402  (it must be configured first)

ALIAS = "fenced"
TABLE = fence.TABLE

# How each database shows that a transaction waits for a row.
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # Not innodb_trx: InnoDB renews its copy of that table only when nobody has read it for 0.1 s.
    "mariadb": "SELECT CAST(variable_value AS INTEGER) FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, databases: Callable[[str], Server], tmp_path: Path) -> Iterator[Site]:
    kind = request.param
    site = Site(kind, None if kind == "sqlite" else databases(kind), tmp_path)
    engine = create_engine(site.url("threads"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))
        connection.execute(text(fence.create_table_sql(engine.dialect.name)))
        connection.execute(text("DROP TABLE IF EXISTS counts"))
        connection.execute(text("CREATE TABLE counts (name VARCHAR(100) PRIMARY KEY, value INT)"))
    yield site
    engine.dispose()
    site.close()


@pytest.fixture
def engine(site: Site) -> Iterator[Any]:
    engine = create_engine(site.url("threads"), poolclass=NullPool)
    yield engine
    engine.dispose()


def highest(engine: Any, name: str) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text(f"SELECT fence FROM {TABLE} WHERE name = :name"), {"name": name})


Guard = Callable[[str | bytes, int | None], None]


@pytest.fixture(params=["Session", "Connection", "AsyncSession", "AsyncConnection", "Django"])
def guard(request: pytest.FixtureRequest, site: Site) -> Iterator[Guard]:
    """Return a function that guards one transaction, for each kind of session in turn."""
    kind = request.param
    if kind == "Django":
        add_database(ALIAS, site.url("threads"))

        def guard_django(name: str | bytes, number: int | None) -> None:
            with transaction.atomic(using=ALIAS):
                fence.guard(connections[ALIAS], TABLE, name, number)

        yield guard_django
        remove_database(ALIAS)
        return

    async def run(name: str | bytes, number: int | None) -> None:
        if kind.startswith("Async"):
            engine: Any = create_async_engine(site.url("asyncio"), poolclass=NullPool)
            session = AsyncSession(engine) if kind == "AsyncSession" else engine.connect()
        else:
            engine = create_engine(site.url("threads"), poolclass=NullPool)
            session = Session(engine) if kind == "Session" else engine.connect()
        try:
            async with entered(session) as begun, entered(begun.begin()):
                await resolve(fence.guard(begun, TABLE, name, number))
        finally:
            await resolve(engine.dispose())

    yield lambda name, number: asyncio.run(run(name, number))


def test_numbers_only_go_up(guard: Guard, engine: Any, name: str) -> None:
    for number in (5, 5, 7, 1_800_000_000_000_000):
        guard(name, number)
        assert highest(engine, name) == number
    for number in (7, 1, 1_799_999_999_999_999):
        with pytest.raises(LockLost, match="a later holder, with the number 1800000000000000, was here") as caught:
            guard(name, number)
        assert caught.value.name == name
        assert "the transaction must roll back" in str(caught.value)
    assert highest(engine, name) == 1_800_000_000_000_000
    # Every name has its own number.
    guard(f"{name}-2", 1)
    assert highest(engine, f"{name}-2") == 1


def test_names_are_compared_byte_by_byte(guard: Guard, engine: Any) -> None:
    guard("Straße", 9)
    for other in ("straße", "Strasse", "Straße ", "STRASSE", " Straße"):
        guard(other, 1)
        assert highest(engine, other) == 1
    guard("Straße".encode(), 10)
    assert highest(engine, "Straße") == 10


def test_a_refused_holder_writes_nothing(site: Site, engine: Any, url: str, name: str) -> None:
    """Holder A is paused for longer than its lock lives. Meanwhile B works. Then A goes on."""
    with Client(url) as one, Client(url) as two:
        first = one.lock(name, ttl=0.2, fence=True)
        assert first.acquire()
        stale = first.fence
        assert stale is not None
        with Session(engine) as session, session.begin():
            later = hold(session, two.lock(name, fence=True, timeout=PATIENCE))
            fence.guard(session, TABLE, name, later.fence)
            session.execute(text("INSERT INTO counts VALUES (:name, 1)"), {"name": name})
        with pytest.raises(LockLost, match="a later holder"), Session(engine) as session, session.begin():
            fence.guard(session, TABLE, name, stale)
            session.execute(text("UPDATE counts SET value = 99"))
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT value FROM counts")) == 1


def test_a_later_holder_reads_after_an_earlier_transaction_has_ended(site: Site, engine: Any, name: str) -> None:
    """The lock of A has run out while its transaction goes on. The row makes B wait, and B reads what A wrote."""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO counts VALUES (:name, 0)"), {"name": name})
        fence.guard(connection, TABLE, name, 1)
    begun = threading.Event()

    def count(number: int) -> int:
        with Session(engine) as session, session.begin():
            begun.set()
            fence.guard(session, TABLE, name, number)
            value = session.scalar(text("SELECT value FROM counts")) or 0
            session.execute(text("UPDATE counts SET value = :value"), {"value": value + 1})
            return int(value)

    with Session(engine) as session, session.begin():
        fence.guard(session, TABLE, name, 2)
        assert session.scalar(text("SELECT value FROM counts")) == 0
        later = in_thread(count, 3)
        if site.kind == "sqlite":
            assert begun.wait(PATIENCE)
        else:
            await_true(lambda: _waiting(engine, site.kind))
        session.execute(text("UPDATE counts SET value = 1"))
        assert not later.done()
    assert later.result(PATIENCE) == 1
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT value FROM counts")) == 2


def _waiting(engine: Any, kind: str) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text(WAITING[kind])))


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_holders_of_new_names_do_not_meet_in_a_deadlock(site: Site, name: str, level: str) -> None:
    """An UPDATE before the INSERT would lock the same gap of the index twice."""
    if site.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    engine = create_engine(site.url("threads"), isolation_level=level, poolclass=NullPool)
    barrier = threading.Barrier(2)

    def first_use(number: int) -> None:
        with Session(engine) as session, session.begin():
            fence.guard(session, TABLE, f"{name}-{number}", 1)
            barrier.wait(PATIENCE)
            fence.guard(session, TABLE, f"{name}-{number}-again", 1)

    for future in [in_thread(first_use, number) for number in range(2)]:
        future.result(PATIENCE)
    engine.dispose()


def test_a_table_in_a_schema_is_found(engine: Any, name: str) -> None:
    schema = {"postgresql": "public", "mysql": "locks", "sqlite": "main"}[engine.dialect.name]
    with engine.begin() as connection:
        fence.guard(connection, f"{schema}.{TABLE}", name, 3)
    assert highest(engine, name) == 3


def test_what_cannot_work_is_refused(engine: Any, site: Site, name: str) -> None:
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (TABLE, name, None, ConfigurationError, "make the lock with fence=True"),
        (TABLE, name, True, TypeError, "a whole number"),
        (TABLE, name, "7", TypeError, "a whole number"),
        (TABLE, 7, 7, TypeError, "str or bytes"),
        (TABLE, b"\xff", 7, ConfigurationError, "must be UTF-8"),
        (f"{TABLE}; DROP TABLE counts", name, 7, ConfigurationError, "letters, digits"),
        (None, name, 7, TypeError, "a name as str"),
    ]
    with engine.begin() as connection:
        for table, given, number, error, text_of_error in cases:
            with pytest.raises(error, match=text_of_error):
                fence.guard(connection, table, given, number)
    wrong: Any
    for wrong in (None, engine):
        with pytest.raises(TypeError, match="a session or connection of SQLAlchemy, or a connection of Django"):
            fence.guard(wrong, TABLE, name, 7)
    with pytest.raises(ConfigurationError, match="not for 'oracle'"):
        fence.create_table_sql("oracle")
    with pytest.raises(ConfigurationError, match="letters, digits"):
        fence.create_table_sql("sqlite", "a b")
    add_database(ALIAS, site.url("threads"))
    with pytest.raises(ConfigurationError, match="call it in an atomic block"):
        fence.guard(connections[ALIAS], TABLE, name, 7)
    remove_database(ALIAS)
    assert highest(engine, name) is None


def test_the_statement_quotes_the_names_that_guard_quotes() -> None:
    assert fence.create_table_sql("postgresql", "shop.Fences").startswith('CREATE TABLE shop."Fences" (')
    assert fence.create_table_sql("mysql", "Fences").startswith("CREATE TABLE `Fences` (")
