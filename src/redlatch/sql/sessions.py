"""Locks that belong to a connection: advisory locks of PostgreSQL, GET_LOCK of MySQL and MariaDB.

The database frees them when the connection breaks. The client frees a lock that was not extended within its ttl.
"""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa

from redlatch.sql.connection import OwnConnection
from redlatch.votes.units import MILLISECOND
from redlatch.wire.bridge.bridge import BackendLost
from redlatch.wire.engine.net import now_ns

LOOK_EVERY = 0.5

# The remaining time of a lock is unknown, so waiters ask again.
ASK_AGAIN_MS = 1000

# MySQL allows names of 64 characters.
MYSQL_PREFIX, DIGEST_BYTES = "redlatch:", 20


class Session:
    ends_with_connection = True
    pause = LOOK_EVERY

    _number: str

    def __init__(self, connection: OwnConnection) -> None:
        self._connection = connection
        self._session: int | None = None
        self._held: dict[bytes, tuple[bytes, int]] = {}

    # --- statements --------------------------------------------------------------------------------

    def _lock(self, key: bytes) -> bool:
        raise NotImplementedError

    def _unlock(self, key: bytes) -> bool:
        raise NotImplementedError

    def _is_locked(self, key: bytes) -> bool:
        raise NotImplementedError

    def _stands(self) -> bool:
        """Return True if the database answers; raise BackendLost if another session of it answers."""
        number = self._scalar(self._number)
        if self._session is not None and number != self._session:
            raise BackendLost("a pooler has given the connection to another session of the database")
        self._session = number
        return True

    def _scalar(self, statement: str, **values: Any) -> Any:
        text = sa.text(statement)
        return self._connection.run(lambda connection: connection.execute(text, values).scalar())

    # --- commands ----------------------------------------------------------------------------------

    def acquire(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        self.expire()
        # A database gives a lock to its own connection again.
        if key in self._held or not self._lock(key):
            return False
        self._held[key] = token, now_ns() + ttl_ms * MILLISECOND
        return True

    def acquire_fenced(self, key: bytes, token: bytes, ttl_ms: int, first: int, last: int) -> int:
        raise NotImplementedError("locks of a session have no fences")

    def confirm(self, key: bytes, token: bytes, first: int, last: int) -> bool:
        raise NotImplementedError("locks of a session have no fences")

    def extend(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        if not self.owned(key, token):
            return False
        until = max(self._held[key][1], now_ns() + ttl_ms * MILLISECOND)
        self._held[key] = token, until
        return True

    def release(self, key: bytes, token: bytes) -> bool:
        self.expire()
        if self._held.get(key, (b"", 0))[0] != token:
            return False
        had = self._unlock(key)
        del self._held[key]
        return had

    def owned(self, key: bytes, token: bytes) -> bool:
        # The question also checks the connection.
        self.expire()
        return self._held.get(key, (b"", 0))[0] == token and self._stands()

    def left_ms(self, key: bytes) -> int | None:
        self.expire()
        return ASK_AGAIN_MS if key in self._held or self._is_locked(key) else None

    def holder(self, key: bytes) -> tuple[int, int, bytes] | None:
        left = self.left_ms(key)
        return None if left is None else (left, 0, b"")

    def tick(self) -> None:
        self.expire()
        if self._held:
            self._stands()

    def expire(self) -> None:
        now = now_ns()
        for key in [key for key, (_, until) in self._held.items() if until <= now]:
            self._unlock(key)
            del self._held[key]


class PostgresSession(Session):
    _number = "SELECT pg_backend_pid()"

    def __init__(self, connection: OwnConnection, channel: str | None) -> None:
        super().__init__(connection)
        self._channel = channel

    def _lock(self, key: bytes) -> bool:
        return bool(self._scalar("SELECT pg_try_advisory_lock(:number)", number=number_of(key)))

    def _unlock(self, key: bytes) -> bool:
        if self._channel is None:
            return bool(self._scalar("SELECT pg_advisory_unlock(:number)", number=number_of(key)))
        # The notice leaves after the statement, when the lock is free.
        unlocks = "SELECT pg_advisory_unlock(:number), pg_notify(:channel, :name)"
        return bool(self._scalar(unlocks, number=number_of(key), channel=self._channel, name=key.hex()))

    def _is_locked(self, key: bytes) -> bool:
        number = number_of(key) & (1 << 64) - 1
        found = self._scalar(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid = :high "
            "AND objid = :low AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            high=number >> 32,
            low=number & 0xFFFFFFFF,
        )
        return found is not None


class MySQLSession(Session):
    _number = "SELECT CONNECTION_ID()"

    def _lock(self, key: bytes) -> bool:
        return bool(self._scalar("SELECT GET_LOCK(:name, 0)", name=name_of(key)))

    def _unlock(self, key: bytes) -> bool:
        return bool(self._scalar("SELECT RELEASE_LOCK(:name)", name=name_of(key)))

    def _is_locked(self, key: bytes) -> bool:
        return self._scalar("SELECT IS_USED_LOCK(:name)", name=name_of(key)) is not None


def number_of(key: bytes) -> int:
    """Return the number of an advisory lock: BLAKE2b of its key with 8 bytes, signed and little-endian."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)


def name_of(key: bytes) -> str:
    """Return the name of a lock of MySQL: a prefix, and BLAKE2b of its key with 20 bytes in hexadecimal."""
    return MYSQL_PREFIX + hashlib.blake2b(key, digest_size=DIGEST_BYTES).hexdigest()
