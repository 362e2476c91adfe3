"""The classes of errors: SQLSTATEs of PostgreSQL, numbers of MySQL and MariaDB, result codes of SQLite."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

# A row, a table or a database is locked, or there was a deadlock.
BUSY = {"55P03", "40P01", "40001", 1205, 1213, 1020, 5, 6}

# The server has become a standby, or shuts down.
ENDING = {"25006", "57P01", "57P02", "57P03", 1290, 1792, 1836, 1053}


def text_of(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    # Not the statement, its parameters or PostgreSQL's details, which may have the token of a holder.
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    return " ".join(str(primary or original).split()) or type(original).__name__


def code_of(error: DBAPIError) -> object:
    original = error.orig
    arguments = getattr(original, "args", ())
    # Some drivers of MySQL also have a SQLSTATE, which says less.
    if arguments and isinstance(arguments[0], int):
        return arguments[0]
    for name in ("sqlstate", "pgcode", "sqlite_errorcode"):
        code = getattr(original, name, None)
        if code is not None:
            return code
    return None


def is_busy(error: DBAPIError) -> bool:
    code = code_of(error)
    if hasattr(error.orig, "sqlite_errorcode") and isinstance(code, int):
        code &= 0xFF
    return not error.connection_invalidated and code in BUSY


def is_over(error: DBAPIError) -> bool:
    code = code_of(error)
    return error.connection_invalidated or code is None or code in ENDING
