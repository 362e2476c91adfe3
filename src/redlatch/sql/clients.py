from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import URL
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from redlatch.errors import ConfigurationError
from redlatch.locks.batch import AnyLock
from redlatch.locks.factory import BaseClient
from redlatch.options import Wakeups, owner_name
from redlatch.quorum.hold import Hold
from redlatch.quorum.policy import Retry
from redlatch.sql.database import Database
from redlatch.sql.dialling import DatabaseDial
from redlatch.sql.settings import SHEDLOCK, Settings
from redlatch.sql.shedlock import NAME_LENGTH, is_shedlock_name
from redlatch.votes.kinds import FAMILY, Declaration
from redlatch.wire.dial.connect import Dialler
from redlatch.wire.engine.net import now_ns

Source = str | URL | Engine | AsyncEngine

# A statement costs a database more than a command costs a server of Redis.
DEFAULT_RETRY = Retry(0.01, 0.25)

# A commit takes as long as the disk, and no other master waits for it.
DEFAULT_ATTEMPT = 2.0

CLOSING_PAUSE = 0.001


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
        # Only the first close waits.
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

    def _new(
        self,
        lock_of: type[AnyLock],
        name: str | bytes,
        ttl: float | None,
        options: Mapping[str, Any],
        declared: Declaration | None = None,
        make: Callable[[bytes], Any] | None = None,
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
