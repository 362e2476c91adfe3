"""Attacks on whole clients: servers that die, hang or lie about the time; standbys, forks, lost tables."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults.clocks import Clock, compile_library
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool
from support.builds import implementation_named
from support.databases import DATABASE, USER, Server, Standby, server_of
from support.faces import PATIENCE, await_true, descriptors, in_thread, threads_named

from redlatch import ConfigurationError, LockError, LockLost, QuorumUnavailable, impl, sql
from redlatch.sql.connection import connect
from redlatch.wire.bridge.bridge import BackendLost

from .conftest import SERVERS, FindUrl, SqlFace, execute

ASKS_CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
    "mariadb": "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'redlatch'",
}
DRIVER = {"postgresql": "psycopg", "mariadb": "pymysql"}
ASYNC = {"postgresql": "asyncpg", "mariadb": "asyncmy"}
SCHEME = {"postgresql": "postgresql", "mariadb": "mysql"}

DURABLE = {"postgresql": (), "mariadb": ("--innodb-flush-log-at-trx-commit=2",)}

each_kind = pytest.mark.parametrize("kind", list(DRIVER))
each_mode = pytest.mark.parametrize("mode", ["table", "session"])
each_driver_in_one_mode = pytest.mark.usual(
    "what a dead server does to a driver is the same in both modes",
    {"kind": "postgresql", "own": "threads", "mode": "session"},
    {"kind": "postgresql", "own": "asyncio", "mode": "table"},
    {"kind": "mariadb", "own": "threads", "mode": "table"},
    {"kind": "mariadb", "own": "asyncio", "mode": "session"},
)


@pytest.fixture
def readable() -> Iterator[Path]:
    """Return a folder that the accounts of the servers can read, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="redlatch-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(params=["threads", "asyncio"])
def own(request: pytest.FixtureRequest, kind: str) -> Iterator[tuple[Server, str]]:
    """Return a server of a test's own, which it may break, and its URL with a driver for threads or for asyncio."""
    # Its commits must survive a kill.
    with server_of(kind, options=DURABLE[kind]) as server:
        sql.Client(server.url(DRIVER[kind])).create_table()
        yield server, server.url((DRIVER if request.param == "threads" else ASYNC)[kind])


def acquire_soon(client: Any, name: str) -> None:
    """Acquire a lock as soon as the database is back."""

    def acquires() -> bool:
        try:
            return bool(client.lock(name).acquire(timeout=1.0))
        except QuorumUnavailable:
            return False

    await_true(acquires)


# --- the server dies or hangs -------------------------------------------------------------------------


@each_driver_in_one_mode
@each_kind
@each_mode
def test_a_server_that_was_killed_is_used_again_and_holders_are_told(
    threads: SqlFace, own: tuple[Server, str], mode: str, name: str
) -> None:
    server, url = own
    lost = threading.Event()
    client = threads(url, mode=mode, ttl=500.0, on_lost=lambda *_: lost.set())
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    server.kill()
    with pytest.raises(QuorumUnavailable) as unavailable:
        client.lock(name + "x").acquire(timeout=0.5)
    assert unavailable.value.causes
    server.start()
    acquire_soon(client, name + "y")
    if mode == "session":
        # The database has freed the lock.
        assert lost.wait(PATIENCE)
        with pytest.raises(LockLost):
            lock.release()
    else:
        # The database has kept the row, and has confirmed it.
        await_true(lambda: lock.remaining() > 400)
        assert lock.owned()
        lock.release()


