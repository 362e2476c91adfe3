"""The checks and the settings of a new connection."""

from __future__ import annotations

from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from redlatch.errors import MasterRefused
from redlatch.sql.connection import OwnConnection
from redlatch.sql.database import Database
from redlatch.sql.faults import code_of, is_busy, text_of
from redlatch.sql.files import DatabaseFile
from redlatch.sql.forks import was_inherited
from redlatch.sql.settings import SHEDLOCK, Settings
from redlatch.wire.bridge.bridge import BackendLost

# How long a statement waits for a locked row or file.
LOCK_WAIT_MS = 50

ROUNDS = 3

# SQLSTATEs of PostgreSQL; numbers of MySQL and MariaDB; a result code of SQLite.
NO_TABLE, NO_COLUMN = {"42P01", "3F000", 1146}, {"42703", 1054}
SQLITE_ERROR = 1


def prepare(raw: sa.Connection, family: str, settings: Settings, pooled: bool) -> None:
    """Set a short wait for locked rows, and on MySQL the zone UTC, where no hour repeats.

    Settings behind a pooler would stay for its other clients, so there it sets nothing.
    """
    if pooled:
        raw_connection: Any = raw.connection.driver_connection
        if hasattr(raw_connection, "prepare_threshold"):
            # A prepared statement exists in one backend only.
            raw_connection.prepare_threshold = None
    elif family == "postgresql":
        raw.execute(sa.text(f"SET lock_timeout = {LOCK_WAIT_MS}"))
    elif family == "sqlite":
        raw.execute(sa.text(f"PRAGMA busy_timeout = {LOCK_WAIT_MS}"))
    else:
        seconds = 0 if getattr(raw.dialect, "is_mariadb", False) else 1
        raw.execute(sa.text(f"SET SESSION innodb_lock_wait_timeout = {seconds}"))
        if settings.dialect != SHEDLOCK:
            # ShedLock uses the server's time zone, and a TIMESTAMP depends on the zone.
            raw.execute(sa.text("SET SESSION time_zone = '+00:00'"))


_READ_ONLY = {"postgresql": "SELECT pg_is_in_recovery()", "mysql": "SELECT @@global.read_only"}


def refuse_replica(raw: sa.Connection, database: Database) -> None:
    question = _READ_ONLY.get(database.family)
    if question is not None and raw.execute(sa.text(question)).scalar():
        # A fail-over may be under way. A MasterRefused would refuse the client for good.
        raise BackendLost(f"{database.address} is a standby that takes no writes; name the primary")


def why_shared(connection: OwnConnection) -> str:
    """Return why a connection to PostgreSQL may have another backend for each transaction, or "".

    A pooler sends a number of its own at the login. One that keeps the backend until the client's end is not detected.
    """
    told = connection.run(lambda raw: _told_pid(raw.connection.driver_connection))
    if told is None:
        driver = connection.run(lambda raw: raw.dialect.driver)
        return f"is reached with a driver ({driver}) that does not tell its backend"
    asks = sa.text("SELECT pg_backend_pid()")
    pids = {connection.run(lambda raw: raw.execute(asks).scalar_one()) for _ in range(ROUNDS)}
    return "" if pids == {told} else "is behind a pooler"


def _told_pid(raw: Any) -> int | None:
    if hasattr(raw, "get_server_pid"):
        return int(raw.get_server_pid())
    pid = getattr(getattr(raw, "info", None), "backend_pid", None)
    return None if pid is None else int(pid)


def refuse_statement_pooling(connection: OwnConnection, database: Database) -> None:
    """Refuse a pooler that gives each statement to any backend: it closes a connection that begins a transaction."""
    try:
        connection.run(lambda raw: raw.exec_driver_sql("BEGIN"))
        connection.run(lambda raw: raw.exec_driver_sql("COMMIT"))
    except DBAPIError as error:
        # With psycopg2 the pooler's message is lost when it closes the connection.
        unsaid = error.connection_invalidated and connection.run(lambda raw: raw.dialect.driver) == "psycopg2"
        if "statement pooling" not in text_of(error) and not unsaid:
            raise
        raise MasterRefused(
            f"{database.address} is behind a pooler that allows no transactions (statement pooling); set pool_mode = "
            "transaction there, or connect to the server itself"
        ) from error


def refuse_shared(database: Database, why: str) -> NoReturn:
    raise MasterRefused(
        f"{database.address} {why}, and there each transaction may have another backend, so a lock of a session would "
        "belong to nobody; connect to the server itself with psycopg, psycopg2 or asyncpg, or use mode='table'"
    )


def refuse_galera(raw: sa.Connection, database: Database) -> None:
    if database.family != "mysql":
        return
    row = raw.execute(sa.text("SHOW STATUS LIKE 'wsrep_cluster_size'")).one_or_none()
    if row is not None and int(row[1] or 0) > 1:
        raise MasterRefused(
            f"{database.address} is one of several writers (Galera), and GET_LOCK locks on one node only; use "
            "mode='table'"
        )


def refuse_inherited(file: DatabaseFile, database: Database) -> None:
    if was_inherited(file):
        raise MasterRefused(
            f"{database.address} was open when this process was forked, and SQLite then mixes up the locks of both; "
            "close the client before the fork, use a driver for threads, or start the process by 'spawn'"
        )


def refuse_without_table(raw: sa.Connection, database: Database, settings: Settings) -> None:
    table = settings.table
    assert table is not None
    try:
        raw.execute(sa.select(table).limit(0))
    except DBAPIError as error:
        if is_busy(error):
            return
        code, said = code_of(error), text_of(error)
        if code in NO_TABLE or (code == SQLITE_ERROR and said.startswith("no such table")):
            cure = "make it as ShedLock documents it"
            if settings.dialect != SHEDLOCK:
                cure = "call create_table() once, before the client is used"
            raise MasterRefused(f"{database.address} has no table {table.fullname} for locks; {cure}") from error
        if code in NO_COLUMN or (code == SQLITE_ERROR and said.startswith("no such column")):
            raise MasterRefused(
                f"{database.address} has a table {table.fullname} with other columns ({said}); name another table"
            ) from error
        raise
