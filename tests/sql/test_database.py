"""A database as the only master of a client."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from redlatch import ConfigurationError
from redlatch.sql.database import Database


def test_the_address_has_neither_user_nor_password_nor_options() -> None:
    database = Database("postgresql+psycopg://me:s3cr3t@host:5433/shop?sslmode=require")
    assert database.address == database.name == "postgresql://host:5433/shop"
    assert database.family == "postgresql" and database.listed_as == "database"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql+psycopg://u:pw@/shop?host=a&host=b&sslpassword=pw", "postgresql:///shop?host=a&host=b"),
        ("mysql+pymysql://u:pw@/shop?unix_socket=name&password=pw", "mysql:///shop?unix_socket=name"),
    ],
)
def test_the_address_has_hosts_and_sockets_that_are_options(url: str, address: str) -> None:
    assert Database(url).address == address


@pytest.mark.parametrize(
    ("url", "family", "asynchronous"),
    [
        ("mysql+pymysql://host/x", "mysql", False),
        ("mariadb+pymysql://host/x", "mysql", False),
        ("postgresql+asyncpg://host/x", "postgresql", True),
        ("mysql+asyncmy://host/x", "mysql", True),
        ("sqlite:///x.db", "sqlite", False),
        ("sqlite+aiosqlite:///x.db", "sqlite", True),
    ],
)
def test_the_driver_of_the_url_decides(url: str, family: str, asynchronous: bool) -> None:
    database = Database(url)
    assert database.family == family
    assert isinstance(database.engine, AsyncEngine) is asynchronous


@pytest.mark.parametrize("make", [sa.create_engine, create_async_engine])
def test_an_engine_lends_its_way_to_connect_but_not_its_pool(make: Any) -> None:
    driver = "sqlite" if make is sa.create_engine else "sqlite+aiosqlite"
    engine = make(f"{driver}:///x.db", pool_size=1)
    ours = Database(engine).engine
    pool = ours.sync_engine.pool if isinstance(ours, AsyncEngine) else ours.pool
    assert isinstance(pool, NullPool) and pool is not engine.pool


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("oracle://host/x", "driver is not installed|not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("no url", "a URL of SQLAlchemy is needed"),
        ("postgresql://host:s3cr3t/db", "a URL of SQLAlchemy is needed"),
        ("nothing://host", "a URL of SQLAlchemy is needed"),
        ("mysql+aiomysqlx://host", "a URL of SQLAlchemy is needed"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(given: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as error:
        Database(given)
    assert "s3cr" not in repr(error.value.__context__) or error.value.__suppress_context__


def test_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not int"):
        Database(7)


@pytest.mark.parametrize(
    ("url", "timeout"), [("postgresql+psycopg://h/x", 5), ("postgresql+psycopg://h/x?connect_timeout=9", 9)]
)
def test_a_driver_connects_for_five_seconds_unless_the_url_says_otherwise(url: str, timeout: int) -> None:
    seen: list[Any] = []
    engine: Any = Database(url).engine

    def note(dialect: Any, record: Any, arguments: Any, named: dict[str, Any]) -> None:
        seen.append(int(named["connect_timeout"]))
        raise InterruptedError

    sa.event.listen(engine, "do_connect", note)
    with pytest.raises(InterruptedError):
        engine.connect()
    assert seen == [timeout]
