"""Reject the writes of a former holder inside a database transaction: `guard`. Works with SQLAlchemy and Django.

No lock with a lease can stop a holder that is paused for longer than its lease. The database can: a table keeps the
highest number that it has seen for each name. `guard` sets it to this holder's number in the caller's transaction. If a
later holder was here before, `guard` raises LockLost, and the transaction must roll back.

The row stays locked until the transaction ends. So `guard` must be the first statement: then the transaction of a later
holder begins to read only after that of an earlier one has ended, even if the earlier lock has expired.

MySQL and MariaDB need two statements: they have no conditional upsert, and the number of changed rows depends on a flag
of the connection. The INSERT is first: an UPDATE that finds no row locks a gap of the index, and two holders of new
names would end in a deadlock.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, overload

from .errors import ConfigurationError, LockLost

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

__all__ = ["create_table_sql", "guard"]

TABLE = "redlatch_fence"

_TABLE_NAME = re.compile(r"\w+(\.\w+)*")

# Only these are not quoted. PostgreSQL folds unquoted names to lower case, and `guard` quotes them.
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")

# A statement with its parameters; the number of changed rows, and the selected value.
Statement = tuple[str, dict[str, Any]]
Answer = tuple[int, int | None]

# `{name}` becomes the placeholder of the library: ":name" or "%(name)s".
_UPSERT = (
    "INSERT INTO {table} AS held (name, fence) VALUES ({name}, {fence}) "
    "ON CONFLICT (name) DO UPDATE SET fence = excluded.fence WHERE held.fence <= excluded.fence"
)
_RAISE = (
    "INSERT INTO {table} (name, fence) VALUES ({name}, {fence}) "
    "ON DUPLICATE KEY UPDATE fence = GREATEST(fence, {fence})"
)
_SELECT = "SELECT fence FROM {table} WHERE name = {name}"

# VARBINARY: the default collations of MySQL and MariaDB ignore case and trailing spaces.
_CREATE = {
    "postgresql": "CREATE TABLE {table} (name TEXT PRIMARY KEY, fence BIGINT NOT NULL)",
    "sqlite": "CREATE TABLE {table} (name TEXT PRIMARY KEY, fence BIGINT NOT NULL)",
    "mysql": "CREATE TABLE {table} (name VARBINARY(512) PRIMARY KEY, fence BIGINT NOT NULL)",
    "mariadb": "CREATE TABLE {table} (name VARBINARY(512) PRIMARY KEY, fence BIGINT NOT NULL)",
}


def create_table_sql(database: str, table: str = TABLE) -> str:
    """Return the CREATE TABLE statement for the numbers, for your migrations.

    Args:
        database: "postgresql", "mysql", "mariadb" or "sqlite"; `dialect.name` of SQLAlchemy, `vendor` of Django.
        table: the name of the table. Default "redlatch_fence".

    Raises:
        ConfigurationError, TypeError: an argument is invalid.
    """
    _check_database(database)
    _check_table(table)
    mark = "`" if database in ("mysql", "mariadb") else '"'
    parts = [part if _PLAIN_NAME.fullmatch(part) else f"{mark}{part}{mark}" for part in table.split(".")]
    return _CREATE[database].format(table=".".join(parts))


class DjangoConnection(Protocol):
    vendor: str

    def cursor(self) -> Any: ...


@overload
def guard(
    session: Session | scoped_session[Any] | Connection | DjangoConnection,
    table: str,
    name: str | bytes,
    fence: int | None,
) -> None: ...


@overload
def guard(
    session: AsyncSession | async_scoped_session[Any] | AsyncConnection,
    table: str,
    name: str | bytes,
    fence: int | None,
) -> Coroutine[Any, Any, None]: ...


def guard(session: Any, table: str, name: str | bytes, fence: int | None) -> Coroutine[Any, Any, None] | None:
    """Raise the number of a name in the current transaction; raise LockLost for a former holder.

    Call it as the first statement of the transaction. With an AsyncSession or an AsyncConnection, await it.

    Args:
        session: a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy, or a connection of Django, such
            as `django.db.connection`, inside an atomic block.
        table: the table with the numbers (see `create_table_sql`), perhaps with its schema: "app.redlatch_fence".
        name: the name of the lock.
        fence: the number of the holder: `lock.fence` of a lock that was made with ``fence=True``.

    Raises:
        LockLost: a later holder was here before. Let the exception roll the transaction back.
        ConfigurationError: there is no number, no transaction, or another database; or a name is invalid.
        TypeError: an argument has the wrong type.
    """
    _check_table(table)
    given = {"name": _text_of(name), "fence": _number_of(fence, name)}
    if hasattr(session, "vendor"):
        _guard_django(session, table, given)
        return None
    try:
        from sqlalchemy.engine import Connection
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
        from sqlalchemy.orm import Session, scoped_session
    except ImportError as error:
        raise _wrong_session(session) from error
    if isinstance(session, (AsyncSession, AsyncConnection, async_scoped_session)):
        return _guard_async(session, table, given)
    if not isinstance(session, (Session, Connection, scoped_session)):
        raise _wrong_session(session)
    _guard_sync(session, table, given)
    return None


def _guarding(
    database: str, table: str, marks: dict[str, str], given: dict[str, Any]
) -> Generator[Statement, Answer, None]:
    """Yield each statement, and take its answer; `table` is quoted, and `marks` are the library's placeholders."""
    name, fence = given["name"], given["fence"]
    raising, select = [text.format(table=table, **marks) for text in (_RAISE, _SELECT)]
    if database in ("mysql", "mariadb"):
        yield raising, given
        # A plain SELECT could read an older snapshot.
        _, highest = yield f"{select} FOR UPDATE", {"name": name}
        if highest is not None and highest <= fence:
            return
    else:
        changed, _ = yield _UPSERT.format(table=table, **marks), given
        if changed:
            return
        _, highest = yield select, {"name": name}
    reason = f"a later holder, with the number {highest}, was here before this one with {fence}"
    raise LockLost(f"{name!r}: {reason}; the transaction must roll back", name=name, reason=reason)


