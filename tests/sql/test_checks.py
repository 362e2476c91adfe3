"""The checks of a new connection, with answers that only a rare server gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from redlatch import MasterRefused
from redlatch.sql.checks import prepare, refuse_galera, refuse_shared, refuse_statement_pooling, why_shared
from redlatch.sql.connection import connect
from redlatch.sql.database import Database
from redlatch.sql.settings import Settings

from .conftest import FindUrl

SETTINGS = Settings.of("postgresql", None, "table", "redlatch", "")


def first_of(question: str, raw: sa.Connection) -> Any:
    return raw.execute(sa.text(question)).scalar()


class Played:
    """A connection of PostgreSQL that was told a number at the login, and answers what it is told, in turn."""

    def __init__(self, told: int | None, *answers: object) -> None:
        self.answers: Iterator[object] = iter(answers)
        self.connection = self.driver_connection = self
        self.dialect = SimpleNamespace(driver="pg8000")
        if told is not None:
            self.info = SimpleNamespace(backend_pid=told)

    def run(self, call: Callable[[Any], Any]) -> Any:
        return call(self)

    def execute(self, statement: object) -> Any:
        return self

    exec_driver_sql = execute

    def scalar_one(self) -> object:
        return next(self.answers)

    def one_or_none(self) -> object:
        return next(self.answers)


@pytest.mark.parametrize(
    ("told", "backends", "why"),
    [
        (7, [7, 7, 7], ""),
        (8, [7, 7, 7], "is behind a pooler"),
        (7, [7, 9, 7], "is behind a pooler"),
        (None, [], "is reached with a driver (pg8000) that does not tell its backend"),
    ],
)
def test_a_pooler_is_seen_by_the_backends(told: int | None, backends: list[int], why: str) -> None:
    assert why_shared(Played(told, *backends)) == why  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"])
def test_a_server_is_no_pooler(url_of: FindUrl, driver: str) -> None:
    database = Database(url_of(driver))
    connection = connect(database.engine)
    assert why_shared(connection) == ""
    refuse_statement_pooling(connection, database)
    connection.close()


def test_a_server_that_dies_at_the_begin_of_a_transaction_is_no_pooler_of_statements() -> None:
    class Dying(Played):
        def exec_driver_sql(self, statement: object) -> None:
            raise OperationalError(str(statement), {}, Exception("it has gone"), connection_invalidated=True)

    with pytest.raises(OperationalError, match="it has gone"):
        refuse_statement_pooling(Dying(8), Database("postgresql+psycopg://h/x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        (None, False),
        (("wsrep_cluster_size", "1"), False),
        (("wsrep_cluster_size", ""), False),
        (("wsrep_cluster_size", "3"), True),
    ],
)
def test_several_writers_are_refused_for_sessions(row: object, refused: bool) -> None:
    database = Database("mysql+pymysql://h/x")
    if refused:
        with pytest.raises(MasterRefused, match=r"several writers \(Galera\).*mode='table'"):
            refuse_galera(Played(None, row), database)  # type: ignore[arg-type]
    else:
        refuse_galera(Played(None, row), database)  # type: ignore[arg-type]


def test_a_shared_connection_is_refused_with_all_ways_out() -> None:
    with pytest.raises(MasterRefused, match=r"h/x is behind a pooler.*the server itself with psycopg.*mode='table'"):
        refuse_shared(Database("postgresql+psycopg://h/x"), "is behind a pooler")


def test_a_connection_waits_for_a_locked_row_only_for_a_moment(url_of: FindUrl) -> None:
    for driver, question, answer in (
        ("postgresql+psycopg", "SHOW lock_timeout", "50ms"),
        ("mysql+pymysql", "SELECT @@innodb_lock_wait_timeout", 0),
        ("sqlite", "PRAGMA busy_timeout", 50),
    ):
        connection = connect(Database(url_of(driver)).engine)
        family = driver.partition("+")[0]
        connection.run(partial(prepare, family=family, settings=SETTINGS, pooled=False))
        asked = connection.run(partial(first_of, question))
        assert asked == answer
        connection.close()


def test_nothing_is_set_behind_a_pooler(url_of: FindUrl) -> None:
    connection = connect(Database(url_of("postgresql+psycopg")).engine)
    connection.run(lambda raw: prepare(raw, "postgresql", SETTINGS, True))
    assert connection.run(lambda raw: raw.execute(sa.text("SHOW lock_timeout")).scalar()) == "0"
    raw: Any = connection.run(lambda raw: raw.connection.driver_connection)
    assert raw.prepare_threshold is None
    connection.close()
