"""Locks that belong to a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.databases import Server

from redlatch.sql import sessions
from redlatch.sql.connection import OwnConnection, connect
from redlatch.sql.database import Database
from redlatch.sql.sessions import MySQLSession, PostgresSession, Session, name_of, number_of
from redlatch.wire.bridge.bridge import BackendLost

Pair = tuple[Session, Session]


@pytest.fixture(params=["postgresql+psycopg", "mysql+pymysql"])
def pair(request: pytest.FixtureRequest, databases: Callable[[str], Server]) -> Iterator[Pair]:
    """Return the sessions of two connections."""
    scheme, _, driver = request.param.partition("+")
    url = databases("postgresql" if scheme == "postgresql" else "mariadb").url(driver)
    connections: list[OwnConnection] = [connect(Database(url).engine) for _ in range(2)]
    if scheme == "postgresql":
        yield PostgresSession(connections[0], None), PostgresSession(connections[1], "redlatch")
    else:
        yield MySQLSession(connections[0]), MySQLSession(connections[1])
    for connection in connections:
        connection.close()


def test_a_lock_of_a_session_excludes_others_and_its_own(pair: Pair, name: str) -> None:
    one, other = pair
    key = name.encode()
    assert one.acquire(key, b"t", 60_000)
    assert not one.acquire(key, b"u", 60_000)
    assert not other.acquire(key, b"u", 60_000)
    assert one.left_ms(key) == other.left_ms(key) == sessions.ASK_AGAIN_MS
    assert one.owned(key, b"t") and not one.owned(key, b"u")
    assert not one.release(key, b"u") and one.release(key, b"t")
    assert other.left_ms(key) is None
    assert other.acquire(key, b"u", 60_000) and other.release(key, b"u")


def test_a_lock_ends_after_its_ttl(pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    key, now = name.encode(), [0]
    monkeypatch.setattr(sessions, "now_ns", lambda: now[0])
    assert one.acquire(key, b"t", 1000)
    now[0] += 900_000_000
    assert one.extend(key, b"t", 1000)
    now[0] += 900_000_000
    one.tick()
    assert not other.acquire(key, b"u", 1000)
    now[0] += 200_000_000
    one.tick()
    assert other.acquire(key, b"u", 1000)
    assert not one.extend(key, b"t", 1000) and not one.release(key, b"t")


def test_another_backend_on_the_same_connection_is_noticed(pair: Pair, name: str) -> None:
    one, _ = pair
    assert one.acquire(name.encode(), b"t", 60_000)
    one.tick()
    one._number = "SELECT 1"
    with pytest.raises(BackendLost, match="pooler"):
        one.tick()


def test_a_session_has_no_fences(pair: Pair) -> None:
    with pytest.raises(NotImplementedError):
        pair[0].acquire_fenced(b"k", b"t", 1, 1, 1)
    with pytest.raises(NotImplementedError):
        pair[0].confirm(b"k", b"t", 1, 1)


def test_names_are_hashed_the_same_way_on_every_machine() -> None:
    # A client of another version must compute the same.
    assert number_of(b"invoice:17") == 583494120248226919
    assert name_of(b"invoice:17") == "redlatch:0510ab5a89647b8b9556975e43e2ce32b7a448a3"
    assert len(name_of(b"x" * 512)) <= 64
