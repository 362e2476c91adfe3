"""What a failed COMMIT means, with the errors of real drivers."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import psycopg.errors
import pymysql
import pytest
from django.db.utils import OperationalError
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi
from sqlalchemy.exc import DBAPIError

from redlatch.transactions.commits import surely_rolled_back


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("an error")
    error.sqlite_errorcode = code
    return error


REFUSED = [
    psycopg.errors.SerializationFailure("could not serialize access"),
    psycopg.errors.DeadlockDetected("deadlock detected"),
    psycopg.errors.ForeignKeyViolation("violates foreign key constraint"),
    psycopg.errors.RaiseException("by a deferred trigger"),
    pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"),
    pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    of_sqlite(sqlite3.SQLITE_BUSY),
    of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT),
    of_sqlite(sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY),
]
IN_DOUBT = [
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.errors.StatementCompletionUnknown("unknown"),
    psycopg.errors.ConnectionFailure("lost"),
    psycopg.errors.InternalError_("a fault"),
    psycopg.InterfaceError("the connection is closed"),
    pymysql.err.OperationalError(2013, "Lost connection to server during query"),
    pymysql.err.OperationalError(1053, "Server shutdown in progress"),
    pymysql.err.OperationalError(1180, "Got error during COMMIT"),
    pymysql.err.InterfaceError(0, ""),
    of_sqlite(sqlite3.SQLITE_IOERR),
    sqlite3.OperationalError("an error without a code"),
    ConnectionResetError(104, "Connection reset by peer"),
    TimeoutError(),
    KeyboardInterrupt(),
    # A refused key, but no number of a database.
    KeyError("1213"),
]


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_an_error_that_the_database_answers_means_that_it_has_rolled_back(error: BaseException) -> None:
    assert surely_rolled_back(error)


@pytest.mark.parametrize("error", IN_DOUBT, ids=repr)
def test_every_other_error_is_in_doubt(error: BaseException) -> None:
    assert not surely_rolled_back(error)


@pytest.mark.parametrize("error", [*REFUSED, *IN_DOUBT], ids=repr)
def test_the_wrappers_of_sqlalchemy_and_django_change_nothing(error: BaseException) -> None:
    wrapped = OperationalError("an error")
    wrapped.__cause__ = error
    assert surely_rolled_back(wrapped) == surely_rolled_back(error)
    if isinstance(error, Exception):
        assert surely_rolled_back(DBAPIError(None, None, error)) == surely_rolled_back(error)


def test_the_state_of_asyncpg_is_read_from_its_adapter() -> None:
    adapted: Any = AsyncAdapt_asyncpg_dbapi.Error
    error = adapted("an error")
    for state, refused in (("40001", True), ("23503", True), ("57P01", False), ("08006", False), (None, False)):
        error.pgcode = error.sqlstate = state
        assert surely_rolled_back(error) == refused


def test_a_circle_of_causes_ends() -> None:
    first, second = OperationalError("first"), OperationalError("second")
    first.__cause__, second.__cause__ = second, first
    assert not surely_rolled_back(first)
