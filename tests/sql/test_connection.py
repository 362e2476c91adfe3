"""One connection of our own, with drivers for threads and for asyncio."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from support.faces import PATIENCE, in_thread
from support.forked import in_child

from redlatch.sql.connection import (
    CLOSED,
    HANGUP,
    FileConnection,
    LoopConnection,
    OwnConnection,
    connect,
    descriptor_of,
    keep_alive,
)
from redlatch.sql.database import Database
from redlatch.sql.files import REPLACED, file_at
from redlatch.votes.units import SECOND
from redlatch.wire.bridge.bridge import BackendLost
from redlatch.wire.engine.net import now_ns

from .conftest import SERVERS, FindUrl, execute


@pytest.fixture(params=SERVERS)
def connection(request: pytest.FixtureRequest, url_of: FindUrl) -> Iterator[OwnConnection]:
    connection = connect(Database(url_of(request.param)).engine)
    yield connection
    connection.close()


def ask(connection: OwnConnection, question: str) -> Any:
    return connection.run(lambda raw: raw.execute(sa.text(question)).scalar())


def test_each_statement_is_a_transaction(connection: OwnConnection) -> None:
    assert ask(connection, "SELECT 1") == 1
    assert connection.run(lambda raw: raw.get_isolation_level()) in ("AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ")
    assert connection.run(lambda raw: raw.get_execution_options()["isolation_level"]) == "AUTOCOMMIT"


def test_it_waits_for_the_socket_or_the_time(connection: OwnConnection) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection.wait(ours, 0.01)
        theirs.send(b"x")
        in_thread(connection.wait, ours, None).result(PATIENCE)
        # A statement may follow a wait.
        assert ask(connection, "SELECT 1") == 1


def test_the_end_of_an_idle_connection_ends_the_wait(connection: OwnConnection, url_of: FindUrl) -> None:
    postgresql = connection.run(lambda raw: raw.dialect.name) == "postgresql"
    number = ask(connection, "SELECT pg_backend_pid()" if postgresql else "SELECT CONNECTION_ID()")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = in_thread(connection.wait, ours, None)
        if postgresql:
            execute(url_of("postgresql+psycopg"), f"SELECT pg_terminate_backend({number})")
        else:
            execute(url_of("mysql+pymysql"), f"KILL {number}")
        with pytest.raises(BackendLost, match=CLOSED):
            waiting.result(PATIENCE)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"])
def test_a_notice_of_another_connection_ends_the_wait(url_of: FindUrl, driver: str) -> None:
    connection = connect(Database(url_of(driver)).engine)
    notices = connection.listen("a channel")
    assert notices is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = in_thread(connection.wait, ours, None)
        execute(url_of("postgresql+psycopg"), "SELECT pg_notify('a channel', 'word')")
        waiting.result(PATIENCE)
        assert notices.take() == ["word"]
        ask(connection, "SELECT pg_notify('a channel', 'own')")
        assert notices.take() == []
    connection.close()


def test_a_driver_for_asyncio_has_a_loop_of_its_own(url_of: FindUrl) -> None:
    async def main() -> None:
        connection = await asyncio.to_thread(connect, Database(url_of("sqlite+aiosqlite")).engine)
        assert isinstance(connection, LoopConnection)
        assert await asyncio.to_thread(ask, connection, "SELECT 1") == 1
        await asyncio.to_thread(connection.close)

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "mysql+asyncmy", "sqlite+aiosqlite", "postgresql+psycopg"])
def test_a_closed_connection_has_nothing_to_give_up(url_of: FindUrl, driver: str) -> None:
    """An error at a fork would leave the descriptors of the others to the child."""
    connection: Any = connect(Database(url_of(driver)).engine)
    assert connection.descriptors()
    connection.close()
    assert connection.descriptors() == []


def test_a_file_of_sqlite_is_closed_before_a_fork_and_opened_again(url_of: FindUrl) -> None:
    connection = connect(Database(url_of("sqlite")).engine)
    assert isinstance(connection, FileConnection)
    connection.prepare(lambda raw: raw.execute(sa.text("PRAGMA busy_timeout = 17")))
    assert connection.is_open()
    in_child(lambda: None)
    assert not connection.is_open()
    assert ask(connection, "PRAGMA busy_timeout") == 17
    assert connection.is_open()
    connection.close()
    assert not connection.is_open()


def test_a_file_that_was_replaced_since_a_fork_is_not_opened_again(url_of: FindUrl) -> None:
    url = url_of("sqlite")
    connection: Any = connect(Database(url).engine)
    path = sa.make_url(url).database or ""
    connection.file = file_at(path)
    in_child(lambda: None)
    os.remove(path)
    with pytest.raises(BackendLost, match=REPLACED) as lost:
        ask(connection, "SELECT 1")
    assert lost.value.voids and not os.path.exists(path)
    connection.close()


def test_a_fork_waits_for_a_statement_on_a_file(url_of: FindUrl) -> None:
    connection: Any = connect(Database(url_of("sqlite")).engine)
    begun, end = threading.Event(), threading.Event()

    def statement(_: object) -> None:
        begun.set()
        end.wait(PATIENCE)

    running = in_thread(connection.run, statement)
    assert begun.wait(PATIENCE)
    forking = in_thread(connection.give_up, now_ns() + 60 * SECOND)
    end.set()
    running.result(PATIENCE)
    forking.result(PATIENCE)
    assert not connection.is_open()


def test_a_statement_that_takes_too_long_keeps_no_fork(url_of: FindUrl) -> None:
    connection: Any = connect(Database(url_of("sqlite")).engine)
    connection.run(lambda _: connection.give_up(now_ns()))
    assert connection.is_open()
    connection.close()


def test_a_database_that_cannot_be_reached_says_why() -> None:
    for driver in SERVERS:
        with pytest.raises(BackendLost, match=r"(?i)refused|connect"):
            connect(Database(f"{driver}://me@127.0.0.1:1/x").engine)


def test_the_descriptor_of_a_connection_is_found() -> None:
    with socket.socket() as sock:
        assert descriptor_of(sock) == descriptor_of(SimpleNamespace(_sock=sock)) == sock.fileno()
    assert descriptor_of(object()) == -1


def test_keepalive_is_for_tcp_only() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as local:
        keep_alive(tcp.fileno())
        keep_alive(local.fileno())
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not local.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_end_of_a_connection_is_seen_although_data_are_there() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        poll = select.poll()
        poll.register(ours, HANGUP)
        theirs.send(b"the last words")
        assert poll.poll(0) == []
        theirs.close()
        assert poll.poll(0)
