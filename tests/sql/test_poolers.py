"""Locks behind a pooler: pgbouncer before PostgreSQL, whose few backends the application uses, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from support.databases import Pgbouncer, Server
from support.faces import PATIENCE, at_once

from redlatch import ConfigurationError, sql

from .conftest import FindUrl, SqlFace, execute

DRIVERS = ["psycopg", "psycopg2", "asyncpg"]

# How long an application may wait for the answer to SELECT 1, on a busy machine, in seconds. A stall took ten seconds.
QUICK = 2.0


@pytest.fixture
def server(databases: Callable[[str], Server], with_table: FindUrl) -> Server:
    """Return a PostgreSQL server with a table of locks."""
    with_table("postgresql+psycopg")
    return databases("postgresql")


@pytest.fixture
def pgbouncer(server: Server) -> Iterator[Pgbouncer]:
    """Return a pgbouncer that pools transactions."""
    with Pgbouncer(server) as pooler:
        yield pooler


def plain(pooler: Pgbouncer) -> str:
    """Return the URL of a pooler for psycopg without SQLAlchemy."""
    return pooler.url().replace("+psycopg", "")


@contextmanager
def application(pooler: Pgbouncer) -> Iterator[list[float]]:
    """Ask SELECT 1 again and again, as an application does; yield how long each answer took, in seconds."""
    took: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        with psycopg.connect(plain(pooler), autocommit=True, prepare_threshold=None) as connection:
            while not ended.is_set():
                asked = time.monotonic()
                connection.execute("SELECT 1")
                took.append(time.monotonic() - asked)
                time.sleep(0.002)  # an application that does other things, too

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()
    assert len(took) > 10


@contextmanager
def busy_backends(pooler: Pgbouncer, count: int) -> Iterator[None]:
    """Keep some backends in transactions."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(psycopg.connect(plain(pooler), prepare_threshold=None))
            connection.execute("SELECT 1")
        yield


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_client_needs_one_free_backend_and_does_not_stall_the_application(
    threads: SqlFace, server: Server, size: int, driver: str, name: str
) -> None:
    """The examination of the server kept one backend while it waited for another one (row 67)."""
    with Pgbouncer(server, size=size) as pooler, busy_backends(pooler, size - 1), application(pooler) as took:
        client = threads(pooler.url(driver))
        lock = client.lock(name)
        for _ in range(20):
            assert lock.acquire(timeout=QUICK)
            lock.release()
    assert max(took) < QUICK


@pytest.mark.parametrize("size", [1, 2, 5])
def test_twenty_workers_that_start_together_do_not_stall_the_application(server: Server, size: int, name: str) -> None:
    with Pgbouncer(server, size=size) as pooler, application(pooler) as took:

        def work() -> None:
            with sql.Client(pooler.url()) as client:
                for _ in range(3):
                    with client.lock(name, timeout=PATIENCE):
                        pass

        at_once([work] * 20)
    assert max(took) < QUICK


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pooler_of_statements_is_refused_with_what_to_do(
    threads: SqlFace, server: Server, driver: str, name: str
) -> None:
    with (
        Pgbouncer(server, "statement") as pooler,
        pytest.raises(ConfigurationError, match=r"database: .*statement pooling.*set pool_mode = transaction"),
    ):
        threads(pooler.url(driver)).lock(name).acquire(timeout=PATIENCE)


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_session_behind_a_pooler_is_refused(threads: SqlFace, server: Server, mode: str, name: str) -> None:
    with (
        Pgbouncer(server, mode) as pooler,
        pytest.raises(ConfigurationError, match=r"database: .* is behind a pooler.*mode='table'"),
    ):
        threads(pooler.url(), mode="session").lock(name).acquire(timeout=PATIENCE)


def test_a_table_behind_a_pooler_works_and_leaves_no_settings(
    threads: SqlFace, pgbouncer: Pgbouncer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = pgbouncer.url()
    client, other = threads(url), threads(url)
    lock = client.lock(name)
    # More rounds than the 5 after which psycopg prepares a statement.
    for _ in range(12):
        assert lock.acquire(timeout=PATIENCE) and not other.lock(name).acquire(blocking=False)
        lock.release()
    assert lock.acquire(timeout=PATIENCE)
    waiting = other.lock(name).start("acquire", timeout=PATIENCE)
    lock.release()
    assert waiting.result(PATIENCE)
    # Other applications use the same backends.
    for _ in range(8):
        assert execute(url, "SHOW lock_timeout")[0][0] == "0"
    said = [record.getMessage() for record in caplog.records if record.name == "redlatch"]
    assert len(said) == 2, said
    assert all("LISTEN does not work, because it is behind a pooler: waiters ask again" in line for line in said)


def test_a_table_behind_a_pooler_that_keeps_sessions_apart_works(threads: SqlFace, server: Server, name: str) -> None:
    with Pgbouncer(server, "session") as pooler:
        lock = threads(pooler.url()).lock(name)
        assert lock.acquire(timeout=PATIENCE)
        assert not threads(server.url("psycopg")).lock(name).acquire(blocking=False)
        lock.release()
