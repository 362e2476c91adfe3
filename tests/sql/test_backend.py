"""The translator between the engine's commands and a store of locks, and the codes of errors."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from redlatch.sql import backend
from redlatch.sql.backend import BUSY_MS, STAYS_BUSY_NS, TRIES, Translator
from redlatch.sql.connection import CLOSED
from redlatch.sql.files import REPLACED, DatabaseFile, file_at
from redlatch.sql.history import History, Life
from redlatch.sql.late import LATE_PAUSE
from redlatch.votes.scripts import ACQUIRE_FENCED, CONFIRM, EXTEND, LOCKED, OWNED, RELEASE
from redlatch.votes.units import SECOND
from redlatch.wire.bridge.bridge import BackendLost
from redlatch.wire.engine.net import now_ns


def error(*arguments: object, **attributes: object) -> DBAPIError:
    original = sqlite3.OperationalError(*arguments)
    vars(original).update(attributes)
    return OperationalError("a statement", {}, original)


BUSY_ERROR = error(1205, "Lock wait timeout exceeded")


class Store:
    """A store with one row, which fails as often as it is told to."""

    ends_with_connection = False
    pause = 1.0

    def __init__(self) -> None:
        self.owner: bytes | None = None
        self.failures: list[Exception] = []
        self.ticks = self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop()

    def acquire(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        self._call()
        if self.owner is None:
            self.owner = token
        return self.owner == token

    def acquire_fenced(self, key: bytes, token: bytes, ttl_ms: int, first: int, last: int) -> int:
        return first if self.acquire(key, token, ttl_ms) else 0

    def confirm(self, key: bytes, token: bytes, first: int, last: int) -> bool:
        return self.owned(key, token)

    def extend(self, key: bytes, token: bytes, ttl_ms: int) -> bool:
        return self.owned(key, token)

    def release(self, key: bytes, token: bytes) -> bool:
        owned = self.owned(key, token)
        if owned:
            self.owner = None
        return owned

    def owned(self, key: bytes, token: bytes) -> bool:
        self._call()
        return self.owner == token

    def left_ms(self, key: bytes) -> int | None:
        self._call()
        return None if self.owner is None else 700

    def holder(self, key: bytes) -> tuple[int, int, bytes] | None:
        self._call()
        return None if self.owner is None else (700, 3, self.owner)

    def tick(self) -> None:
        self.ticks += 1


class FakeConnection:
    """A connection whose clock is right, and that waits for nothing."""

    file: DatabaseFile | None = None

    def __init__(self) -> None:
        self.engine = sa.create_engine("sqlite://")
        self.waits: list[float | None] = []
        self.lost: Exception | None = None
        self.closed = False

    def prepare(self, call: Callable[[Any], object]) -> None:
        self.run(call)

    def run(self, call: Callable[[Any], Any]) -> Any:
        with self.engine.connect() as connection:
            return call(connection)

    def listen(self, channel: str) -> None: ...

    def wait(self, sock: object, seconds: float | None) -> None:
        self.waits.append(seconds)
        if self.lost is not None:
            raise self.lost

    def close(self) -> None:
        self.engine.dispose()
        self.closed = True


class FakeNotices:
    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def fileno(self) -> int:
        return -1

    def read(self) -> None: ...

    def take(self) -> list[str]:
        taken, self.names = self.names, []
        return taken


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def connection() -> Any:
    connection = FakeConnection()
    yield connection
    connection.close()


@pytest.fixture
def history() -> History:
    return History("db", False)


@pytest.fixture
def translator(connection: FakeConnection, store: Store, history: History) -> Translator:
    return Translator(connection, store, FakeNotices(), history, Life("db", 0.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "locks.db").write_bytes(b"")
    return tmp_path / "locks.db"


@pytest.fixture
def of_file(connection: FakeConnection, store: Store, history: History, path: Path) -> Translator:
    return Translator(connection, store, None, history, Life("db", 0.0), file=file_at(str(path)))


def script(translator: Translator, which: Any, *words: bytes) -> bytes:
    return translator.answer([b"EVALSHA", which.sha, b"1", *words])


def test_a_lock_goes_through_its_life(translator: Translator) -> None:
    assert translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"1000"]) == b"+OK\r\n"
    assert translator.answer([b"SET", b"k", b"u", b"NX", b"PX", b"1000"]) == b"_\r\n"
    assert script(translator, OWNED, b"k", b"t") == b":1\r\n"
    assert script(translator, LOCKED, b"k") == b":1\r\n"
    assert script(translator, EXTEND, b"k", b"u", b"1000") == b":0\r\n"
    assert script(translator, EXTEND, b"k", b"t", b"1000") == b":1\r\n"
    assert translator.answer([b"PTTL", b"k"]) == b":700\r\n"
    assert script(translator, RELEASE, b"k", b"t") == b":1\r\n"
    assert translator.answer([b"PTTL", b"k"]) == b":-2\r\n"
    assert script(translator, ACQUIRE_FENCED, b"k", b"f", b"t", b"1000", b"7", b"9") == b":7\r\n"


def test_an_unknown_script_is_refused(translator: Translator) -> None:
    assert translator.answer([b"EVALSHA", b"0" * 40, b"0"]).startswith(b"-ERR a database has plain and fenced")


def test_an_attempt_on_a_busy_row_is_refused_at_once(translator: Translator, store: Store) -> None:
    store.failures = [BUSY_ERROR]
    assert translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"1000"]) == b"_\r\n"
    assert store.calls == 1


def test_a_question_or_a_second_round_on_a_busy_row_ends_no_acquire(translator: Translator, store: Store) -> None:
    """A waiter would raise an exception instead of waiting for its timeout."""
    store.failures = [BUSY_ERROR]
    assert translator.answer([b"PTTL", b"k"]) == b":%d\r\n" % BUSY_MS
    store.owner, store.failures = b"t", [BUSY_ERROR]
    assert script(translator, CONFIRM, b"k", b"k", b"t", b"1", b"2") == b":0\r\n"
    assert store.calls == 2


def test_a_file_that_was_locked_counts_as_locked_for_commands_that_came_meanwhile(
    of_file: Translator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each would wait for the same writer, one after the other, until the last ones have no time left."""
    now = [10**12]
    monkeypatch.setattr(backend, "now_ns", lambda: now[0])
    store.failures = [BUSY_ERROR]
    for name in (b"k", b"l", b"m"):
        assert of_file.answer([b"SET", name, b"t", b"NX", b"PX", b"1000"]) == b"_\r\n"
    assert store.calls == 1
    # A release asks all the same.
    assert script(of_file, RELEASE, b"k", b"t") == b":0\r\n"
    now[0] += STAYS_BUSY_NS
    assert of_file.answer([b"SET", b"k", b"t", b"NX", b"PX", b"1000"]) == b"+OK\r\n"


