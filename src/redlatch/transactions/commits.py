"""The meaning of a failed COMMIT: surely rolled back, or in doubt.

If the connection breaks before the answer to COMMIT, or the wait is interrupted, the server may still commit. Then the
next holder of the lock could read data from before that commit.

So every error counts as in doubt, except those by which a server or SQLite reports a transaction that it has not
committed. A false doubt only costs the rest of the ttl.
"""

from __future__ import annotations

from collections.abc import Iterator

# SQLSTATEs of PostgreSQL for a broken connection, a shutdown, a fault of the server, or (40003) an unknown completion.
DOUBTFUL_CLASSES = ("08", "57", "58", "F0", "XX")
DOUBTFUL_STATES = ("40003",)

# Errors of MySQL and MariaDB: the row has changed, the wait for it was too long, a deadlock, a rolled back XA
# transaction, and a rollback by group replication.
MYSQL_ROLLED_BACK = (1020, 1205, 1213, 1614, 3101)

# SQLITE_BUSY, SQLITE_LOCKED and SQLITE_CONSTRAINT (a deferred foreign key).
SQLITE_REFUSED = (5, 6, 19)


def surely_rolled_back(error: BaseException) -> bool:
    """Return True if the error of a COMMIT, perhaps wrapped by SQLAlchemy or Django, says that it was not committed."""
    return any(_says_rolled_back(each) for each in _with_origins(error))


def _with_origins(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        origin = getattr(current, "orig", None)
        current = origin if isinstance(origin, BaseException) else current.__cause__


def _says_rolled_back(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return not state.startswith(DOUBTFUL_CLASSES) and state not in DOUBTFUL_STATES
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        # The low byte of an extended code is the primary code.
        return code & 0xFF in SQLITE_REFUSED
    return bool(error.args) and error.args[0] in MYSQL_ROLLED_BACK