@each_driver_in_one_mode
@each_kind
@each_mode
def test_a_stopped_server_is_silent_and_close_does_not_wait_for_it(
    own: tuple[Server, str], kind: str, mode: str, name: str
) -> None:
    server, url = own
    client = sql.Client(url, mode=mode)
    before = len(threads_named("redlatch-bridge"))
    assert client.lock(name).acquire(timeout=PATIENCE)
    server.pause()
    try:
        with pytest.raises(QuorumUnavailable, match=r"no answer"):
            client.lock(name + "x").acquire(timeout=1.0)
        in_thread(client.close).result(PATIENCE)
    finally:
        server.resume()
    # The bridge notices that the client has gone, and ends its connection.
    await_true(lambda: len(threads_named("redlatch-bridge")) <= before)
    plain = server.url(DRIVER[kind])
    await_true(lambda: execute(plain, ASKS_CONNECTIONS[kind])[0][0] <= 1)


@pytest.mark.slow("the server hangs for many seconds")
@each_kind
def test_a_server_that_hangs_for_long_gets_no_crowd_of_connections(own: tuple[Server, str], kind: str) -> None:
    server, url = own
    server.pause()
    try:
        with sql.Client(url) as client:
            until = time.monotonic() + 6.0
            most = 0
            while time.monotonic() < until:
                bridges = threads_named("redlatch-bridge")
                most = max(most, len(bridges))
                time.sleep(0.05)
            assert 0 < most <= 3
            assert client.health().masters[0].voting is False
    finally:
        server.resume()


@pytest.mark.parametrize("driver", SERVERS)
@each_mode
def test_an_idle_connection_that_is_cut_is_made_again_at_once(
    threads: SqlFace, with_table: FindUrl, driver: str, mode: str, name: str
) -> None:
    url = with_table(driver)
    lost = threading.Event()
    # With `on_lost` the client reads its connection all the time.
    client = threads(url, mode=mode, ttl=300.0, on_lost=lambda *_: lost.set())
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    plain = url.replace("asyncpg", "psycopg").replace("asyncmy", "pymysql")
    _cut(plain)
    # No call of the client is needed to notice it.
    if mode == "session":
        assert lost.wait(PATIENCE)
    await_true(lambda: client.health().masters[0].voting)
    acquire_soon(client, name + "y")
    assert lost.is_set() == (mode == "session") and (lock.remaining() > 0) == (mode == "table")


@pytest.mark.usual(
    "the drivers do not see whether the release waits", {"waits": True}, {"connect": "threads", "kind": "postgresql"}
)
@each_kind
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "without waiting"])
def test_row_61_the_release_of_a_lock_whose_session_was_killed_is_a_loss(
    connect: SqlFace, url_of: FindUrl, kind: str, waits: bool, name: str
) -> None:
    driver = (DRIVER if connect.name == "threads" else ASYNC)[kind]
    url, plain = url_of(f"{SCHEME[kind]}+{driver}"), url_of(f"{SCHEME[kind]}+{DRIVER[kind]}")
    client = connect(url, mode="session", ttl=300.0, wait_release=waits)
    rival = connect(url, mode="session", ttl=300.0)
    for number in range(10):
        lock = client.lock(f"{name}-{number}")
        assert lock.acquire(timeout=PATIENCE)
        _cut(plain)
        acquire_soon(rival, f"{name}-{number}")
        if waits:
            with pytest.raises(LockLost, match="a quorum has forgotten it"):
                release_soon(lock)
        else:
            lock.release(wait=False)
        await_true(lambda: client.stats().lost.get("forgotten", 0) > number)  # noqa: B023


def release_soon(lock: Any) -> None:
    """Release a lock, again while the database is not connected."""

    def released() -> bool:
        try:
            lock.release()
        except QuorumUnavailable:
            return False
        return True

    await_true(released)


def _cut(url: str) -> None:
    """End all connections to the database but this one."""
    if url.startswith("postgresql"):
        execute(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'",
        )
        return
    for (number,) in execute(
        url, "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'redlatch' AND ID <> CONNECTION_ID()"
    ):
        try:
            execute(url, f"KILL {number}")
        except sa.exc.OperationalError:
            pass  # it has just ended


# --- clocks ---------------------------------------------------------------------------------------------


