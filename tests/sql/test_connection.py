"""One connection of our own, with drivers for threads and for asyncio."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError
from support.faces import PATIENCE, in_thread

from redlatch.sql.connection import (
    CLOSED,
    LoopConnection,
    OwnConnection,
    code_of,
    connect,
    is_busy,
    is_over,
    text_of,
)
from redlatch.sql.database import Database
from redlatch.wire.bridge import BackendLost

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


def test_a_database_that_cannot_be_reached_says_why() -> None:
    for driver in SERVERS:
        with pytest.raises(BackendLost, match=r"(?i)refused|connect"):
            connect(Database(f"{driver}://me@127.0.0.1:1/x").engine)


def test_the_text_of_an_error_has_neither_statement_nor_parameters(url_of: FindUrl) -> None:
    engine = sa.create_engine(url_of("postgresql+psycopg"))
    with engine.connect() as raw, pytest.raises(sa.exc.DBAPIError) as error:
        raw.execute(sa.text("SELECT :secret FROM nothing"), {"secret": "t0ken"})
    assert text_of(error.value) == 'relation "nothing" does not exist'
    assert text_of(RuntimeError()) == "RuntimeError"
    assert text_of(RuntimeError("two\nlines")) == "two lines"
    engine.dispose()


def error(*arguments: object, **attributes: object) -> DBAPIError:
    original = sqlite3.OperationalError(*arguments)
    vars(original).update(attributes)
    return OperationalError("a statement", {}, original)


@pytest.mark.parametrize(
    ("given", "code", "busy", "over"),
    [
        (error(1213, "deadlock"), 1213, True, False),
        (error(1205, "timeout", sqlstate="HY000"), 1205, True, False),
        (error("lock timeout", sqlstate="55P03"), "55P03", True, False),
        (error("deadlock", pgcode="40P01"), "40P01", True, False),
        (error("locked", sqlite_errorcode=5), 5, True, False),
        (error("snapshot", sqlite_errorcode=5 | 2 << 8), 5 | 2 << 8, True, False),
        (error("standby", sqlstate="25006"), "25006", False, True),
        (error("no code"), None, False, True),
        (error(1146, "no table"), 1146, False, False),
    ],
)
def test_what_a_code_means(given: DBAPIError, code: object, busy: bool, over: bool) -> None:
    assert (code_of(given), is_busy(given), is_over(given)) == (code, busy, over)


def test_a_connection_that_broke_is_not_busy() -> None:
    broken = error(1205, "x")
    broken.connection_invalidated = True
    assert not is_busy(broken) and is_over(broken)