# --- SQLAlchemy --------------------------------------------------------------------------------------


def _guard_sync(session: Session | scoped_session[Any] | Connection, table: str, given: dict[str, Any]) -> None:
    from sqlalchemy import text
    from sqlalchemy.engine import Connection

    connection = session if isinstance(session, Connection) else session.connection()
    steps = _steps(connection, table, given)
    answer: Answer | None = None
    while (statement := _next(steps, answer)) is not None:
        answer = _answer_of(connection.execute(text(statement[0]), statement[1]))


async def _guard_async(
    session: AsyncSession | async_scoped_session[Any] | AsyncConnection, table: str, given: dict[str, Any]
) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncConnection

    connection = session if isinstance(session, AsyncConnection) else await session.connection()
    steps = _steps(connection, table, given)
    answer: Answer | None = None
    while (statement := _next(steps, answer)) is not None:
        answer = _answer_of(await connection.execute(text(statement[0]), statement[1]))


def _steps(connection: Any, table: str, given: dict[str, Any]) -> Generator[Statement, Answer, None]:
    dialect = connection.dialect
    _check_database(dialect.name)
    quoted = ".".join(dialect.identifier_preparer.quote(part) for part in table.split("."))
    return _guarding(dialect.name, quoted, {"name": ":name", "fence": ":fence"}, given)


def _answer_of(result: Any) -> Answer:
    return (0, result.scalar()) if result.returns_rows else (result.rowcount, None)


def _next(steps: Generator[Statement, Answer, None], answer: Answer | None) -> Statement | None:
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


# --- Django ------------------------------------------------------------------------------------------


def _guard_django(connection: Any, table: str, given: dict[str, Any]) -> None:
    _check_database(connection.vendor)
    if not connection.in_atomic_block:
        raise ConfigurationError("fence.guard: there is no transaction; call it in an atomic block")
    quoted = ".".join(connection.ops.quote_name(part) for part in table.split("."))
    steps = _guarding(connection.vendor, quoted, {"name": "%(name)s", "fence": "%(fence)s"}, given)
    answer: Answer | None = None
    with connection.cursor() as cursor:
        while (statement := _next(steps, answer)) is not None:
            cursor.execute(*statement)
            row = cursor.fetchone() if cursor.description else None
            answer = (cursor.rowcount, row[0] if row else None)


# --- arguments ---------------------------------------------------------------------------------------


def _check_database(database: str) -> None:
    if database not in _CREATE:
        known = ", ".join(_CREATE)
        raise ConfigurationError(f"database: there are statements for {known}, not for {database!r}")


def _check_table(table: str) -> None:
    if not isinstance(table, str):
        raise TypeError(f"table: a name as str is needed, not {type(table).__name__}")
    if not _TABLE_NAME.fullmatch(table):
        raise ConfigurationError(f"table: a name of letters, digits, _ and dots is needed, got {table!r}")


def _text_of(name: str | bytes) -> str:
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"name: str or bytes are needed, not {type(name).__name__}")
    try:
        return name if isinstance(name, str) else name.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError("name: the table has text, so bytes must be UTF-8") from error


def _number_of(fence: int | None, name: str | bytes) -> int:
    if fence is None:
        raise ConfigurationError(
            f"fence: there is no number for {name!r}; make the lock with fence=True, and call guard() while it is held"
        )
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise TypeError(f"fence: a whole number is needed, not {type(fence).__name__}")
    return fence


def _wrong_session(session: object) -> TypeError:
    return TypeError(
        "session: a session or connection of SQLAlchemy, or a connection of Django, is needed, not "
        f"{type(session).__name__}"
    )