def test_a_row_that_was_locked_says_nothing_about_others(translator: Translator, store: Store) -> None:
    store.failures = [BUSY_ERROR]
    assert translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"1000"]) == b"_\r\n"
    assert translator.answer([b"SET", b"l", b"t", b"NX", b"PX", b"1000"]) == b"+OK\r\n"


@pytest.mark.parametrize("holds", [False, True])
def test_a_reply_of_a_file_that_was_replaced_is_void(
    of_file: Translator, store: Store, path: Path, holds: bool
) -> None:
    if holds:
        of_file.answer([b"SET", b"k", b"t", b"NX", b"PX", b"60000"])
    path.unlink()
    with pytest.raises(BackendLost, match=REPLACED) as lost:
        of_file.answer([b"SET", b"l", b"t", b"NX", b"PX", b"1000"])
    assert lost.value.voids
    if holds:
        # No command may come while a lock is held.
        with socket.socket() as sock, pytest.raises(BackendLost, match=REPLACED) as lost:
            of_file.wait(sock)
        assert lost.value.voids


def test_a_release_of_a_busy_row_is_tried_again(translator: Translator, store: Store) -> None:
    store.owner, store.failures = b"t", [BUSY_ERROR] * 3
    assert script(translator, RELEASE, b"k", b"t") == b":1\r\n"


def test_a_release_gives_up_in_the_end(translator: Translator, store: Store) -> None:
    store.owner, store.failures = b"t", [BUSY_ERROR] * (TRIES + 1)
    assert script(translator, RELEASE, b"k", b"t").startswith(b"-ERR ")


@pytest.fixture
def late(
    translator: Translator, connection: FakeConnection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Translator:
    """A translator that has a late release of the key k, and tries it each time."""
    monkeypatch.setattr("redlatch.sql.late.LATE_PAUSE", 0)
    monkeypatch.setattr("redlatch.sql.late.LATE_SHARE", 0)
    assert translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"60000"]) == b"+OK\r\n"
    store.failures = [BUSY_ERROR] * (TRIES + 1)
    assert script(translator, RELEASE, b"k", b"t").startswith(b"-ERR ")
    return translator


def wait_once(translator: Translator) -> None:
    with socket.socket() as sock:
        translator.wait(sock)


def test_a_late_release_is_done_when_the_row_is_free(
    late: Translator, connection: FakeConnection, store: Store
) -> None:
    store.failures = [BUSY_ERROR]
    owners = []
    for _ in range(3):
        wait_once(late)
        owners.append(store.owner)
    assert owners == [b"t", None, None]
    assert connection.waits == [LATE_PAUSE, LATE_PAUSE, store.pause]
    # The caller may call again, once: another "no" would be a loss.
    assert script(late, RELEASE, b"k", b"t") == b":1\r\n"
    assert script(late, RELEASE, b"k", b"t") == b":0\r\n"


def test_a_late_release_leaves_a_new_lock_with_the_same_token_alone(late: Translator, store: Store) -> None:
    """An acquire that is tried again may have the token of its first try."""
    assert late.answer([b"SET", b"k", b"t", b"NX", b"PX", b"60000"]) == b"+OK\r\n"
    wait_once(late)
    assert store.owner == b"t"


