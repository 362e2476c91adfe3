"""Locks in the table of ShedLock (https://github.com/lukas-krecan/ShedLock), so that both can share jobs.

Its clients must use the database's clock (`usingDbTime`). `locked_by` has our token, which is unique to the holder. The
table has no fence.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from redlatch.sql.table import Layout, named_table

DEFAULT_SHEDLOCK_TABLE = "shedlock"

# As ShedLock documents them.
NAME_LENGTH, LOCKED_BY_LENGTH = 64, 255


def is_shedlock_name(key: bytes) -> bool:
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(name) <= NAME_LENGTH and "\0" not in name


def shedlock_table(table: str = DEFAULT_SHEDLOCK_TABLE) -> sa.Table:
    """Return the table as ShedLock documents it."""
    like = named_table(table)
    moment = sa.DateTime().with_variant(mysql.TIMESTAMP(fsp=3), "mysql", "mariadb")
    now = sa.text("CURRENT_TIMESTAMP(3)")
    return sa.Table(
        like.name,
        sa.MetaData(),
        sa.Column("name", sa.String(NAME_LENGTH), primary_key=True),
        sa.Column("lock_until", moment, nullable=False, server_default=now),
        sa.Column("locked_at", moment, nullable=False, server_default=now),
        sa.Column("locked_by", sa.String(LOCKED_BY_LENGTH), nullable=False),
        schema=like.schema,
    )


class utc_now(FunctionElement[Any]):
    """The server's clock in UTC, as ShedLock's `usingDbTime` reads it."""

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_now"


@compiles(utc_now, "postgresql")
def _now_of_postgresql(element: utc_now, compiler: Any, **_: Any) -> str:
    return "timezone('utc', clock_timestamp())"


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _now_of_mysql(element: utc_now, compiler: Any, **_: Any) -> str:
    return "UTC_TIMESTAMP(3)"


class utc_in(FunctionElement[Any]):
    """The server's clock in UTC, and some microseconds later."""

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_in"


@compiles(utc_in, "postgresql")
def _in_of_postgresql(element: utc_in, compiler: Any, **options: Any) -> str:
    later = compiler.process(element.clauses, **options)
    return f"timezone('utc', clock_timestamp()) + {later} * interval '1 microsecond'"


@compiles(utc_in, "mysql")
@compiles(utc_in, "mariadb")
def _in_of_mysql(element: utc_in, compiler: Any, **options: Any) -> str:
    later = compiler.process(element.clauses, **options)
    # UTC_TIMESTAMP(3) cuts off up to 1 ms, which must not make the lock shorter.
    return f"TIMESTAMPADD(MICROSECOND, {later} + 1000, UTC_TIMESTAMP(3))"


class left_us(FunctionElement[int]):
    """Microseconds for which a lock is held, from the column `lock_until`."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "left_us"


@compiles(left_us, "postgresql")
def _left_of_postgresql(element: left_us, compiler: Any, **options: Any) -> str:
    until = compiler.process(element.clauses, **options)
    return f"CAST(extract(epoch FROM {until} - timezone('utc', clock_timestamp())) * 1000000 AS bigint)"


@compiles(left_us, "mysql")
@compiles(left_us, "mariadb")
def _left_of_mysql(element: left_us, compiler: Any, **options: Any) -> str:
    return f"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), {compiler.process(element.clauses, **options)})"


def layout_of(table: sa.Table) -> Layout:
    columns = table.c
    return Layout(
        table=table,
        name=columns.name,
        token=columns.locked_by,
        until=columns.lock_until,
        fence=None,
        now=utc_now(),
        later=utc_in(sa.bindparam("ttl_us", type_=sa.BigInteger())),
        left_us=left_us(columns.lock_until),
        free=utc_now(),
        taken={"locked_at": utc_now()},
        empty={"locked_at": utc_now()},
        as_text=True,
    )
