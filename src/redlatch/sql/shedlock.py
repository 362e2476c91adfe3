"""Locks in the table of ShedLock (https://github.com/lukas-krecan/ShedLock), so that both can share jobs.

Its clients must use the database's clock (`usingDbTime`). `locked_by` has our token. The table has no fence.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from redlatch.sql.table import Layout, expression, named_table

DEFAULT_SHEDLOCK_TABLE = "shedlock"

NAME_LENGTH, LOCKED_BY_LENGTH = 64, 255


def is_shedlock_name(key: bytes) -> bool:
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return False
    return 0 < len(name) <= NAME_LENGTH and "\0" not in name


def shedlock_table(table: str = DEFAULT_SHEDLOCK_TABLE) -> sa.Table:
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


utc_now = expression(sa.DateTime(), postgresql="timezone('utc', clock_timestamp())", mysql="UTC_TIMESTAMP(3)")

# UTC_TIMESTAMP(3) cuts off up to 1 ms, which must not make the lock shorter.
utc_in = expression(
    sa.DateTime(),
    postgresql="timezone('utc', clock_timestamp()) + {} * interval '1 microsecond'",
    mysql="TIMESTAMPADD(MICROSECOND, {} + 1000, UTC_TIMESTAMP(3))",
)

left_us = expression(
    sa.BigInteger(),
    postgresql="CAST(extract(epoch FROM {} - timezone('utc', clock_timestamp())) * 1000000 AS bigint)",
    mysql="TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), {})",
)


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
