"""The locks of one transaction: what the ends of the transaction do to them, for both faces."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

import psycopg
import psycopg.errors
import pymysql
import pytest
from django.db.utils import OperationalError
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi
from sqlalchemy.exc import DBAPIError
from support.faces import Face, Faced, ask, await_true

from redlatch import AlreadyHeld, AsyncClient, Client, ConfigurationError, Lock, LockLost, MultiLock, NotOwned
from redlatch.transactions import Held, Holdings, Outcome, check_kind, surely_rolled_back


def acquired(lock: Faced, holdings: Holdings, margin: float | None = None) -> Held:
    """Acquire a lock for a transaction."""
    held = holdings.add(lock.raw, margin)
    assert lock.acquire(timeout=5)
    held.won()
    return held


class Ending:
    """Ends a transaction where its callbacks would run: in the loop for asyncio."""

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings

    def end(self, outcome: Outcome, error: BaseException | None = None) -> Any:
        """Return something that either face can run."""
        self.holdings.end(outcome, error)
        return _Done()


class _Done:
    def __await__(self) -> Any:
        return iter(())


def end(lock: Faced, holdings: Holdings, outcome: Outcome, error: BaseException | None = None) -> None:
    Faced(Ending(holdings), lock._start).start("end", outcome, error).result(30)


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
def test_the_end_releases_all_locks(connect: Face, url: str, name: str, outcome: Outcome) -> None:
    client, holdings = connect(url), Holdings()
    lock, multi = client.lock(name), client.multi_lock([f"{name}-1", f"{name}-2"])
    acquired(lock, holdings)
    acquired(multi, holdings)
    holdings.check()
    end(lock, holdings, outcome)
    await_true(lambda: not ask(url).exists(name, f"{name}-1", f"{name}-2"), 5.0)
    assert (lock.token, multi.remaining()) == (None, 0.0)
    # Nothing is left to check or to end.
    holdings.check()
    end(lock, holdings, outcome)


def test_a_doubt_leaves_the_key_and_ends_the_renewal(connect: Face, url: str, name: str) -> None:
    reports: list[str] = []
    client, holdings = connect(url, on_lost=lambda lock, reason: reports.append(reason)), Holdings()
    lock = client.lock(name, ttl=1.0, auto_renew=True)
    acquired(lock, holdings)
    lost = lock.lost
    end(lock, holdings, Outcome.IN_DOUBT, ConnectionResetError("user:password@host"))
    assert lost.is_set()
    assert ask(url).exists(name)
    assert reports == [
        "the commit is in doubt (ConnectionResetError), so the lock was not released and runs out with its ttl"
    ]
    # A third of the ttl has passed twice, and nothing has renewed the key.
    await_true(lambda: not ask(url).exists(name))
    assert len(reports) == 1
    # The next request for the event begins no renewal.
    assert lock.raw._upkeep.renews is False
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_without_upkeep_reports_a_doubt_to_the_log(
    connect: Face, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, holdings = connect(url), Holdings()
    lock = client.lock(name)
    acquired(lock, holdings)
    with caplog.at_level(logging.WARNING, "redlatch"):
        end(lock, holdings, Outcome.IN_DOUBT)
    assert f"lock {name!r} was lost: the commit is in doubt, so the lock was not released" in caplog.text


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
def test_a_lock_whose_validity_is_over_is_reported(
    connect: Face, url: str, name: str, caplog: pytest.LogCaptureFixture, outcome: Outcome
) -> None:
    client, holdings = connect(url), Holdings()
    lock = client.lock(name, ttl=0.05)
    acquired(lock, holdings, 0)
    await_true(lambda: lock.remaining() == 0.0)
    with pytest.raises(LockLost):
        holdings.check()
    with caplog.at_level(logging.WARNING, "redlatch"):
        end(lock, holdings, outcome)
    assert f"lock {name!r} was lost: its validity was over when its transaction {outcome.value}" in caplog.text


def test_a_loss_is_reported_once(connect: Face, url: str, name: str) -> None:
    reports: list[str] = []
    client, holdings = connect(url), Holdings()
    lock = client.lock(name, ttl=0.05, on_lost=lambda lock, reason: reports.append(reason))
    acquired(lock, holdings, 0)
    await_true(lambda: reports)
    end(lock, holdings, Outcome.COMMITTED)
    assert len(reports) == 1


def test_the_margin_is_checked(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    # The default margin of a ttl of 60 s is 1 s; a tenth would be 6 s.
    for margin, left, works in ((None, 5, True), (0, 5, True), (50, 40, False), (None, 0.5, False)):
        holdings = Holdings()
        lock = client.lock(name, ttl=60)
        acquired(lock, holdings, margin)
        lock.extend(left)
        if works:
            holdings.check()
        else:
            with pytest.raises(LockLost, match="less than the margin of 50 s" if margin == 50 else None) as caught:
                holdings.check()
            assert caught.value.name == name
        end(lock, holdings, Outcome.ROLLED_BACK)
    assert Held(client.lock(name, ttl=5).raw, None)._margin == pytest.approx(0.5)
    assert Held(client.lock(name, ttl=50).raw, None)._margin == 1.0
    for wrong, kind in ((60, ConfigurationError), (-1, ConfigurationError), ("1", TypeError), (True, TypeError)):
        with pytest.raises(kind, match=r"^margin: "):
            Held(client.lock(name, ttl=60).raw, wrong)  # type: ignore[arg-type]


def test_only_the_claim_of_the_transaction_counts(connect: Face, url: str, name: str) -> None:
    client, holdings = connect(url), Holdings()
    lock = client.lock(name)
    held = holdings.add(lock.raw, None)
    with pytest.raises(NotOwned, match="is not held yet"):
        holdings.check()
    assert lock.acquire()
    held.won()
    lock.release()
    with pytest.raises(NotOwned, match="was released before its transaction committed"):
        holdings.check()
    # Other code has acquired the same object since. Its lock is not ours to release.
    assert lock.acquire()
    with pytest.raises(NotOwned, match="was released before its transaction committed"):
        holdings.check()
    end(lock, holdings, Outcome.COMMITTED)
    assert lock.owned()


def test_a_lock_object_of_another_transaction_is_not_released(connect: Face, url: str, name: str) -> None:
    client, holdings, others = connect(url), Holdings(), Holdings()
    for lock in (client.lock(name), client.multi_lock([f"{name}-1", f"{name}-2"])):
        acquired(lock, others)
        held = holdings.add(lock.raw, None)
        with pytest.raises(AlreadyHeld):
            lock.acquire()
        Faced(Dropping(holdings, held), lock._start).start("drop").result(30)
        lock.check()
        others.check()
        end(lock, others, Outcome.COMMITTED)


def test_a_lock_object_of_another_transaction_of_the_same_thread_is_not_released(url: str, name: str) -> None:
    with Client(url) as client:
        lock, holdings, others = client.lock(name), Holdings(), Holdings()
        other = others.add(lock, None)
        assert lock.acquire()
        other.won()
        held = holdings.add(lock, None)
        with pytest.raises(AlreadyHeld):
            lock.acquire()
        holdings.drop(held)
        lock.check()
        others.end(Outcome.COMMITTED)


def test_an_acquire_that_is_interrupted_after_it_has_won_is_released(url: str, name: str) -> None:
    with Client(url) as client:
        lock, holdings = client.lock(name), Holdings()
        held = holdings.add(lock, None)
        assert lock.acquire()
        holdings.drop(held)
        await_true(lambda: not ask(url).exists(name), 5.0)


def test_an_acquire_that_fails_leaves_nothing(connect: Face, url: str, name: str) -> None:
    client, holdings, other = connect(url), Holdings(), connect(url).lock(name)
    assert other.acquire()
    lock = client.lock(name)
    held = holdings.add(lock.raw, None)
    assert not lock.acquire(blocking=False)
    holdings.drop(held)
    holdings.check()
    assert other.owned()


def test_a_lock_that_is_won_after_the_end_is_not_kept(connect: Face, url: str, name: str) -> None:
    client, holdings = connect(url), Holdings()
    lock = client.lock(name)
    held = holdings.add(lock.raw, None)
    end(lock, holdings, Outcome.ROLLED_BACK)
    assert lock.acquire()
    with pytest.raises(NotOwned, match="after its transaction had ended"):
        held.won()
    Faced(Dropping(holdings, held), lock._start).start("drop").result(30)
    await_true(lambda: not ask(url).exists(name), 5.0)


class Dropping:
    """Drops a lock where its acquire has failed: in the loop for asyncio."""

    def __init__(self, holdings: Holdings, held: Held) -> None:
        self._holdings, self._held = holdings, held

    def drop(self) -> Any:
        self._holdings.drop(self._held)
        return _Done()


def test_the_same_names_are_found(connect: Face, url: str, name: str) -> None:
    client, holdings = connect(url), Holdings()
    lock, multi = client.lock(name), client.multi_lock([f"{name}-1", f"{name}-2"])
    acquired(lock, holdings)
    acquired(multi, holdings)
    assert holdings.find(client.lock(name).raw) is lock.raw
    assert holdings.find(client.multi_lock([f"{name}-2", f"{name}-1"]).raw) is multi.raw
    assert holdings.find(client.lock(f"{name}-3").raw) is None
    # Another client is another holder.
    assert holdings.find(connect(url).lock(name).raw) is None
    for other in (client.fair_lock(name), client.lock(f"{name}-1"), client.multi_lock([name, f"{name}-3"])):
        with pytest.raises(AlreadyHeld, match="this transaction holds"):
            holdings.find(other.raw)
    end(lock, holdings, Outcome.ROLLED_BACK)


def test_an_on_lost_that_exits_keeps_no_other_lock(connect: Face, url: str, name: str) -> None:
    def leave(lock: object, reason: str) -> None:
        raise SystemExit

    client, holdings = connect(url), Holdings()
    lock, exiting = client.lock(name), client.lock(f"{name}-2", on_lost=leave)
    acquired(lock, holdings)
    acquired(exiting, holdings)
    ends: list[BaseException] = []

    class Catching(Ending):
        def end(self, outcome: Outcome, error: BaseException | None = None) -> Any:
            try:
                return super().end(outcome, error)
            except SystemExit as raised:
                ends.append(raised)
                return _Done()

    Faced(Catching(holdings), lock._start).start("end", Outcome.IN_DOUBT).result(30)
    assert len(ends) == 1
    assert ask(url).exists(name, f"{name}-2") == 2
    holdings.check()


def test_a_kind_of_lock_that_cannot_be_held_is_named(url: str, name: str) -> None:
    with Client(url) as client:
        check_kind(client.lock(name), (Lock, MultiLock), "it")
        check_kind(client.semaphore(name, 2), (Lock, MultiLock), "it")
        with pytest.raises(TypeError, match=r"^lock: it needs a Lock or MultiLock, as lock\(\) .*, not RLock$"):
            check_kind(client.rlock(name), (Lock, MultiLock), "it")
        with pytest.raises(TypeError, match=r"^lock: it needs a Lock or MultiLock, not AsyncLock$"):
            check_kind(AsyncClient(url).lock(name), (Lock, MultiLock), "it")


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("an error")
    error.sqlite_errorcode = code
    return error


REFUSED = [
    psycopg.errors.SerializationFailure("could not serialize access"),
    psycopg.errors.DeadlockDetected("deadlock detected"),
    psycopg.errors.ForeignKeyViolation("violates foreign key constraint"),
    psycopg.errors.RaiseException("by a deferred trigger"),
    pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"),
    pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    of_sqlite(sqlite3.SQLITE_BUSY),
    of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT),
    of_sqlite(sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY),
]
IN_DOUBT = [
    psycopg.OperationalError("server closed the connection unexpectedly"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.errors.StatementCompletionUnknown("unknown"),
    psycopg.errors.ConnectionFailure("lost"),
    psycopg.errors.InternalError_("a fault"),
    psycopg.InterfaceError("the connection is closed"),
    pymysql.err.OperationalError(2013, "Lost connection to server during query"),
    pymysql.err.OperationalError(1053, "Server shutdown in progress"),
    pymysql.err.OperationalError(1180, "Got error during COMMIT"),
    pymysql.err.InterfaceError(0, ""),
    of_sqlite(sqlite3.SQLITE_IOERR),
    sqlite3.OperationalError("an error without a code"),
    ConnectionResetError(104, "Connection reset by peer"),
    TimeoutError(),
    KeyboardInterrupt(),
    # A refused key, but no number of a database.
    KeyError("1213"),
]


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_an_error_that_the_database_answers_means_that_it_has_rolled_back(error: BaseException) -> None:
    assert surely_rolled_back(error)


@pytest.mark.parametrize("error", IN_DOUBT, ids=repr)
def test_every_other_error_is_in_doubt(error: BaseException) -> None:
    assert not surely_rolled_back(error)


@pytest.mark.parametrize("error", [*REFUSED, *IN_DOUBT], ids=repr)
def test_the_wrappers_of_sqlalchemy_and_django_change_nothing(error: BaseException) -> None:
    wrapped = OperationalError("an error")
    wrapped.__cause__ = error
    assert surely_rolled_back(wrapped) == surely_rolled_back(error)
    if isinstance(error, Exception):
        assert surely_rolled_back(DBAPIError(None, None, error)) == surely_rolled_back(error)


def test_the_state_of_asyncpg_is_read_from_its_adapter() -> None:
    adapted: Any = AsyncAdapt_asyncpg_dbapi.Error
    error = adapted("an error")
    for state, refused in (("40001", True), ("23503", True), ("57P01", False), ("08006", False), (None, False)):
        error.pgcode = error.sqlstate = state
        assert surely_rolled_back(error) == refused


def test_a_circle_of_causes_ends() -> None:
    first, second = OperationalError("first"), OperationalError("second")
    first.__cause__, second.__cause__ = second, first
    assert not surely_rolled_back(first)
