"""The file of a SQLite database, and databases that are none."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from redlatch import ConfigurationError, MasterRefused
from redlatch.sql.files import DatabaseFile, file_at, named_path, path_of, refuse_private
from redlatch.sql.table import lock_table

TABLE = lock_table()

# Every spelling of a database that a process, or a connection, has for itself (row 68).
PRIVATE = [
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:///:memory:?cache=shared",
    "sqlite:///file::memory:?uri=true",
    "sqlite:///file::memory:?cache=shared&uri=true",
    "sqlite:///file:%3Amemory%3A?uri=true",
    "sqlite:///file:?uri=true",
    "sqlite:///file:x?mode=memory&cache=shared&uri=true",
    "sqlite:///file:x%3Fmode=memory%26cache=shared?uri=true",
    "sqlite:///file:x?mode=MEMORY&uri=true",
    "sqlite:///file:/x?vfs=memdb&uri=true",
    "sqlite+aiosqlite://",
    "sqlite+aiosqlite:///:memory:",
    "sqlite+aiosqlite:///file:x?mode=memory&cache=shared&uri=true",
    "sqlite+aiosqlite:///file::memory:?cache=shared&uri=true",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "locks.db").write_bytes(b"")
    return tmp_path / "locks.db"


@pytest.mark.parametrize("url", PRIVATE)
def test_a_database_of_one_process_is_refused_in_every_spelling(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"in memory belongs to one process.*name a file"):
        refuse_private(sa.make_url(url))


@pytest.mark.parametrize("option", ["nolock=1", "nolock=2", "nolock=01", "nolock=yes", "vfs=unix-none"])
def test_a_file_that_sqlite_would_not_lock_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match="would not lock its file"):
        refuse_private(sa.make_url(f"sqlite:///file:/x/locks.db?{option}&uri=true"))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///locks.db",
        "sqlite:////var/lib/locks.db",
        "sqlite:///file:locks.db?uri=true",
        "sqlite:///file:/x/locks.db?mode=rwc&cache=private&nolock=0&uri=true",
        "sqlite+aiosqlite:///memory.db",
    ],
)
def test_a_file_is_accepted(url: str) -> None:
    refuse_private(sa.make_url(url))


@pytest.mark.parametrize("name", [":memory:", "", "file:x?mode=memory&cache=shared", "file:/x?vfs=memdb", "file:?a=b"])
def test_an_engine_that_opens_no_file_is_refused_when_it_connects(name: str) -> None:
    engine = sa.create_engine("sqlite:///locks.db", creator=lambda: sqlite3.connect(name, uri=True))
    with engine.connect() as raw, pytest.raises(MasterRefused, match=r"^db is in memory or temporary.*name a file"):
        path_of(raw, "db", TABLE)
    engine.dispose()


def test_the_table_decides_which_file_it_is(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"

    def attach(schemas: list[str], raw: Any, _: object) -> None:
        raw.execute(f"ATTACH '{other}' AS other")
        raw.execute("ATTACH ':memory:' AS brief")
        for schema in schemas:
            raw.execute(f"CREATE TABLE {schema}.redlatch_lock (name)")

    for schemas, table, found in (
        ([], TABLE, path),
        (["main", "brief"], TABLE, path),
        (["brief"], lock_table(schema="other"), other),
        (["other", "temp"], TABLE, None),
        (["brief"], TABLE, None),
        ([], lock_table(schema="brief"), None),
        ([], lock_table(schema="nothing"), None),
    ):
        for file in (path, other):
            file.write_bytes(b"")
        engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
        sa.event.listen(engine, "connect", partial(attach, schemas))
        with engine.connect() as raw:
            if found is None:
                with pytest.raises(MasterRefused, match="in memory or temporary"):
                    path_of(raw, "db", table)
            else:
                assert path_of(raw, "db", table) == str(found)
        engine.dispose()


def test_a_file_stays_the_same_while_it_is_written(path: Path) -> None:
    file = file_at(str(path))
    path.write_bytes(b"more")
    assert not file.is_replaced() and file_at(str(path)) == file


def test_another_file_or_none_at_its_path_is_seen(path: Path, tmp_path: Path) -> None:
    file = file_at(str(path))
    (tmp_path / "new.db").write_bytes(b"")
    os.replace(tmp_path / "new.db", path)
    assert file.is_replaced()
    file = file_at(str(path))
    path.unlink()
    assert file.is_replaced()
    with pytest.raises(FileNotFoundError):
        file_at(str(path))


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:///file:{}?uri=true", "sqlite:///file://{}?uri=true"])
def test_a_file_is_watched_by_the_name_in_the_url(path: Path, tmp_path: Path, form: str) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    assert os.path.samefile(named_path(sa.make_url(form.format(link)), str(path)), link)
    assert named_path(sa.make_url(form.format(link)), str(path)) != str(path)
    assert named_path(sa.make_url(form.format(tmp_path / "other.db")), str(path)) == str(path)


def test_a_number_that_is_used_again_has_another_time_of_birth(path: Path) -> None:
    """Nothing has the file open here, so the system may give its number to the next one."""
    file = file_at(str(path))
    if not file.born_ns:
        pytest.skip("this file system does not tell the time of birth")
    seen: set[DatabaseFile] = {file}
    for _ in range(3):
        time.sleep(0.02)  # the clock of a file system ticks each 4 ms, or each 10 ms
        path.unlink()
        path.write_bytes(b"")
        assert file_at(str(path)) not in seen
        seen.add(file_at(str(path)))
