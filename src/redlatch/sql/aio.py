"""The client for asyncio of a database."""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass, field

from redlatch import aio
from redlatch.guard.settings import Guard
from redlatch.masters.cluster import HostMap
from redlatch.options import AsyncClientOptions, Masters, takes
from redlatch.quorum.policy import Retry
from redlatch.sql.clients import DEFAULT_ATTEMPT, DEFAULT_RETRY, OnDatabase, Source, make_table
from redlatch.votes.units import SECOND
from redlatch.wire.dial.scripting import Scripts
from redlatch.wire.engine.net import now_ns


@dataclass(frozen=True, repr=False, eq=False)
class AsyncDatabaseOptions(AsyncClientOptions):
    database: Source
    _: KW_ONLY
    table: str | None = None
    mode: str = "table"
    dialect: str = "redlatch"
    attempt_timeout: float | None = DEFAULT_ATTEMPT
    retry: Retry | None = DEFAULT_RETRY

    masters: Masters = field(default=(), init=False)
    guard: Guard | None = field(default=None, init=False)
    next: Masters | None = field(default=None, init=False)
    host_map: HostMap | None = field(default=None, init=False)
    scripts: Scripts = field(default="auto", init=False)
    synced: bool | int = field(default=False, init=False)


class AsyncClient(OnDatabase, aio.AsyncClient):
    """A lock client for asyncio whose only master is a database.

    Its plain, fenced and re-entrant locks, multi-locks and batches are those of `redlatch.AsyncClient`. Other kinds of
    locks need a server of Redis.

    Args:
        database: a URL of SQLAlchemy for PostgreSQL, MySQL, MariaDB or SQLite, or an Engine or AsyncEngine. The client
            opens one connection of its own, in AUTOCOMMIT.
        table: the table of locks, perhaps as "schema.table"; `create_table` makes it. Default "redlatch_lock".
        mode: "table" keeps each lock in a row. "session" uses the database's advisory locks or GET_LOCK, which need no
            table, and are freed when the connection breaks. Default "table".
        dialect: "redlatch", or "shedlock" for the table of ShedLock, whose clients need `usingDbTime`. Default
            "redlatch".
        ttl: seconds that a lock lives unless it is extended, by the database's clock. Default 10.
        timeout: seconds that a lock waits that has no timeout of its own. Default: no limit.
        patience: seconds, within its timeout, that an acquire keeps trying while the database does not answer. Then it
            raises `QuorumUnavailable`. Default 0.
        retry: the pauses between attempts where the database does not notify waiters. Default `Retry(0.01, 0.25)`.
        wakeups: "auto" wakes waiters by LISTEN and NOTIFY of PostgreSQL. "poll" tries again after the pauses of
            `retry`. Default "auto".
        owner: the name of the holder in the table: at most 64 bytes that can be printed. Default "host:pid".
        attempt_timeout: seconds that one attempt waits for the database's answer. Default 2.
        prefix, drift_factor, wait_release, on_lost, handoff, max_waiters, refuse_late, heartbeat: as for
            `redlatch.AsyncClient`.

    Raises:
        ConfigurationError, TypeError: an argument is invalid; the message names it.
    """

    @takes(AsyncDatabaseOptions)
    def __init__(self, options: AsyncDatabaseOptions) -> None:
        self._open(options)

    async def create_table(self) -> None:
        """Make the table of locks, unless it exists. Call this before the client is used.

        Raises:
            ConfigurationError: `mode` is "session", or `dialect` is "shedlock".
            QuorumUnavailable: the database cannot be reached, or refuses.
        """
        await asyncio.to_thread(make_table, self._database, self._settings)

    async def close(self, release: bool = False, timeout: float = 1.0) -> None:
        """As for `redlatch.AsyncClient`; it also waits for the connection to be closed, at most `timeout` seconds."""
        began_ns = now_ns()
        await super().close(release, timeout)
        for pause in self._closes(began_ns + int(timeout * SECOND)):
            await asyncio.sleep(pause)
