"""Connecting to a database: the bridge, what it says at its end, and attempts that hang."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE, in_thread

from redlatch import MasterQuarantined, sql
from redlatch.sql import dialling
from redlatch.sql.connection import connect as connect_now
from redlatch.sql.database import Database
from redlatch.sql.dialling import DatabaseDial, DatabaseTraits
from redlatch.sql.history import History, Life
from redlatch.sql.settings import Settings
from redlatch.votes.commands import BY_SHA
from redlatch.wire.bridge.bridge import ENDS, VOIDS

from .conftest import FindUrl


def dial_of(url: str, mode: str = "table") -> tuple[DatabaseDial, Database]:
    database = Database(url)
    table = "redlatch_lock" if mode == "table" else None
    return DatabaseDial(Settings.of(database.family, table, mode, "redlatch", "me"), database), database


def test_the_end_of_a_connection_says_whether_locks_are_void() -> None:
    history = History("db", True)
    history.note(Life("one", 0.0))
    traits = DatabaseTraits("one", True, history, 0)
    assert traits.dialect == BY_SHA and traits.role == "master"
    ended = traits.reply_error(f"{ENDS} it has gone")
    assert isinstance(ended, ConnectionError) and traits.ends(ended)
    assert history.doubt_about(Life("one", 0.0))
    void = traits.reply_error(f"{VOIDS} it has gone")
    assert isinstance(void, MasterQuarantined) and void.doubted_ns > 0 and traits.ends(void)
    # All holders are in doubt already.
    assert not history.doubt_about(Life("one", 0.0))
    failed = traits.reply_error("ERR relation does not exist")
    assert str(failed) == "relation does not exist" and not traits.ends(failed)


def test_the_second_connection_of_a_session_puts_holders_in_doubt(url_of: FindUrl) -> None:
    dial, database = dial_of(url_of("postgresql+psycopg"), "session")
    connections = [dial(database, PATIENCE, True, None) for _ in range(2)]
    assert [bool(connection.traits.doubted_ns) for connection in connections] == [False, True]
    # What a session has forgotten is not what another one knows.
    assert connections[0].traits.run_id != connections[1].traits.run_id
    for connection in connections:
        assert connection.traits.tracking
        connection.sock.close()


def test_the_second_connection_to_a_table_does_not(with_table: FindUrl) -> None:
    for driver in ("postgresql+psycopg", "mysql+pymysql", "sqlite"):
        dial, database = dial_of(with_table(driver))
        identities = set()
        for _ in range(2):
            connection = dial(database, PATIENCE, False, None)
            assert not connection.traits.doubted_ns
            identities.add(connection.traits.run_id)
            connection.sock.close()
        assert len(identities) == 1


def test_one_attempt_at_a_time_may_hang(with_table: FindUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    dial, database = dial_of(with_table("sqlite"))
    hangs, goes_on = threading.Event(), threading.Event()

    def connect(engine: Any) -> Any:
        hangs.set()
        assert goes_on.wait(PATIENCE)
        return connect_now(engine)

    monkeypatch.setattr(dialling, "connect", connect)
    first = in_thread(dial, database, PATIENCE, False, None)
    assert hangs.wait(PATIENCE)
    with pytest.raises(ConnectionError, match="has not ended yet"):
        dial(database, PATIENCE, False, None)
    goes_on.set()
    first.result(PATIENCE).sock.close()
    dial(database, PATIENCE, False, None).sock.close()


def test_a_driver_that_hears_no_notices_is_reported_once_in_words_of_the_database(
    with_table: FindUrl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Users of PostgreSQL read of CLIENT TRACKING, which is a command of Redis."""
    monkeypatch.setattr("redlatch.sql.connection.notices_of", lambda connection, channel: None)
    dial, database = dial_of(with_table("postgresql+psycopg"))
    for _ in range(2):
        dial(database, PATIENCE, True, None).sock.close()
    [line] = [record.getMessage() for record in caplog.records if record.name == "redlatch"]
    assert "LISTEN does not work, because it is reached with a driver (psycopg) that hears no notices" in line


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(
    with_table: FindUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial, database = dial_of(with_table("sqlite"))
    path, opened = tmp_path / "locks.db", []

    def connect(engine: Any) -> Any:
        connection = connect_now(engine)
        opened.append(connection)
        if len(opened) == 2:
            # The connection that stays has the old file open.
            path.rename(tmp_path / "old.db")
            sql.Client(f"sqlite:///{path}").create_table()
        return connection

    monkeypatch.setattr(dialling, "connect", connect)
    with pytest.raises(ConnectionError, match="replaced"):
        dial(database, PATIENCE, False, None)
    dial(database, PATIENCE, False, None).sock.close()
