"""The checks of a new connection, with answers that only a rare server gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from redlatch import MasterRefused
from redlatch.sql.checks import is_pooled, prepare, refuse_galera, refuse_pooler, several_backends
from redlatch.sql.connection import connect
from redlatch.sql.database import Database
from redlatch.sql.settings import Settings

from .conftest import FindUrl

SETTINGS = Settings.of("postgresql", None, "table", "redlatch", "")


def first_of(question: str, raw: sa.Connection) -> Any:
    return raw.execute(sa.text(question)).scalar()


class Played:
    """A connection that answers what it is told, in turn."""

    def __init__(self, *answers: object) -> None:
        self.answers: Iterator[object] = iter(answers)

    def run(self, call: Callable[[Any], Any]) -> Any:
        return call(self)

    def execute(self, statement: object) -> Any:
        if str(statement) in ("BEGIN", "COMMIT"):
            return None
        return self

    def scalar_one(self) -> object:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def one_or_none(self) -> object:
        return next(self.answers)


@pytest.mark.parametrize(
    ("first", "second", "pooled"),
    [
        ([1] * 6, [2] * 6, False),
        ([1] * 6, [1] * 6, True),
        ([1, 3, 1, 1, 1, 1], [2] * 6, True),
        ([1] * 6, [2, 2, 2, 3, 2, 2], True),
        ([OperationalError("x", {}, Exception("refused"))], [2] * 6, True),
    ],
)
def test_a_pooler_is_seen_by_the_backends(first: list[Any], second: list[Any], pooled: bool) -> None:
    assert several_backends(Played(*first), Played(*second)) is pooled  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"])
def test_a_server_is_no_pooler(url_of: FindUrl, driver: str) -> None:
    database = Database(url_of(driver))
    connection = connect(database.engine)
    assert not is_pooled(database, connection)
    connection.close()


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
            refuse_galera(Played(row), database)  # type: ignore[arg-type]
    else:
        refuse_galera(Played(row), database)  # type: ignore[arg-type]


def test_a_pooler_is_refused_with_both_ways_out() -> None:
    with pytest.raises(MasterRefused, match=r"the server itself, or use mode='table'"):
        refuse_pooler(Database("postgresql+psycopg://h/x"))


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
