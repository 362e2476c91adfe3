"""The checks of a new connection: whether this server, through this way, is fit for locks. And its settings."""

from __future__ import annotations

from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from redlatch.errors import MasterRefused
from redlatch.sql.backend import code_of
from redlatch.sql.connection import OwnConnection, connect, text_of
from redlatch.sql.database import Database
from redlatch.sql.settings import SHEDLOCK, Settings
from redlatch.wire.bridge import BackendLost

# How long a statement waits for a row that another transaction has locked, in milliseconds. MySQL counts in seconds.
LOCK_WAIT_MS = 50

# How often a connection of PostgreSQL is asked which backend it has.
ROUNDS = 3

# A table or a column does not exist: SQLSTATEs of PostgreSQL; numbers of MySQL and MariaDB; a result code of SQLite.
NO_TABLE, NO_COLUMN = {"42P01", "3F000", 1146}, {"42703", 1054}
SQLITE_ERROR = 1


def prepare(raw: sa.Connection, family: str, settings: Settings, pooled: bool) -> None:
    """Set what our statements need: a short wait for locked rows, and on MySQL the zone UTC, where no hour repeats.

    Behind a pooler nothing is set, because it would stay set for other clients. So there a statement waits for as long
    as another transaction locks the row.
    """
    if pooled:
        raw_connection: Any = raw.connection.driver_connection
        if hasattr(raw_connection, "prepare_threshold"):
            # A statement that psycopg has prepared is known to one backend only.
            raw_connection.prepare_threshold = None
    elif family == "postgresql":
        raw.execute(sa.text(f"SET lock_timeout = {LOCK_WAIT_MS}"))
    elif family == "sqlite":
        raw.execute(sa.text(f"PRAGMA busy_timeout = {LOCK_WAIT_MS}"))
    else:
        # MariaDB may be asked not to wait at all.
        seconds = 0 if getattr(raw.dialect, "is_mariadb", False) else 1
        raw.execute(sa.text(f"SET SESSION innodb_lock_wait_timeout = {seconds}"))
        if settings.dialect != SHEDLOCK:
            # ShedLock has the server's time zone, and a TIMESTAMP means another time in another zone.
            raw.execute(sa.text("SET SESSION time_zone = '+00:00'"))


_READ_ONLY = {"postgresql": "SELECT pg_is_in_recovery()", "mysql": "SELECT @@global.read_only"}


def refuse_replica(raw: sa.Connection, database: Database) -> None:
    """Refuse a server that takes no writes, for now: a fail-over may be under way."""
    question = _READ_ONLY.get(database.family)
    if question is not None and raw.execute(sa.text(question)).scalar():
        # Not a MasterRefused, which would refuse the client for good.
        raise BackendLost(f"{database.address} is a standby that takes no writes; name the primary")


def is_pooled(database: Database, connection: OwnConnection) -> bool:
    """Return whether a pooler stands before PostgreSQL; it takes a second connection for a moment."""
    other = connect(database.engine)
    try:
        return several_backends(connection, other)
    finally:
        other.close()


def several_backends(first: OwnConnection, second: OwnConnection) -> bool:
    """Return whether a pooler stands before PostgreSQL that gives each transaction to any of several backends.

    Without a pooler, two connections that are open at the same time have different backends, and each keeps its own.
    """
    asks = sa.text("SELECT pg_backend_pid()")

    def pid(connection: OwnConnection) -> int:
        return int(connection.run(lambda raw: raw.execute(asks).scalar_one()))

    try:
        firsts, seconds = set(), set()
        for _ in range(ROUNDS):
            firsts.add(pid(first))
            second.run(lambda raw: raw.execute(sa.text("BEGIN")))
            seconds.add(pid(second))
            # The backend of the second one is taken now, so a pooler must have another one for the first one.
            firsts.add(pid(first))
            second.run(lambda raw: raw.execute(sa.text("COMMIT")))
            seconds.add(pid(second))
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        # A pooler that refuses a statement.
        return True
    return len(firsts) > 1 or len(seconds) > 1 or bool(firsts & seconds)


def refuse_pooler(database: Database) -> NoReturn:
    """Refuse a pooler for locks of a session."""
    raise MasterRefused(
        f"{database.address} is behind a pooler that gives each transaction to any backend, so a lock of a session "
        "would belong to nobody; connect to the server itself, or use mode='table'"
    )


def refuse_galera(raw: sa.Connection, database: Database) -> None:
    """Refuse a node of Galera for locks of a session."""
    if database.family != "mysql":
        return
    row = raw.execute(sa.text("SHOW STATUS LIKE 'wsrep_cluster_size'")).one_or_none()
    if row is not None and int(row[1] or 0) > 1:
        raise MasterRefused(
            f"{database.address} is one of several writers (Galera), and GET_LOCK locks on one node only; use "
            "mode='table'"
        )


def refuse_without_table(raw: sa.Connection, database: Database, settings: Settings) -> None:
    """Refuse a database without our table, or with another one of its name."""
    table = settings.table
    assert table is not None
    try:
        raw.execute(sa.select(table).limit(0))
    except DBAPIError as error:
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
