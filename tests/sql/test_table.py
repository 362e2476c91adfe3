"""The table of locks: its columns, its name, and the server's clock in its statements."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from redlatch import ConfigurationError
from redlatch.sql.table import larger, layout_of, lock_table, named_table, now_us

KINDS: dict[str, Any] = {"postgresql": postgresql.dialect, "mysql": mysql.dialect, "sqlite": sqlite.dialect}
DIALECTS = {name: dialect() for name, dialect in KINDS.items()}


def text(element: object, dialect: str) -> str:
    return str(sa.select(element).compile(dialect=DIALECTS[dialect]))  # type: ignore[call-overload]


def test_the_name_is_the_key_and_no_column_may_be_null() -> None:
    table = lock_table("locks", "app")
    assert table.fullname == "app.locks"
    assert [column.name for column in table.primary_key] == ["name"]
    assert not any([column.nullable for column in table.columns])


def test_a_table_joins_the_metadata_that_it_is_given() -> None:
    metadata = sa.MetaData()
    lock_table(metadata=metadata)
    assert list(metadata.tables) == ["redlatch_lock"]


@pytest.mark.parametrize("given", ["", "a.b.c", "a b", "a;", "x-y", "1a", "a."])
def test_a_malformed_name_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="table: a name like"):
        named_table(given)


def test_a_name_must_be_text() -> None:
    with pytest.raises(TypeError, match="not int"):
        named_table(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dialect", "clock"), [("postgresql", "clock_timestamp()"), ("mysql", "SYSDATE(6)"), ("sqlite", "julianday('now')")]
)
def test_the_clock_is_read_when_the_statement_runs(dialect: str, clock: str) -> None:
    statement = text(now_us(), dialect)
    assert clock in statement
    assert "CURRENT_TIMESTAMP" not in statement and "now()" not in statement.lower()


@pytest.mark.parametrize(
    ("dialect", "function"), [("postgresql", "greatest"), ("mysql", "greatest"), ("sqlite", "max")]
)
def test_the_larger_of_two_numbers(dialect: str, function: str) -> None:
    assert f"{function}(" in text(larger(sa.literal(1), sa.literal(2)), dialect)


def test_an_owner_is_cut_to_its_column() -> None:
    assert layout_of(lock_table(), "x" * 300).taken["owner"] == "x" * 255
