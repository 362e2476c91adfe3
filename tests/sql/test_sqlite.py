"""What only SQLite does: its file is replaced under a client, one writer locks all of it, or it is no file at all."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.faces import PATIENCE, await_true

from redlatch import ConfigurationError, LockLost, QuorumUnavailable, sql

from .conftest import FindUrl, SqlFace, execute
from .test_files import PRIVATE

each_driver = pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
each_journal = pytest.mark.parametrize("journal", ["delete", "wal"])


def file_of(url: str) -> Path:
    return Path(sa.make_url(url).database or "")


def deploy(path: Path) -> None:
    """Rename another database over the file, as a deployment or a restore does."""
    new = path.with_name("new.db")
    sql.Client(f"sqlite:///{new}").create_table()
    forget_journals(path)
    os.replace(new, path)


def make_again(path: Path) -> None:
    """Delete the file, and make it again."""
    path.unlink()
    forget_journals(path)
    sql.Client(f"sqlite:///{path}").create_table()


def move_away(path: Path) -> None:
    """Rename the file, and make another one in its place."""
    path.rename(path.with_name("old.db"))
    forget_journals(path)
    sql.Client(f"sqlite:///{path}").create_table()


def forget_journals(path: Path) -> None:
    for end in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)


@contextmanager
def writer(url: str, begin: str = "BEGIN EXCLUSIVE") -> Iterator[None]:
    """Keep the database locked by a transaction of another program."""
    connection = sqlite3.connect(file_of(url), isolation_level=None)
    connection.execute(begin)
    try:
        yield
    finally:
        connection.execute("COMMIT")
        connection.close()


# --- the file is replaced ---------------------------------------------------------------------------------


@each_driver
@each_journal
@pytest.mark.parametrize("replace", [deploy, make_again, move_away])
def test_the_holders_of_a_file_that_was_replaced_are_told(
    connect: SqlFace,
    with_table: FindUrl,
    driver: str,
    journal: str,
    replace: Callable[[Path], None],
    name: str,
) -> None:
    """Both files had a holder, the first one with no doubt, and all its later calls failed (row 75)."""
    url = with_table(driver)
    execute(url.replace("+aiosqlite", ""), f"PRAGMA journal_mode = {journal}")
    lost = threading.Event()
    client = connect(url, ttl=300.0, on_lost=lambda *_: lost.set())
    told, silent = client.lock(name), client.lock(name + "-silent")
    assert told.acquire(timeout=PATIENCE) and silent.acquire(timeout=PATIENCE)
    replace(file_of(url))
    # No call of the client is needed.
    assert lost.wait(PATIENCE)
    assert connect(url).lock(name).acquire(timeout=PATIENCE)
    for lock in (told, silent):
        assert lock.remaining() == 0
        with pytest.raises(LockLost, match="forgotten"):
            lock.raw.check()
        with pytest.raises(LockLost):
            lock.release()
    later = client.lock(name + "-later")
    assert later.acquire(timeout=PATIENCE)
    later.release()


@pytest.mark.parametrize("linked", ["the file", "its folder"])
def test_the_holders_of_a_file_whose_link_was_turned_are_told(threads: SqlFace, tmp_path: Path, linked: str) -> None:
    """As for "current", which a deployment turns to the folder of the next release: both files had a holder."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        sql.Client(f"sqlite:///{tmp_path / folder / 'locks.db'}").create_table()
    current, lost = tmp_path / "current", threading.Event()
    inner, url = ("locks.db", f"sqlite:///{current}") if linked == "the file" else ("", f"sqlite:///{current}/locks.db")
    current.symlink_to(tmp_path / "first" / inner)
    held = threads(url, ttl=300.0, on_lost=lambda *_: lost.set()).lock("job")
    assert held.acquire(timeout=PATIENCE)
    (tmp_path / "next").symlink_to(tmp_path / "second" / inner)
    os.replace(tmp_path / "next", current)
    assert lost.wait(PATIENCE)
    assert threads(url).lock("job").acquire(timeout=PATIENCE)
    with pytest.raises(LockLost, match="forgotten"):
        held.raw.check()


@each_journal
@pytest.mark.parametrize("replace", [deploy, make_again])
def test_the_next_call_sees_that_the_file_was_replaced(
    threads: SqlFace, with_table: FindUrl, journal: str, replace: Callable[[Path], None], name: str
) -> None:
    """In the mode WAL SQLite would go on with the file that has no name any more."""
    url = with_table("sqlite")
    execute(url, f"PRAGMA journal_mode = {journal}")
    client = threads(url, ttl=300.0)
    first = client.lock(name)
    assert first.acquire(timeout=PATIENCE)
    replace(file_of(url))
    assert threads(url).lock(name + "-new").acquire(timeout=PATIENCE)
    # It must not win in the old file.
    assert not client.lock(name + "-new").acquire(timeout=0.5)
    assert not first.owned()


