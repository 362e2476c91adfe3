"""Real databases with a table of locks, through each driver, and clients of both faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.builds import implementation_named
from support.databases import Server
from support.faces import Face, Faced
from support.selection import ALL

from redlatch import impl, sql

# Each driver, with the server that it needs.
DRIVERS = {
    "postgresql+psycopg": "postgresql",
    "postgresql+asyncpg": "postgresql",
    "mysql+pymysql": "mariadb",
    "mysql+asyncmy": "mariadb",
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
}
ONE_EACH = ["postgresql+psycopg", "mysql+pymysql", "sqlite"]
SERVERS = [name for name in (DRIVERS if ALL else ONE_EACH) if not name.startswith("sqlite")]

# Each face with one implementation: what is below the bridge does not depend on it.
FACES = {"threads": "c", "asyncio": "python", "uvloop": "c"}

FindUrl = Callable[[str], str]


class SqlFace(Face):
    """Makes clients of databases, of one face. All are called the same way and closed after the test."""

    def __call__(self, masters: Any, **options: Any) -> Faced:
        kind: Any = sql.Client if self._loop is None else sql.AsyncClient
        client = Faced(kind(masters, **options), self._start)
        self._clients.append(client)
        return client


@pytest.fixture
def url_of(databases: Callable[[str], Server], tmp_path: Path) -> FindUrl:
    """Return the URL of a database through a driver, without a table."""

    def find(driver: str) -> str:
        if DRIVERS.get(driver) == "sqlite":
            return f"{driver}:///{tmp_path / 'locks.db'}"
        kind = "postgresql" if driver.startswith("postgresql") else "mariadb"
        return databases(kind).url(driver.partition("+")[2])

    return find


@pytest.fixture
def with_table(url_of: FindUrl) -> FindUrl:
    """Return the URL of a database through a driver, with a table of locks."""

    def find(driver: str) -> str:
        url = url_of(driver)
        sql.Client(url).create_table()
        return url

    return find


@pytest.fixture(params=list(DRIVERS) if ALL else ONE_EACH)
def database(request: pytest.FixtureRequest, with_table: FindUrl) -> str:
    """Return the URL of a database with a table of locks, through each driver in turn."""
    return with_table(request.param)


@pytest.fixture(params=ONE_EACH)
def each_database(request: pytest.FixtureRequest, with_table: FindUrl) -> str:
    """Return the URL of each database in turn, through one driver each."""
    return with_table(request.param)


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlFace]:
    """Make clients of each face in turn."""
    monkeypatch.setattr(impl, "current", implementation_named(FACES[request.param]))
    face = SqlFace(request.param)
    yield face
    face.close()


@pytest.fixture
def threads() -> Iterator[SqlFace]:
    """Make clients for threads, where the face makes no difference."""
    face = SqlFace("threads")
    yield face
    face.close()


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements on a connection of their own; return the rows of the last one. The driver must be for threads."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement))
        rows = list(result.fetchall()) if result.returns_rows else []
    engine.dispose()
    return rows