@each_kind
def test_holders_are_told_when_the_clock_of_the_database_is_set_forward(
    threads: SqlFace, kind: str, readable: Path, name: str
) -> None:
    clock = Clock(compile_library(readable), readable, "database")
    os.chmod(readable / "database.clock", 0o666)
    with server_of(kind, clock.environment) as server:
        url = server.url(DRIVER[kind])
        sql.Client(url).create_table()
        lost = threading.Event()
        holder = threads(url, ttl=60.0, on_lost=lambda *_: lost.set())
        lock, kept = holder.lock(name), holder.lock(name + "-long", ttl=6000.0)
        assert lock.acquire(timeout=PATIENCE) and kept.acquire(timeout=PATIENCE)
        clock.set_ahead(600.0)
        # The holder is idle. Its connection looks at the clock while it has locks.
        assert lost.wait(PATIENCE)
        assert lock.remaining() == 0
        other = threads(url)
        assert other.lock(name).acquire(timeout=PATIENCE)
        with pytest.raises(LockLost):
            lock.release()
        # This one is still in the table: it was verified.
        await_true(lambda: kept.remaining() > 0)
        assert not other.lock(name + "-long").acquire(blocking=False)
        clock.set_ahead(0.0)
        await_true(lambda: holder.health().masters[0].voting)
        acquire_soon(holder, name + "z")


@pytest.mark.slow("it starts a database with a clock of its own")
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_clock_that_was_set_back_is_logged(
    threads: SqlFace, kind: str, readable: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(compile_library(readable), readable, "database")
    os.chmod(readable / "database.clock", 0o666)
    with server_of(kind, clock.environment) as server:
        url = server.url(DRIVER[kind])
        sql.Client(url).create_table()
        assert threads(url, ttl=60.0).lock(name).acquire(timeout=PATIENCE)
        clock.set_ahead(-5.0)
        await_true(lambda: any("was set back by" in record.getMessage() for record in caplog.records))


# --- transactions of others -----------------------------------------------------------------------------


@pytest.mark.slow("it waits for the time that a lock would be older by")
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_transaction_that_began_long_before_does_not_make_a_lock_older(
    threads: SqlFace, with_table: FindUrl, driver: str, name: str
) -> None:
    """ShedLock ran jobs twice, because the transaction's start was its clock (#3577)."""
    url = with_table(driver)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT 1 FROM redlatch_lock LIMIT 1"))
        time.sleep(10.0)  # the age of the transaction is the subject
        client = threads(engine, ttl=5.0)
        assert client.lock(name).acquire(timeout=PATIENCE)
        assert not threads(url).lock(name).acquire(blocking=False)
    engine.dispose()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg", "mysql+pymysql", "mysql+asyncmy"])
def test_a_row_that_another_transaction_has_locked_is_busy(
    threads: SqlFace, with_table: FindUrl, driver: str, name: str
) -> None:
    url = with_table(driver)
    client = threads(url)
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    plain = sa.create_engine(url.replace("asyncpg", "psycopg").replace("asyncmy", "pymysql"))
    with plain.begin() as connection:
        connection.execute(
            sa.text("SELECT 1 FROM redlatch_lock WHERE name = :name FOR UPDATE"), {"name": name.encode()}
        )
        assert not client.lock(name).acquire(blocking=False)
        # Other rows are free.
        assert client.lock(name + "x").acquire(timeout=PATIENCE)
        waiting = client.lock(name).start("acquire", timeout=PATIENCE)
    assert waiting.result(PATIENCE)
    plain.dispose()


@pytest.mark.usual(
    "aiosqlite waits with the code of sqlite3",
    {"driver": "sqlite"},
    {"driver": "sqlite+aiosqlite", "journal": "wal"},
)
@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
def test_a_long_write_in_sqlite_delays_waiters_only(
    threads: SqlFace, with_table: FindUrl, driver: str, journal: str, name: str
) -> None:
    url = with_table(driver)
    plain = url.replace("+aiosqlite", "")
    execute(plain, f"PRAGMA journal_mode = {journal}")
    client = threads(url)
    assert client.lock(name).acquire(timeout=PATIENCE)
    writer = sa.create_engine(plain, isolation_level=None)
    with writer.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        assert not client.lock(name + "x").acquire(blocking=False)
        waiting = client.lock(name + "x").start("acquire", timeout=PATIENCE)
        time.sleep(1.5)  # the write is long
        connection.exec_driver_sql("COMMIT")
    assert waiting.result(PATIENCE)
    writer.dispose()


# --- connections ----------------------------------------------------------------------------------------


@pytest.mark.usual("the waiters share the connection in all drivers", {"kind": "postgresql", "own": "asyncio"})
@each_kind
def test_a_thousand_waiters_use_two_connections(own: tuple[Server, str], kind: str, name: str) -> None:
    server, url = own
    engine = sa.create_engine(server.url(DRIVER[kind]), isolation_level="AUTOCOMMIT")
    counts: list[int] = []

    async def wait(client: Any) -> None:
        lock = client.lock(name)
        assert await lock.acquire(timeout=2 * PATIENCE)
        await lock.release()

    async def main(watching: sa.Connection) -> None:
        async with sql.AsyncClient(url) as client, asyncio.timeout(3 * PATIENCE):
            held = client.lock(name)
            assert await held.acquire(timeout=PATIENCE)
            waiters = [asyncio.create_task(wait(client)) for _ in range(1000)]
            for _ in range(20):
                await asyncio.sleep(0.01)
                counts.append(int(watching.execute(sa.text(ASKS_CONNECTIONS[kind])).scalar_one()) - 1)
            await held.release()
            while not all([waiter.done() for waiter in waiters]):
                await asyncio.sleep(0.01)
                counts.append(int(watching.execute(sa.text(ASKS_CONNECTIONS[kind])).scalar_one()) - 1)
            await asyncio.gather(*waiters)

    with engine.connect() as watching:
        asyncio.run(main(watching))
    engine.dispose()
    assert 1 <= max(counts) <= 2


@pytest.mark.parametrize("pool", [QueuePool, StaticPool])
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_an_engine_whose_pool_is_exhausted_is_no_obstacle(
    threads: SqlFace, with_table: FindUrl, driver: str, pool: type[Any], name: str
) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1} if pool is QueuePool else {}
    engine = sa.create_engine(with_table(driver), poolclass=pool, **options)
    seen = []
    sa.event.listen(engine, "connect", lambda *_: seen.append(1))
    with engine.connect():
        client = threads(engine)
        lock = client.lock(name)
        assert lock.acquire(timeout=PATIENCE)
        assert len(seen) > 1, "listeners of the engine see our connections, too"
        lock.release()
    engine.dispose()


