"""What both clients of a database share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from support.faces import PATIENCE

from redlatch import ConfigurationError, sql
from redlatch.sql.clients import OnDatabase

from .conftest import FindUrl, SqlFace


@pytest.mark.parametrize(
    ("url", "given", "chosen"),
    [
        ("postgresql+psycopg://h/x", "auto", "auto"),
        ("postgresql+psycopg://h/x", "poll", "poll"),
        ("mysql+pymysql://h/x", "auto", "poll"),
        ("sqlite:///x.db", "auto", "poll"),
    ],
)
def test_only_postgresql_tells_of_releases(url: str, given: str, chosen: str) -> None:
    assert sql.Client(url)._wakeups(given) == chosen  # type: ignore[arg-type]


def test_an_unknown_way_to_wake_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="wakeups"):
        sql.Client("sqlite:///x.db", wakeups="never")  # type: ignore[arg-type]


def test_fences_need_a_table_of_ours() -> None:
    choices: list[dict[str, Any]] = [{"mode": "session"}, {"dialect": "shedlock"}]
    for options in choices:
        with pytest.raises(ConfigurationError, match="fence"):
            sql.Client("postgresql+psycopg://h/x", **options).lock("a", fence=True)


def test_a_fair_lock_is_refused_in_every_way() -> None:
    client = sql.Client("sqlite:///x.db")
    makes: list[Callable[[], object]] = [
        lambda: client.fair_lock("a"),
        lambda: client.lock("a", fair=True),
        lambda: client.semaphore("a", 2),
        lambda: client.rw_lock("a"),
        lambda: client.latch("a", 2),
        lambda: client.lock("a").condition(),
    ]
    for make in makes:
        with pytest.raises(ConfigurationError, match="need a server of Redis or Valkey"):
            make()


def test_both_clients_stand_on_it() -> None:
    assert issubclass(sql.Client, OnDatabase) and issubclass(sql.AsyncClient, OnDatabase)


class SlowToClose(sqlite3.Connection):
    """A connection that takes a moment to close."""

    still_open = 0

    def close(self) -> None:
        SlowToClose.still_open += 1
        time.sleep(0.2)
        super().close()
        SlowToClose.still_open -= 1


def test_when_close_returns_the_connection_is_closed(connect: SqlFace, with_table: FindUrl, name: str) -> None:
    """The advice before a fork is to close the client."""
    url = with_table("sqlite")
    client = connect(sa.create_engine(url, connect_args={"factory": SlowToClose}))
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    assert client.raw._dial.is_open()
    client.close()
    assert (client.raw._dial.is_open(), SlowToClose.still_open) == (False, 0)


def test_close_does_not_wait_longer_than_its_timeout(connect: SqlFace, with_table: FindUrl, name: str) -> None:
    client = connect(with_table("sqlite"))
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    # As while a database does not answer a client that connects.
    with client.raw._dial._opening:
        client.close(timeout=0.05)
        assert client.raw._dial.is_open()
