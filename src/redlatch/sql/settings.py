"""The settings of a client of a database, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from redlatch.errors import ConfigurationError
from redlatch.sql.shedlock import DEFAULT_SHEDLOCK_TABLE, shedlock_table
from redlatch.sql.table import DEFAULT_TABLE, named_table

MODES = TABLE, SESSION = "table", "session"
DIALECTS = REDLATCH, SHEDLOCK = "redlatch", "shedlock"


@dataclass(frozen=True)
class Settings:
    table: sa.Table | None
    dialect: str
    owner: str

    @property
    def by_session(self) -> bool:
        return self.table is None

    @property
    def channel(self) -> str:
        if self.table is None:
            return "redlatch"
        # pg_notify refuses a name of more than 63 bytes.
        return f"redlatch_{self.table.name}".encode()[:63].decode(errors="ignore")

    @property
    def has_fences(self) -> bool:
        return self.table is not None and self.dialect == REDLATCH

    @classmethod
    def of(cls, family: str, table: str | None, mode: str, dialect: str, owner: str) -> Settings:
        if mode not in MODES:
            raise ConfigurationError(f"mode: 'table' or 'session' is needed, got {mode!r}")
        if dialect not in DIALECTS:
            raise ConfigurationError(f"dialect: 'redlatch' or 'shedlock' is needed, got {dialect!r}")
        if mode == SESSION:
            if family == "sqlite":
                raise ConfigurationError("mode: SQLite has no locks of a session; use mode='table'")
            if table is not None or dialect != REDLATCH:
                raise ConfigurationError("mode: locks of a session have no table; leave out table and dialect")
            return cls(None, dialect, owner)
        if dialect == SHEDLOCK:
            if family == "sqlite":
                raise ConfigurationError("dialect: ShedLock does not support SQLite; use another database")
            return cls(shedlock_table(table or DEFAULT_SHEDLOCK_TABLE), dialect, owner)
        return cls(named_table(table or DEFAULT_TABLE), dialect, owner)