@pytest.mark.parametrize("driver", SERVERS)
def test_a_connection_that_fails_before_its_first_use_is_closed(with_table: FindUrl, driver: str, name: str) -> None:
    url = with_table(driver)
    asyncs = driver.endswith(tuple(ASYNC.values()))
    engine = create_async_engine(url) if asyncs else sa.create_engine(url)
    closed = []

    def fail(*_: object) -> None:
        raise OSError("the server dies before AUTOCOMMIT is set")

    own = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    sa.event.listen(own, "set_connection_execution_options", fail)
    sa.event.listen(own, "invalidate", lambda *_: closed.append(1))
    with pytest.raises(BackendLost, match="before AUTOCOMMIT"):
        connect(engine)
    # A connection that the garbage collector has to close warns, and a warning fails the test.
    gc.collect()
    assert closed == [1]


def test_a_descriptor_above_1024_is_fine(with_table: FindUrl, name: str) -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100 - descriptors())]
    try:
        for driver in ("postgresql+psycopg", "mysql+pymysql", "sqlite", "postgresql+asyncpg"):
            with sql.Client(with_table(driver)) as client, client.lock(name):
                pass
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_clients_leave_no_descriptors_and_no_threads(with_table: FindUrl, name: str) -> None:
    urls = [with_table(driver) for driver in ("postgresql+psycopg", "postgresql+asyncpg", "mysql+asyncmy", "sqlite")]
    counts = []
    for _ in range(3):
        for url in urls:
            with sql.Client(url) as client, client.lock(name):
                pass
        await_true(lambda: not threads_named("redlatch-bridge"))
        counts.append(descriptors())
    assert counts[2] <= counts[1]


