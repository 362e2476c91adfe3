"""What a client remembers of its database, so that it notices when the database may have forgotten locks.

A database forgets when a standby is promoted that lagged, when it is restored, or when it is restarted without durable
commits. Its clock makes it forget, too, if it is set forward: rows expire early. A client reports that: its holders
are in doubt until the database confirms their locks (see `redlatch.quorum.policy.Doubts`).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from redlatch.guard.clock import Leap, Offset
from redlatch.sql.database import Database
from redlatch.sql.table import now_us
from redlatch.votes.units import SECOND
from redlatch.wire.net import now_ns

logger = logging.getLogger("redlatch")

# How often the clock is read while the database is used, or has locks of this client.
READ_EVERY_NS = SECOND

# The share of the time by which the database's clock may go wrong, as the default of `drift_factor`.
DRIFT = 0.01

# How far two computed starts of one server may differ, in seconds: MySQL reports its uptime in whole seconds.
SAME_START = 1.2

_IDENTITIES = {
    # The timeline changes with each promotion of a standby.
    "postgresql": (
        "SELECT system_identifier::text || ':' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) "
        "FROM pg_control_system()"
    ),
    "mysql": "SELECT CONCAT(@@hostname, ':', @@port, ':', @@datadir)",
}

_STARTS = {
    "postgresql": "SELECT extract(epoch FROM pg_postmaster_start_time())::float8",
    "mysql": "SHOW GLOBAL STATUS LIKE 'Uptime'",
}


# The clock, whatever the time zone of the connection.
_CLOCK = sa.select(now_us())
_CLOCK_OF_MYSQL = sa.text("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")


class Life(NamedTuple):
    """One life of a server: from a start to the next one.

    Args:
        identity: names the server and the history of its data.
        started: when it was started, in seconds by its own clock; 0.0 if that is not known.
    """

    identity: str
    started: float


def life_of(raw: sa.Connection, database: Database) -> Life:
    """Ask the server for its identity and its start."""
    identity = _answer(raw, _IDENTITIES.get(database.family), 0)
    answer = _answer(raw, _STARTS.get(database.family), -1)
    started = float(answer or 0.0)
    if answer is not None and database.family == "mysql":
        started = clock_us(raw) / 1_000_000 - started
    return Life(str(identity or database.address), started)


def clock_us(raw: sa.Connection) -> int:
    """Return the clock of the database, in microseconds since 1970."""
    return int(raw.execute(_CLOCK_OF_MYSQL if raw.dialect.name in ("mysql", "mariadb") else _CLOCK).scalar_one())


def _answer(raw: sa.Connection, question: str | None, column: int) -> str | None:
    """Return one column of the answer; None if there is no question, or the user may not ask."""
    if question is None:
        return None
    try:
        return str(raw.execute(sa.text(question)).one()[column])
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return None


class History:
    """What one client remembers of its database from one connection to the next.

    Args:
        address: of the database, for the log.
        by_session: whether locks end with their connection.
    """

    def __init__(self, address: str, by_session: bool) -> None:
        self._address = address
        self._by_session = by_session
        self._life: Life | None = None
        # What the clock has done since the last doubt.
        self._leap = ""
        self._offset = Offset(DRIFT)

    def doubt_about(self, life: Life) -> str:
        """Return why locks of the former connection may be gone on this one, or ""."""
        former = self._life
        if former is None:
            return ""
        if self._leap:
            return self._leap
        if self._by_session:
            return "the connection has ended, and with it the locks of its session"
        if former.identity != life.identity:
            return "it is another server than before, or its data have another history; it may have lost locks"
        if abs(former.started - life.started) > SAME_START:
            return "it was restarted; it may have lost locks"
        return ""

    def note(self, life: Life) -> None:
        """Remember the server of a new connection, after earlier locks were put in doubt if `doubt_about` said so."""
        self._life = life
        self._leap = ""

    def forget(self) -> None:
        """Forget the server, because all locks are in doubt: the next connection need not put them in doubt again."""
        self._life = None
        self._leap = ""

    def is_due(self) -> bool:
        """Return whether the clock should be read."""
        return now_ns() - self._offset.at_ns >= READ_EVERY_NS

    def read_clock(self, raw: sa.Connection) -> str:
        """Read the clock of the database. Return why its locks may have expired early, or ""."""
        sent_ns = now_ns()
        server_us = clock_us(raw)
        jump_ns = self._offset.note(sent_ns, now_ns(), server_us)
        if jump_ns < 0:
            by = -jump_ns / SECOND
            logger.warning("the clock of database %s was set back by %.3f s: its locks stay longer", self._address, by)
        if jump_ns > 0:
            self._leap = Leap(jump_ns, sent_ns).described()
        return self._leap
