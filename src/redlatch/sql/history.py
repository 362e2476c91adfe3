"""Detect when a database may have forgotten locks.

It forgets when a lagging standby is promoted, when it is restored, or when it is restarted without durable commits. If
its clock is set forward, rows expire early. Then the client's holders are in doubt until it confirms their locks (see
`redlatch.quorum.policy.Doubts`).
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from redlatch.guard.clock import Leap, Offset
from redlatch.sql.database import Database
from redlatch.sql.files import REPLACED, DatabaseFile
from redlatch.sql.table import now_us
from redlatch.votes.units import SECOND
from redlatch.wire.engine.net import now_ns

logger = logging.getLogger("redlatch")

READ_EVERY_NS = SECOND

# Relative error of the database's clock: the default of `drift_factor`.
DRIFT = 0.01

# MySQL reports its uptime in whole seconds.
SAME_START = 1.2

# The timeline changes with each promotion of a standby.
_POSTGRESQL = (
    "SELECT system_identifier::text || ':' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) "
    "FROM pg_control_system()",
    "SELECT extract(epoch FROM pg_postmaster_start_time())::float8",
)

# MySQL has the first variable, and some versions of MariaDB the second.
_MYSQL = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port', 'datadir')",
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime', 'Connections')",
)

_CLOCK = sa.select(now_us())
_CLOCK_OF_MYSQL = sa.text("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")


class Life(NamedTuple):
    """One life of a server: from a start to the next one, in seconds by its clock (0.0 if unknown).

    `identity` names the server and the history of its data. `started` may differ by `spread` within one life.
    """

    identity: str
    started: float
    spread: float = 0.0
    connections: int = 0
    another: str = "it is another server than before, or its data have another history; it may have lost locks"

    def is_another_start(self, former: Life) -> bool:
        return abs(former.started - self.started) > self.spread or self.connections < former.connections


def life_of(raw: sa.Connection, database: Database) -> Life:
    if database.family == "postgresql":
        names, starts = (_answer(raw, question) for question in _POSTGRESQL)
        return Life(str(names[0][0]) if names else database.address, float(starts[0][0]) if starts else 0.0)
    variables, status = (_answer(raw, question) for question in _MYSQL)
    identity = ":".join(sorted([f"{name}={value}" for name, value in variables]))
    counts = {str(name): int(value) for name, value in status}
    if not counts:
        return Life(identity or database.address, 0.0)
    return Life(identity, clock_us(raw) / 1_000_000 - counts["Uptime"], SAME_START, counts["Connections"])


def life_of_file(file: DatabaseFile) -> Life:
    # Without a time of birth, the life is this connection's only.
    born = file.born_ns or f"opened {now_ns()}"
    return Life(f"{file.path}:{file.device}:{file.inode}:{born}", 0.0, another=REPLACED)


def clock_us(raw: sa.Connection) -> int:
    return int(raw.execute(_CLOCK_OF_MYSQL if raw.dialect.name in ("mysql", "mariadb") else _CLOCK).scalar_one())


def _answer(raw: sa.Connection, question: str) -> list[Any]:
    try:
        return list(raw.execute(sa.text(question)).fetchall())
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return []


class History:
    """One client's memory of its database. Locks, even of earlier connections, may be held until `held_ns`."""

    def __init__(self, address: str, by_session: bool) -> None:
        self._address = address
        self._by_session = by_session
        self.held_ns = 0
        self._life: Life | None = None
        self._leap = ""
        self._offset = Offset(DRIFT)

    def doubt_about(self, life: Life) -> str:
        """Return why locks of the former connection may be gone, or ""."""
        former = self._life
        if former is None:
            return ""
        if self._leap:
            return self._leap
        if self._by_session:
            return "the connection has ended, and with it the locks of its session"
        if former.identity != life.identity:
            return life.another
        if life.is_another_start(former):
            return "it was restarted; it may have lost locks"
        return ""

    def note(self, life: Life) -> None:
        self._life = life
        self._leap = ""

    def forget(self) -> None:
        self._life = None
        self._leap = ""

    def is_due(self) -> bool:
        return now_ns() - self._offset.at_ns >= READ_EVERY_NS

    def read_clock(self, raw: sa.Connection) -> str:
        """Read the clock; return why locks may have expired early, or ""."""
        sent_ns = now_ns()
        server_us = clock_us(raw)
        jump_ns = self._offset.note(sent_ns, now_ns(), server_us)
        if jump_ns < 0:
            by = -jump_ns / SECOND
            logger.warning("the clock of database %s was set back by %.3f s: its locks stay longer", self._address, by)
        if jump_ns > 0:
            self._leap = Leap(jump_ns, sent_ns).described()
        return self._leap