# --- forks ----------------------------------------------------------------------------------------------


# Hold a lock, fork a child that lives on, and die without a word; print the number of the child first.
HOLD_FORK_AND_DIE = """
import gc, os, signal, sys, time
from redlatch import sql
url, mode, name, patience = sys.argv[1:4] + [float(sys.argv[4])]
client = sql.Client(url, mode=mode, ttl=300.0, attempt_timeout=patience)
assert client.lock(name).acquire(timeout=patience)
ready, done = os.pipe()
child = os.fork()
if not child:
    os.close(1)
    gc.collect()
    os.write(done, b"x")
    time.sleep(10 * patience)
# The child's finalizers have run; our connection still works.
os.read(ready, 1)
assert client.lock(name + "y").acquire(timeout=patience)
os.write(1, str(child).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("driver", SERVERS)
@each_mode
def test_a_forked_child_gives_up_the_connection(with_table: FindUrl, driver: str, mode: str, name: str) -> None:
    """The parent goes on after the fork, and a child does not keep the parent's session alive."""
    url = with_table(driver)
    command = [sys.executable, "-c", HOLD_FORK_AND_DIE, url, mode, name, str(PATIENCE)]
    parent = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert parent.returncode == -signal.SIGKILL
    child = int(parent.stdout)
    try:
        with sql.Client(url, mode=mode) as client:
            if mode == "session":
                # The parent is dead, and so is its session, although the child lives.
                assert client.lock(name).acquire(timeout=PATIENCE)
            else:
                assert client.lock(name).locked()
    finally:
        os.kill(child, signal.SIGKILL)


# --- standbys, tables --------------------------------------------------------------------------------------


def test_a_standby_is_unavailable_with_the_reason() -> None:
    with server_of("mariadb", options=("--read-only=1",)) as server:
        with sql.Client(server.url("pymysql")) as client, pytest.raises(QuorumUnavailable, match="standby"):
            client.lock("a").acquire(timeout=0.5)