def test_a_lock_of_an_earlier_connection_counts_as_held(
    late: Translator, connection: FakeConnection, store: Store, history: History
) -> None:
    """Its release may be late, too; and its holder must hear of the clock although no command comes."""
    store.failures = []
    again = Translator(connection, store, None, history, Life("db", 0.0))
    wait_once(again)
    assert connection.waits == [store.pause] and store.ticks == 1
    store.failures = [BUSY_ERROR] * (TRIES + 1)
    assert script(again, RELEASE, b"k", b"t").startswith(b"-ERR ")
    wait_once(again)
    assert store.owner is None


def test_a_row_for_which_the_server_waits_long_is_not_tried_again_at_once(
    translator: Translator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "LONGEST_TRIES_NS", 0)
    store.owner, store.failures = b"t", [BUSY_ERROR]
    assert script(translator, RELEASE, b"k", b"t").startswith(b"-ERR ")
    assert store.calls == 1


def test_a_late_release_of_a_lock_that_is_gone_is_no_release(late: Translator, store: Store) -> None:
    store.owner = b"u"
    wait_once(late)
    assert script(late, RELEASE, b"k", b"t") == b":0\r\n"
    assert store.owner == b"u"


def test_a_late_release_is_forgotten_with_its_ttl(
    late: Translator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.failures = [BUSY_ERROR]
    wait_once(late)
    calls, later = store.calls, now_ns() + 61 * SECOND
    monkeypatch.setattr("redlatch.sql.late.now_ns", lambda: later)
    wait_once(late)
    assert store.calls == calls


def test_late_releases_are_tried_once_more_at_the_end(
    late: Translator, store: Store, connection: FakeConnection
) -> None:
    late.close()
    assert store.owner is None
    assert connection.closed


def test_a_late_release_that_cannot_be_done_at_the_end_is_logged(
    late: Translator, store: Store, connection: FakeConnection, caplog: pytest.LogCaptureFixture
) -> None:
    store.failures = [error("gone")]
    with caplog.at_level("INFO", "redlatch"):
        late.close()
    assert connection.closed
    assert "gone; locks whose release had failed stay until their ttl ends" in caplog.text


@pytest.mark.parametrize("voids", [False, True])
def test_every_end_says_whether_locks_end_with_it(
    translator: Translator, connection: FakeConnection, store: Store, voids: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store.ends_with_connection = voids
    for failure in (error("gone"), OSError("gone"), RuntimeError("gone"), BackendLost("gone")):
        store.failures = [failure]
        with pytest.raises(BackendLost, match="gone") as lost:
            translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"1000"])
        assert lost.value.voids is voids
    connection.lost = BackendLost(CLOSED)
    with socket.socket() as sock, pytest.raises(BackendLost) as lost:
        translator.wait(sock)
    assert lost.value.voids is voids
    # Only the one that nobody expects has a traceback.
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_row_is_watched_before_it_is_looked_at(translator: Translator, store: Store) -> None:
    store.owner = b"t"
    translator.answer([b"CLIENT", b"CACHING", b"YES"])
    translator.answer([b"PTTL", b"k"])
    translator.notices = FakeNotices(b"k".hex(), b"other".hex(), "not hex")
    assert list(translator.changes()) == [b"k"]
    translator.notices = FakeNotices(b"k".hex())
    assert list(translator.changes()) == []


def test_all_waiters_ask_again_when_too_many_keys_are_watched(
    translator: Translator, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MOST_WATCHED", 2)
    store.owner = b"t"
    translator.notices = FakeNotices()
    for key in (b"a", b"b"):
        translator.answer([b"CLIENT", b"CACHING", b"YES"])
        translator.answer([b"PTTL", key])
    assert list(translator.changes()) == []
    translator.answer([b"CLIENT", b"CACHING", b"YES"])
    translator.answer([b"PTTL", b"c"])
    translator.notices = FakeNotices(b"a".hex(), b"c".hex())
    assert list(translator.changes()) == [None, b"c"]
    assert list(translator.changes()) == []


def test_an_idle_connection_without_locks_waits_for_ever(
    translator: Translator, connection: FakeConnection, store: Store
) -> None:
    with socket.socket() as sock:
        translator.wait(sock)
        translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"60000"])
        translator.wait(sock)
    assert connection.waits == [None, 1.0]
    assert store.ticks == 1


def test_a_clock_that_was_set_forward_voids_locks(
    translator: Translator, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator.answer([b"SET", b"k", b"t", b"NX", b"PX", b"60000"])
    monkeypatch.setattr("redlatch.sql.history.READ_EVERY_NS", 0)
    monkeypatch.setattr("redlatch.sql.history.clock_us", lambda raw: 10**17)
    with pytest.raises(BackendLost, match="set forward") as lost:
        script(translator, OWNED, b"k", b"t")
    assert lost.value.voids
