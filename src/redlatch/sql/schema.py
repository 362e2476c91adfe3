"""Creation of the table of locks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from redlatch.errors import ConfigurationError, QuorumUnavailable
from redlatch.sql.connection import connect
from redlatch.sql.database import Database
from redlatch.sql.faults import code_of, text_of
from redlatch.sql.settings import REDLATCH, Settings
from redlatch.wire.bridge.bridge import BackendLost

# SQLSTATEs of PostgreSQL for a table that another process makes at the same time.
MADE = {"42P07", "42710", "23505"}


def make_table(database: Database, settings: Settings) -> None:
    if settings.table is None or settings.dialect != REDLATCH:
        raise ConfigurationError("create_table: locks of a session have no table, and ShedLock documents its own")
    # A driver for asyncio needs an event loop of its own; the calling thread may run one.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(_make, database, settings).result()
        except (BackendLost, DBAPIError) as error:
            what = f"the table {settings.table.fullname} cannot be made in {database.address}: {text_of(error)}"
            raise QuorumUnavailable(what) from error


def _make(database: Database, settings: Settings) -> None:
    connection = connect(database.engine)
    try:
        table = settings.table
        assert table is not None
        statement = CreateTable(table, if_not_exists=True)
        try:
            connection.run(lambda raw: raw.execute(statement))
        except DBAPIError as error:
            if code_of(error) not in MADE:
                raise
            connection.run(lambda raw: raw.execute(statement))
    finally:
        connection.close()