def test_a_file_that_is_put_back_keeps_its_locks(threads: SqlFace, with_table: FindUrl, name: str) -> None:
    url = with_table("sqlite")
    path = file_of(url)
    client = threads(url, ttl=300.0)
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    path.rename(path.with_name("aside.db"))
    with pytest.raises(QuorumUnavailable, match="its file was deleted; put it back"):
        client.lock(name + "x").acquire(timeout=0.3)
    assert not path.exists(), "the client has made an empty file"
    path.with_name("aside.db").rename(path)
    await_true(lambda: client.health().masters[0].voting and lock.remaining() > 200)
    assert lock.owned()
    lock.release()


# --- a writer is busy -------------------------------------------------------------------------------------


def refuses(lock: Any, timeout: float) -> bool:
    """Return whether a lock is not won within a timeout.

    Its last attempt waits 0.1 s for the answer that the file is locked, and a busy machine may need longer.
    """
    try:
        return not lock.acquire(timeout=timeout)
    except QuorumUnavailable as error:
        return "1 did not answer within 0.1" in str(error)


@each_driver
@pytest.mark.parametrize("options", [{}, {"fence": True}])
def test_a_client_that_connects_while_another_program_writes_waits_for_its_timeout(
    connect: SqlFace, with_table: FindUrl, driver: str, options: dict[str, Any], name: str
) -> None:
    url = with_table(driver)
    with writer(url):
        began = time.monotonic()
        assert refuses(connect(url, attempt_timeout=1.0).lock(name, **options), 1.0)
        # SQLite itself would wait for five seconds.
        assert time.monotonic() - began < 4.0
        assert not connect(url, attempt_timeout=1.0).lock(name, **options).acquire(blocking=False)
        waiting = connect(url).lock(name, **options).start("acquire", timeout=PATIENCE)
    assert waiting.result(PATIENCE)


@each_driver
def test_a_client_that_is_connected_waits_for_a_writer_for_its_timeout(
    connect: SqlFace, with_table: FindUrl, driver: str, name: str
) -> None:
    url = with_table(driver)
    client = connect(url)
    held = client.lock(name, ttl=300.0)
    assert held.acquire(timeout=PATIENCE)
    with writer(url):
        assert refuses(client.lock(name + "x"), 1.0)
        assert not client.lock(name + "x").acquire(blocking=False)
        waiting = client.lock(name + "x").start("acquire", timeout=PATIENCE)
    assert waiting.result(PATIENCE)
    held.release()


@each_driver
@pytest.mark.parametrize("options", [{}, {"fence": True}])
def test_a_release_that_a_writer_delays_is_done_when_it_ends(
    connect: SqlFace, with_table: FindUrl, driver: str, options: dict[str, Any], name: str
) -> None:
    url = with_table(driver)
    held = connect(url).lock(name, ttl=300.0, **options)
    assert held.acquire(timeout=PATIENCE)
    with writer(url), pytest.raises(QuorumUnavailable, match="locked"):
        held.release()
    assert connect(url).lock(name, **options).acquire(timeout=PATIENCE)
    # The caller did not know that, and calls again.
    held.release()


@each_driver
def test_a_client_that_is_closed_does_its_delayed_releases(
    connect: SqlFace, with_table: FindUrl, driver: str, name: str
) -> None:
    url = with_table(driver)
    client = connect(url)
    held = client.lock(name, ttl=300.0)
    assert held.acquire(timeout=PATIENCE)
    with writer(url), pytest.raises(QuorumUnavailable, match="locked"):
        held.release()
    client.close()
    assert connect(url).lock(name).acquire(timeout=PATIENCE)


# Each child makes its client after the last one was forked.
TWENTY = """
import os, sys, traceback
from redlatch import sql
url, name = sys.argv[1:]
starts, start = os.pipe()
children = []
for _ in range(20):
    if child := os.fork():
        children.append(child)
        continue
    os.close(start)
    os.read(starts, 1)
    try:
        with sql.Client(url) as client, client.lock(name, timeout=30.0):
            pass
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
os.close(start)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@each_journal
def test_twenty_processes_that_start_together_all_get_the_lock(with_table: FindUrl, journal: str, name: str) -> None:
    url = with_table("sqlite")
    execute(url, f"PRAGMA journal_mode = {journal}")
    done = subprocess.run([sys.executable, "-c", TWENTY, url, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- no file ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Query string argument")
@pytest.mark.parametrize("url", PRIVATE)
def test_a_client_of_a_database_in_memory_is_refused(url: str) -> None:
    kind: Any = sql.AsyncClient if "aiosqlite" in url else sql.Client
    with pytest.raises(ConfigurationError, match="database: a database in memory"):
        kind(url)


def test_an_engine_that_opens_no_file_is_refused(connect: SqlFace, tmp_path: Path, name: str) -> None:
    engine = sa.create_engine(
        f"sqlite:///{tmp_path / 'locks.db'}",
        creator=lambda: sqlite3.connect("file:x?mode=memory&cache=shared", uri=True),
    )
    with pytest.raises(ConfigurationError, match=r"^database: .*in memory or temporary.*name a file"):
        connect(engine).lock(name).acquire(timeout=PATIENCE)
    engine.dispose()
