"""The same lock on a database that you already have: MySQL, MariaDB, PostgreSQL or SQLite (extra `sql`).

The locks are those of `redlatch.Client`: the same classes, errors and options. A thread of the client translates their
commands for the database (see `redlatch.wire.bridge.bridge`), so it opens at most two connections, for any number of
waiters.
"""

from __future__ import annotations

try:
    from redlatch.sql.aio import AsyncClient
    from redlatch.sql.client import Client
    from redlatch.sql.table import lock_table
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    cure = "redlatch.sql needs SQLAlchemy, which is not installed: pip install 'redlatch[sql]'"
    raise ModuleNotFoundError(cure, name=error.name) from error

__all__ = ["AsyncClient", "Client", "lock_table"]
