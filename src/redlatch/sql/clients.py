"""The common part of both database clients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy import URL
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable

from redlatch.errors import ConfigurationError, QuorumUnavailable
from redlatch.locks.batch import AnyLock
from redlatch.locks.factory import BaseClient
from redlatch.options import Wakeups, owner_name
from redlatch.quorum.hold import Hold
from redlatch.quorum.policy import Retry
from redlatch.sql.connection import connect
from redlatch.sql.database import Database
from redlatch.sql.dialling import DatabaseDial
from redlatch.sql.faults import code_of, text_of
from redlatch.sql.settings import REDLATCH, SHEDLOCK, Settings
from redlatch.sql.shedlock import NAME_LENGTH, is_shedlock_name
from redlatch.votes.kinds import FAMILY, Declaration
from redlatch.wire.bridge.bridge import BackendLost
from redlatch.wire.dial.connect import Dialler
from redlatch.wire.engine.net import now_ns

Source = str | URL | Engine | AsyncEngine

# A statement costs a database more than a command costs a server of Redis.
DEFAULT_RETRY = Retry(0.01, 0.25)

# A commit takes as long as the disk, and no other master waits for it.
DEFAULT_ATTEMPT = 2.0

CLOSING_PAUSE = 0.001


def _one_row(declared: Declaration, key: bytes) -> list[bytes]:
    return [key] * len(declared.suffixes)


class OnDatabase(BaseClient):
    _labels = False

    _database: Database
    _dial: DatabaseDial
    _settings: Settings
    _awaited = False

    def _open(self, options: Any) -> None:
        self._database = Database(options.database)
        self._settings = Settings.of(
            self._database.family, options.table, options.mode, options.dialect, owner_name(options.owner)
        )
        self._dial = DatabaseDial(self._settings, self._database)
        super()._open(options)
        self._driver.schedule.keys.possible = False
        if self._settings.dialect == SHEDLOCK:
            self._key_of = partial(_key_for_shedlock, self._key_of)
            self._hold_named = partial(_hold_for_shedlock, self._key_of, self._hold_of)

    def _wakeups(self, wakeups: Wakeups) -> Wakeups:
        return "poll" if wakeups == "auto" and self._database.family != "postgresql" else wakeups

    def _masters_of(self, masters: object) -> list[Any]:
        return [self._database]

    @property
    def _dialler(self) -> Callable[..., Any]:
        return partial(Dialler, connect=self._dial)

    def _closes(self, until_ns: int) -> Iterator[float]:
        if self._awaited:
            return
        self._awaited = True
        # A forked child has only its parent's connection, and no thread to close it.
        while (
            self._dial.is_open() and now_ns() < until_ns and not self._driver.status.forked and not sys.is_finalizing()
        ):
            yield CLOSING_PAUSE

    def _no_scripts(self) -> str:
        return f"a database has plain, fenced and re-entrant locks; {FAMILY} need a server of Redis or Valkey"

    # A lock is one row. So any name may have a fence.
    _keys_of = staticmethod(_one_row)

    def _new(
        self,
        lock_of: type[AnyLock],
        name: str | bytes,
        ttl: float | None,
        options: Mapping[str, Any],
        declared: Declaration | None = None,
        make: Callable[[list[bytes]], Any] | None = None,
    ) -> AnyLock:
        if options.get("fence") and not self._settings.has_fences:
            raise ConfigurationError("fence: only locks with mode='table' and dialect='redlatch' have fences")
        return super()._new(lock_of, name, ttl, options, declared, make)


def _key_for_shedlock(key_of: Callable[[bytes, object], bytes], prefix: bytes, name: object) -> bytes:
    key = key_of(prefix, name)
    if not is_shedlock_name(key):
        raise ConfigurationError(
            f"name: ShedLock's table has names of at most {NAME_LENGTH} characters of text, prefix included"
        )
    return key


def _hold_for_shedlock(
    key_of: Callable[[bytes, object], bytes], hold_of: type[Hold], prefix: bytes, name: Any, kind: Any
) -> Hold:
    return hold_of(name, key_of(prefix, name), kind)


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
