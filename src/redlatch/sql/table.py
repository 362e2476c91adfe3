"""The table of locks: one row for each name, which stays, so that its fence never goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from redlatch.errors import ConfigurationError
from redlatch.votes.key import MAX_BYTES

DEFAULT_TABLE = "redlatch_lock"

TOKEN_BYTES = 64
OWNER_LENGTH = 255


def lock_table(name: str = DEFAULT_TABLE, schema: str | None = None, metadata: sa.MetaData | None = None) -> sa.Table:
    """Return the table of locks, for `create_table` or for a migration.

    Args:
        name: its name. Default "redlatch_lock".
        schema: its schema. Default: that of the connection.
        metadata: the collection of tables that it belongs to. Default: a new one.
    """

    def binary(length: int) -> Any:
        # A collation might treat two names as equal.
        return sa.LargeBinary(length).with_variant(mysql.VARBINARY(length), "mysql", "mariadb")

    big: Any = sa.BigInteger()
    return sa.Table(
        name,
        sa.MetaData() if metadata is None else metadata,
        sa.Column("name", binary(MAX_BYTES), primary_key=True),
        sa.Column("token", binary(TOKEN_BYTES), nullable=False),
        sa.Column("fence", big, nullable=False),
        sa.Column("until_us", big, nullable=False),
        sa.Column("owner", sa.String(OWNER_LENGTH), nullable=False),
        sa.Column("since_us", big, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def named_table(table: str) -> sa.Table:
    if not isinstance(table, str):
        raise TypeError(f"table: a name as str is needed, not {type(table).__name__}")
    schema, _, name = table.rpartition(".")
    if not all([part.isidentifier() for part in table.split(".")]) or "." in schema:
        raise ConfigurationError(f"table: a name like '{DEFAULT_TABLE}' or 'schema.{DEFAULT_TABLE}' is needed")
    return lock_table(name, schema or None)


def expression(result: Any, **texts: str) -> type[FunctionElement[Any]]:
    """Make an SQL function from its text for each family; {} stands for its arguments."""

    class Expression(FunctionElement[Any]):
        type = result
        inherit_cache = True

    def compiled_by(text: str) -> Callable[..., str]:
        return lambda element, compiler, **options: text.format(compiler.process(element.clauses, **options))

    for family, text in texts.items():
        compiles(Expression, *(("mysql", "mariadb") if family == "mysql" else (family,)))(compiled_by(text))
    return Expression


# Microseconds since 1970 when the expression is evaluated. CURRENT_TIMESTAMP is the start of the transaction or
# statement, which may wait for a row after that.
now_us = expression(
    sa.BigInteger(),
    postgresql="CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)",
    # The connection has the time zone UTC, which has no hour twice.
    mysql="CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    sqlite="CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
)

larger = expression(sa.BigInteger(), postgresql="greatest({})", mysql="greatest({})", sqlite="max({})")


class Layout(NamedTuple):
    """The columns of a table of locks, and expressions for them.

    Args:
        now: the server's clock, in the type of `until`.
        later: the same after the parameter `ttl_us`.
        free: the value of `until` after a release.
        taken: further values for a new holder; `empty` is for a row of MySQL without a holder.
        told: the fence, the microseconds since 1970 when the holder took the row, and its owner; or empty.
    """

    table: sa.Table
    name: Any
    token: Any
    until: Any
    fence: Any
    now: Any
    later: Any
    left_us: Any
    free: Any
    taken: dict[str, Any]
    empty: dict[str, Any]
    as_text: bool
    told: tuple[Any, ...] = ()


def layout_of(table: sa.Table, owner: str) -> Layout:
    columns = table.c
    return Layout(
        table=table,
        name=columns.name,
        token=columns.token,
        until=columns.until_us,
        fence=columns.fence,
        now=now_us(),
        later=now_us() + sa.bindparam("ttl_us"),
        left_us=columns.until_us - now_us(),
        free=0,
        taken={"since_us": now_us(), "owner": owner[:OWNER_LENGTH]},
        empty={"since_us": 0, "owner": ""},
        as_text=False,
        told=(columns.fence, columns.since_us, columns.owner),
    )