def test_a_standby_that_is_promoted_puts_the_locks_in_doubt(
    threads: SqlFace, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The holder of a lock that the standby never received is told, and the next client may have it."""
    told: list[tuple[Any, ...]] = []
    with server_of("postgresql", options=DURABLE["postgresql"]) as primary:
        either = "postgresql+psycopg://{}@/{}?host=127.0.0.1:{}&host=127.0.0.1:{}&target_session_attrs=any"
        sql.Client(primary.url("psycopg")).create_table()
        standby = Standby(primary)
        with standby:
            with pytest.raises(QuorumUnavailable, match="standby that takes no writes"):
                threads(standby.url("psycopg")).lock(name).acquire(timeout=0.5)
            url = either.format(USER, DATABASE, primary.port, standby.port)
            client = threads(url, ttl=500.0, on_lost=lambda *each: told.append(each))
            lock = client.lock(name)
            assert lock.acquire(timeout=PATIENCE)
            primary.kill()
            standby.promote()
            await_true(lambda: told)
            assert not lock.owned()
            with pytest.raises(LockLost, match="forgotten"):
                lock.check()
            assert "another history" in caplog.text
            acquire_soon(threads(url), name)


def test_a_missing_table_is_refused_with_the_cure(threads: SqlFace, url_of: FindUrl, name: str) -> None:
    for driver in ("postgresql+psycopg", "postgresql+asyncpg", "mysql+pymysql", "mysql+asyncmy", "sqlite"):
        client = threads(url_of(driver), table="not_there")
        with pytest.raises(ConfigurationError, match=r"^database: .* has no table not_there .*create_table\(\)"):
            client.lock(name).acquire(timeout=1.0)


def test_a_table_with_other_columns_is_refused(threads: SqlFace, url_of: FindUrl, name: str) -> None:
    for driver in ("postgresql+psycopg", "mysql+pymysql", "sqlite"):
        url = url_of(driver)
        execute(url, "DROP TABLE IF EXISTS strange", "CREATE TABLE strange (name integer)")
        with pytest.raises(ConfigurationError, match=r"a table strange with other columns .*name another table"):
            threads(url, table="strange").lock(name).acquire(timeout=1.0)


def test_a_table_that_is_dropped_is_an_error_and_its_return_is_enough(
    threads: SqlFace, url_of: FindUrl, name: str
) -> None:
    for driver in ("postgresql+psycopg", "mysql+pymysql", "sqlite"):
        url = url_of(driver)
        sql.Client(url, table="brief").create_table()
        client = threads(url, table="brief")
        assert client.lock(name).acquire(timeout=PATIENCE)
        execute(url, "DROP TABLE brief")
        with pytest.raises(QuorumUnavailable, match="brief"):
            client.lock(name + "x").acquire(timeout=1.0)
        sql.Client(url, table="brief").create_table()
        acquire_soon(client, name + "x")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:s3cr3t@127.0.0.1:1/db",
        "postgresql+asyncpg://me:s3cr3t@127.0.0.1:1/db",
        "mysql+pymysql://me:s3cr3t@127.0.0.1:1/db",
        "mysql+asyncmy://me:s3cr3t@127.0.0.1:1/db",
        "postgresql://me:s3cr3t/x@127.0.0.1/db",
        "nothing://me:s3cr3t@host",
        "mssql://me:s3cr3t@host/db",
        "me:s3cr3t@host",
    ],
)
def test_no_message_has_a_password(url: str) -> None:
    """The scanner of the whole run reads every error and every log line, too."""
    with pytest.raises(LockError) as error:
        with sql.Client(url) as client:
            client.lock("a").acquire(timeout=0.2)
    assert "s3cr" not in f"{error.value!r} {error.value.causes!r}"


def test_a_row_is_not_shown_in_an_error(threads: SqlFace, url_of: FindUrl, name: str) -> None:
    """PostgreSQL adds the whole row, with the token, to the error of a constraint."""
    url = url_of("postgresql+psycopg")
    sql.Client(url, table="checked").create_table()
    execute(url, "ALTER TABLE checked ADD CHECK (until_us = 0)")
    with pytest.raises(QuorumUnavailable) as error:
        threads(url, table="checked").lock(name).acquire(timeout=0.5)
    assert "violates" in str(error.value) and "Failing row" not in str(error.value)
    execute(url, "DROP TABLE checked")


@each_mode
def test_a_connection_that_the_client_closes_itself_ends_a_session(
    with_table: FindUrl, mode: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt leaves an operation half done, and the next one closes all connections."""
    monkeypatch.setattr(impl, "current", implementation_named("python"))
    url = with_table("postgresql+psycopg")

    async def main() -> None:
        lost = asyncio.Event()
        async with sql.AsyncClient(url, mode=mode, ttl=300.0, on_lost=lambda *_: lost.set()) as client:
            lock = client.lock(name)
            assert await lock.acquire(timeout=PATIENCE)
            driver: Any = client._driver
            # What `KeyboardInterrupt` leaves, without the race.
            driver._connections.fleet.torn = True
            # It fails, or it waits for the next connection.
            with contextlib.suppress(QuorumUnavailable):
                await client.lock(name + "x").acquire(timeout=PATIENCE)
            if mode == "session":
                await asyncio.wait_for(lost.wait(), PATIENCE)
            else:
                assert await lock.owned() and lock.remaining() > 0
            assert lost.is_set() == (mode == "session")

    asyncio.run(main())
