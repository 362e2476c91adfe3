"""Locks as rows of a table: the statement for each command.

Each statement is a transaction (AUTOCOMMIT), reads the server's clock when it is evaluated, and compares the token.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam
from sqlalchemy.dialects import postgresql, sqlite

from redlatch.sql.connection import OwnConnection
from redlatch.sql.table import Layout, larger
from redlatch.votes.label import NO_TOKEN, ONE_LINE, label_of


class Rows:
    ends_with_connection = False
    pause = 1.0

    def __init__(self, connection: OwnConnection, layout: Layout, channel: str | None = None) -> None:
        self._connection = connection
        self._layout = layout
        name, until = layout.name, layout.until
        held = (name == bindparam("key")) & (layout.token == bindparam("holder")) & (until > layout.now)
        update = sa.update(layout.table).where(held)
        self._owned = sa.select(sa.literal(1)).select_from(layout.table).where(held)
        self._left = sa.select(layout.left_us).where(name == bindparam("key"))
        self._holder = self._left.add_columns(*layout.told)
        self._extend = update.values({until: larger(until, layout.later)})
        self._release = self._announced(update.values({until: layout.free}), channel)
        if layout.fence is not None:
            self._confirm = update.where(layout.fence < bindparam("first")).values({layout.fence: bindparam("last")})
        self._begin()

    def _begin(self) -> None:
        fence = self._layout.fence
        if fence is None:
            self._acquire = self._acquiring({}, {}, sa.literal(1))
            return
        self._acquire = self._acquiring({fence: 0}, {}, fence)
        self._acquire_fenced = self._acquiring({fence: bindparam("last")}, {fence: self._number()}, fence)

    def _number(self) -> Any:
        return larger(self._layout.fence + 1, bindparam("first")) + bindparam("extra")

    def _taken(self) -> dict[Any, Any]:
        layout = self._layout
        return {layout.token: bindparam("holder"), layout.until: layout.later, **layout.taken}

    def _acquiring(self, new: dict[Any, Any], old: dict[Any, Any], answer: Any) -> Any:
        layout = self._layout
        dialect = self._connection.run(lambda connection: connection.dialect.name)
        insert = (sqlite if dialect == "sqlite" else postgresql).insert(layout.table)
        return (
            insert.values({layout.name: bindparam("key"), **self._taken(), **new})
            .on_conflict_do_update(
                index_elements=[layout.name], set_={**self._taken(), **old}, where=layout.until <= layout.now
            )
            .returning(answer)
        )

    def _announced(self, release: Any, channel: str | None) -> Any:
        if channel is None:
            return release
        name = self._layout.name
        released = release.returning(name).cte("released")
        raw = sa.func.convert_to(released.c.name, "UTF8") if self._layout.as_text else released.c.name
        return sa.select(sa.func.pg_notify(channel, sa.func.encode(raw, "hex"))).select_from(released)

    # --- commands ----------------------------------------------------------------------------------

    def acquire(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        return self._scalar(self._acquire, key, token, ttl_us=1000 * ttl_ms) is not None

    def acquire_fenced(self, key: bytes, token: bytes, ttl_ms: int, first: int, last: int) -> int:
        """Take a free row; return `first` if no fence was as high, otherwise minus the highest; 0 if it is not free."""
        numbers = {"ttl_us": 1000 * ttl_ms, "first": first, "last": last, "extra": last - first}
        stored = self._scalar(self._acquire_fenced, key, token, **numbers)
        if stored is None:
            return 0
        return first if stored == last else -int(stored)

    def confirm(self, key: bytes, token: bytes, first: int, last: int) -> bool:
        # Only if no fence was as high.
        return self._changes(self._confirm, key, token, first=first, last=last)

    def extend(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        return self._changes(self._extend, key, token, ttl_us=1000 * ttl_ms)

    def release(self, key: bytes, token: bytes) -> bool:
        return self._changes(self._release, key, token)

    def owned(self, key: bytes, token: bytes) -> bool:
        return self._scalar(self._owned, key, token) is not None

    def left_ms(self, key: bytes) -> int | None:
        left = self._scalar(self._left, key)
        return None if left is None or left <= 0 else -(-int(left) // 1000)

    def holder(self, key: bytes) -> tuple[int, int, bytes] | None:
        # The token is a label of the owner.
        values = self._values(key, None, {})
        row = self._connection.run(lambda connection: connection.execute(self._holder, values).first())
        if row is None or row[0] <= 0:
            return None
        left_us, *told = row
        if not told:
            return -(-int(left_us) // 1000), 0, b""
        fence, since_us, owner = told
        token = NO_TOKEN + label_of(str(owner).encode(), int(since_us) // 1_000_000)
        return -(-int(left_us) // 1000), int(fence), token.translate(ONE_LINE)

    def tick(self) -> None: ...

    # --- statements --------------------------------------------------------------------------------

    def _values(self, key: bytes, token: bytes | None, numbers: dict[str, int]) -> dict[str, Any]:
        as_text = self._layout.as_text
        values: dict[str, Any] = {"key": key.decode() if as_text else key, **numbers}
        if token is not None:
            values["holder"] = token.decode() if as_text else token
        return values

    def _scalar(self, statement: Any, key: bytes, token: bytes | None = None, **numbers: int) -> Any:
        values = self._values(key, token, numbers)
        return self._connection.run(lambda connection: connection.execute(statement, values).scalar())

    def _changes(self, statement: Any, key: bytes, token: bytes | None = None, **numbers: int) -> bool:
        values = self._values(key, token, numbers)

        def run(connection: sa.Connection) -> bool:
            result = connection.execute(statement, values)
            return bool(result.fetchall()) if result.returns_rows else result.rowcount > 0

        return self._connection.run(run)


class MySQLRows(Rows):
    # An INSERT takes locks that can cause deadlocks, so it runs only for names without a row.

    _exists: Any
    _fence_of: Any
    _insert: Any

    def _begin(self) -> None:
        layout = self._layout
        name = layout.name == bindparam("key")
        update = sa.update(layout.table).where(name, layout.until <= layout.now)
        self._acquire = update.values(self._taken())
        nobody: dict[Any, Any] = {layout.name: bindparam("key"), layout.token: bindparam("holder"), **layout.empty}
        nobody[layout.until] = layout.free
        if layout.fence is not None:
            nobody[layout.fence] = 0
            self._acquire_fenced = update.values({**self._taken(), layout.fence: self._number()})
            self._fence_of = sa.select(layout.fence).where(name, layout.token == bindparam("holder"))
        self._exists = sa.select(sa.literal(1)).select_from(layout.table).where(name)
        self._insert = sa.insert(layout.table).values(nobody).prefix_with("IGNORE")

    def acquire(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        return self._take(self._acquire, key, token, ttl_us=1000 * ttl_ms)

    def extend(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        # Some connections count a row only if it has changed.
        return super().extend(key, token, ttl_ms) or self.owned(key, token)

    def acquire_fenced(self, key: bytes, token: bytes, ttl_ms: int, first: int, last: int) -> int:
        if not self._take(self._acquire_fenced, key, token, ttl_us=1000 * ttl_ms, first=first, extra=last - first):
            return 0
        stored = self._scalar(self._fence_of, key, token)
        return first if stored == last else -int(stored or 0)

    def _take(self, update: Any, key: bytes, token: bytes, **numbers: int) -> bool:
        if self._changes(update, key, token, **numbers):
            return True
        # Check the row each time: an operator may have deleted it.
        if self._scalar(self._exists, key) is not None or not self._changes(self._insert, key, b""):
            return False
        return self._changes(update, key, token, **numbers)
