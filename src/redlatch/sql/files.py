"""The file of a SQLite database: whether other processes share it, and whether its path still leads to it."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import sqlalchemy as sa

from redlatch.errors import ConfigurationError, MasterRefused

CURE = "so a lock there excludes no other process; name a file, as in 'sqlite:////var/lib/app/locks.db'"

REPLACED = "its file was replaced or deleted; the new one may not have its locks"

# statx of Linux. The answer begins with a mask of what it has; the time of birth is at byte 80.
_AT_FDCWD, _STATX_BTIME, _STATX_BYTES = -100, 0x800, 256
_MASK, _BIRTH, _BIRTH_AT = "@I", "@qI", 80


class DatabaseFile(NamedTuple):
    """The file at a path. Another file may get its inode later, so it has a time of birth (0 if unknown)."""

    path: str
    device: int
    inode: int
    born_ns: int

    def is_replaced(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != (self.device, self.inode)


def file_at(path: str) -> DatabaseFile:
    found = os.stat(path)
    return DatabaseFile(path, found.st_dev, found.st_ino, _born_ns(path, found))


def _born_ns(path: str, found: os.stat_result) -> int:
    born: float | None = getattr(found, "st_birthtime", None)
    if born is not None:
        return int(born * 1e9)
    # Python shows it on Linux from 3.15 on.
    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer) != 0:
        return 0
    seconds, rest = struct.unpack_from(_BIRTH, answer, _BIRTH_AT)
    return seconds * 1_000_000_000 + rest if struct.unpack_from(_MASK, answer)[0] & _STATX_BTIME else 0


def path_of(raw: sa.Connection, address: str, table: sa.Table) -> str:
    """Return the path of the file that has the table, or would get it; refuse one that other processes cannot open."""
    paths = {name: path or "" for _, name, path in raw.exec_driver_sql("PRAGMA database_list")}
    path = paths.get(table.schema or _schema_of(raw, table.name, list(paths)), "")
    # A database of the system "memdb" has a path, but no file.
    if not os.path.exists(path):
        raise MasterRefused(f"{address} is in memory or temporary, {CURE}")
    return str(path)


def _schema_of(raw: sa.Connection, table: str, schemas: list[str]) -> str:
    # Temporary tables hide those of files.
    if len(schemas) == 1:
        return schemas[0]
    quote = raw.dialect.identifier_preparer.quote_identifier
    for schema in ["temp", *schemas]:
        if raw.exec_driver_sql(f"PRAGMA {quote(schema)}.table_info({quote(table)})").first() is not None:
            return schema
    return "main"


def named_path(url: sa.URL, found: str) -> str:
    """Return the path in a URL, without resolving links, if it leads to `found`."""
    name = os.path.abspath(_name_of(url)[0])
    return name if os.path.exists(name) and os.path.samefile(name, found) else found


def refuse_private(url: sa.URL) -> None:
    name, options = _name_of(url)
    if name in ("", ":memory:") or options & {("mode", "memory"), ("vfs", "memdb")}:
        raise ConfigurationError(f"database: a database in memory belongs to one process, {CURE}")
    # SQLite takes every number but 0 as yes.
    nolock = {value for option, value in options if option == "nolock"} - {"0", "no", "false", "off"}
    if nolock or ("vfs", "unix-none") in options:
        raise ConfigurationError("database: SQLite would not lock its file (nolock, vfs); leave out that option")


def _name_of(url: sa.URL) -> tuple[str, set[tuple[str, str]]]:
    name, query = url.database or "", [(option, str(value)) for option, value in url.query.items()]
    if name.startswith("file:"):
        name, _, more = name.partition("?")
        query += parse_qsl(more)
        name = unquote(name.removeprefix("file:"))
    return name, {(option, value.lower()) for option, value in query}
