"""`redlatch.django.atomic` on real databases: every way in which a transaction of Django ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from support.databases import Server
from support.django_databases import add_database, prepare, remove_database
from support.faces import PATIENCE, ask, await_true, in_thread
from support.transactions import DATABASES, Dying, Site

from redlatch import AlreadyHeld, AsyncClient, Client, ConfigurationError, LockBusy, LockLost, NotOwned
from redlatch.django import atomic

prepare()

from django.db import Error, connections, transaction  # noqa: E402  (it must be configured first)
from django.db.transaction import TransactionManagementError  # noqa: E402
from django.test import TestCase, TransactionTestCase  # noqa: E402

ALIAS = "locked"


class App:
    """A project with one database.

    Attributes:
        reports: what `on_lost` was called with.
    """

    def __init__(self, site: Site, url: str) -> None:
        self.site, self._url = site, url
        self.reports: list[str] = []
        self.client = Client(url, on_lost=lambda lock, reason: self.reports.append(reason))
        self.execute("DROP TABLE IF EXISTS counts")
        self.execute("CREATE TABLE counts (name VARCHAR(100) PRIMARY KEY, value INT)")

    def atomic(self, lock: Any, **options: Any) -> Any:
        return atomic(lock, using=ALIAS, **options)

    def plain(self, **options: Any) -> Any:
        return transaction.atomic(using=ALIAS, **options)

    def execute(self, statement: str, *given: Any) -> None:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(statement, given)

    def add(self, name: str, value: int = 1) -> None:
        self.execute("INSERT INTO counts VALUES (%s, %s)", name, value)

    def outside(self, name: str) -> int | None:
        """Return what others see: another thread has a connection of its own."""

        def read() -> int | None:
            self.site.fail("pass")
            try:
                with connections[ALIAS].cursor() as cursor:
                    cursor.execute("SELECT value FROM counts WHERE name = %s", [name])
                    row = cursor.fetchone()
                return None if row is None else int(row[0])
            finally:
                connections[ALIAS].close()

        future: Future[int | None] = in_thread(read)
        return future.result(PATIENCE)

    def held(self, name: str) -> bool:
        return bool(ask(self._url).exists(name))

    def released(self, name: str) -> None:
        """Wait until the lock is released. The limit is below the ttl, so that expiry cannot make a test pass."""
        await_true(lambda: not self.held(name), 5.0)

    def clean(self) -> bool:
        """Return whether nothing is left on the connection."""
        connection = connections[ALIAS]
        left = {"commit", "set_autocommit", "close"} & set(vars(connection))
        return not left and getattr(connection, "_redlatch_transaction", None) is None


@pytest.fixture(params=DATABASES)
def app(request: pytest.FixtureRequest, databases: Callable[[str], Server], tmp_path: Path, url: str) -> Iterator[App]:
    kind = request.param
    site = Site(kind, None if kind == "sqlite" else databases(kind), tmp_path)
    add_database(ALIAS, site.url("threads"), {"factory": Dying} if kind == "sqlite" else None)
    app = App(site, url)
    yield app
    app.client.close()
    site.close()
    remove_database(ALIAS)


class Whole:
    """The two ways to hold a lock for a whole transaction: our block outermost, or inside a plain one."""

    def __init__(self, app: App, way: str) -> None:
        self._app, self.way = app, way

    def __call__(self, lock: Any, body: Callable[[Any], None], **options: Any) -> None:
        app = self._app
        if self.way == "outermost":
            with app.atomic(lock, **options) as held:
                body(held)
        else:
            with app.plain():
                with app.atomic(lock, durable=False, **options) as held:
                    body(held)
                # The lock outlives our own block.
                assert app.held(held.name) or held.token is None or held.remaining() == 0


@pytest.fixture(params=["outermost", "inside"])
def whole(request: pytest.FixtureRequest, app: App) -> Whole:
    return Whole(app, request.param)


# --- the ends of a transaction -----------------------------------------------------------------------------


def test_the_lock_is_released_after_the_commit_and_not_before(app: App, whole: Whole, name: str) -> None:
    seen: list[tuple[bool, int | None]] = []

    def body(lock: Any) -> None:
        assert lock.token is not None
        app.add(name)
        transaction.on_commit(lambda: seen.append((app.held(name), app.outside(name))), using=ALIAS)
        assert (app.held(name), app.outside(name)) == (True, None)

    whole(app.client.lock(name), body)
    # The functions of `on_commit` run after the commit, and before the release.
    assert seen == [(True, 1)]
    app.released(name)
    assert (app.outside(name), app.reports, app.clean()) == (1, [], True)


def test_the_lock_is_released_after_a_rollback(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        raise LookupError

    with pytest.raises(LookupError):
        whole(app.client.lock(name), body)
    app.released(name)
    assert (app.outside(name), app.reports, app.clean()) == (None, [], True)


def test_a_rollback_without_an_exception_releases_the_lock(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        if whole.way == "outermost":
            # The check before COMMIT is left out: it would raise.
            lock.extend(0.1)
        transaction.set_rollback(True, using=ALIAS)

    whole(app.client.lock(name), body)
    app.released(name)
    assert (app.outside(name), app.clean()) == (None, True)


def test_a_connection_that_is_closed_in_the_block_releases_the_lock(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        connections[ALIAS].close()

    whole(app.client.lock(name), body)
    app.released(name)
    assert (app.outside(name), app.reports, app.clean()) == (None, [], True)


def test_the_end_of_a_savepoint_keeps_the_lock(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        with app.plain():
            app.add(f"{name}-2")
        with pytest.raises(LookupError), app.plain():
            app.add(f"{name}-3")
            raise LookupError
        assert app.held(name)
        assert app.outside(name) is None

    whole(app.client.lock(name), body)
    app.released(name)
    assert [app.outside(each) for each in (name, f"{name}-2", f"{name}-3")] == [1, 1, None]


def test_an_exception_in_on_commit_releases_the_lock(app: App, whole: Whole, name: str) -> None:
    def fail() -> None:
        raise LookupError

    def body(lock: Any) -> None:
        app.add(name)
        transaction.on_commit(fail, using=ALIAS)

    with pytest.raises(LookupError):
        whole(app.client.lock(name), body)
    app.released(name)
    assert (app.outside(name), app.reports, app.clean()) == (1, [], True)


@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_connection_that_dies_in_commit_leaves_the_lock_to_its_ttl(
    app: App, whole: Whole, name: str, mode: str
) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        app.site.fail(mode)

    lock = app.client.lock(name, auto_renew=True)
    with pytest.raises(Error):
        whole(lock, body)
    app.site.fail("pass")
    assert app.held(name)
    assert [report.partition(" (")[0] for report in app.reports] == ["the commit is in doubt"]
    # It is not renewed any more, and others cannot have it.
    assert lock._upkeep is not None and lock._upkeep.term is None
    with Client(app._url) as other:
        assert not other.lock(name).acquire(blocking=False)
    connections[ALIAS].close()
    await_true(lambda: app.outside(name) == (1 if mode == "after" else None))
    assert (len(app.reports), app.clean()) == (1, True)


def test_a_commit_that_the_database_refuses_releases_the_lock(app: App, whole: Whole, name: str) -> None:
    if app.site.kind == "mariadb":
        pytest.skip("MariaDB has no deferred constraints")
    app.execute("DROP TABLE IF EXISTS parts")
    app.execute("CREATE TABLE parts (whole VARCHAR(100) REFERENCES counts(name) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(Error):
        whole(app.client.lock(name), lambda lock: app.execute("INSERT INTO parts VALUES ('nothing')"))
    app.released(name)
    assert (app.reports, app.clean()) == ([], True)
    app.execute("DROP TABLE parts")


# --- the check before COMMIT --------------------------------------------------------------------------------


def test_a_lock_with_too_little_validity_left_rolls_back(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        lock.extend(5)

    with pytest.raises(LockLost, match="less than the margin of 10 s"):
        whole(app.client.lock(name, ttl=30), body, margin=10)
    app.released(name)
    assert (app.outside(name), app.clean()) == (None, True)
    assert connections[ALIAS].get_autocommit()
    with app.atomic(app.client.lock(name)):
        app.add(name)
    assert app.outside(name) == 1


def test_a_lock_that_is_released_early_rolls_back(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        app.add(name)
        lock.release()

    with pytest.raises(NotOwned, match="was released before its transaction committed"):
        whole(app.client.lock(name), body)
    assert (app.outside(name), app.clean()) == (None, True)


# --- nested blocks -------------------------------------------------------------------------------------------


def test_a_durable_block_is_refused_inside_another_one(app: App, name: str) -> None:
    with app.plain():
        with pytest.raises(TransactionManagementError, match="inside another atomic block"):
            with app.atomic(app.client.lock(name)):
                pytest.fail("it must not run")
        assert not app.held(name)
        assert app.clean()
    with app.atomic(app.client.lock(name)):
        with pytest.raises(TransactionManagementError, match="inside another atomic block"):
            with app.atomic(app.client.lock(f"{name}-2")):
                pytest.fail("it must not run")


@pytest.mark.parametrize("fails", [False, True])
def test_the_outermost_block_ends_the_locks_of_inner_ones(app: App, whole: Whole, name: str, fails: bool) -> None:
    def body(lock: Any) -> None:
        try:
            with app.atomic(app.client.lock(f"{name}-2"), durable=False):
                app.add(name)
                if fails:
                    raise LookupError
        except LookupError:
            pass
        assert app.held(name)
        assert app.held(f"{name}-2")

    whole(app.client.lock(name), body)
    app.released(name)
    app.released(f"{name}-2")
    assert (app.outside(name), app.clean()) == (None if fails else 1, True)


def test_the_lock_of_an_inner_block_is_checked_before_the_commit(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        with app.atomic(app.client.lock(f"{name}-2", ttl=30), durable=False) as inner:
            app.add(name)
            inner.extend(0.1)

    with pytest.raises(LockLost, match=f"{name}-2"):
        whole(app.client.lock(name), body)
    app.released(f"{name}-2")
    assert (app.outside(name), app.clean()) == (None, True)


def test_a_name_that_the_transaction_holds_is_not_acquired_again(app: App, whole: Whole, name: str) -> None:
    def body(lock: Any) -> None:
        with app.atomic(app.client.lock(name, timeout=0), durable=False) as again:
            assert again is lock
        assert app.held(name)
        with pytest.raises(AlreadyHeld), app.atomic(app.client.fair_lock(name), durable=False):
            pytest.fail("it must not run")

    whole(app.client.lock(name), body)
    app.released(name)


def test_on_commit_may_hold_the_same_lock_in_a_transaction_of_its_own(app: App, whole: Whole, name: str) -> None:
    def follow() -> None:
        with app.atomic(app.client.lock(name, timeout=0)), app.plain():
            app.add(f"{name}-2")
        assert app.held(name)

    def body(lock: Any) -> None:
        app.add(name)
        transaction.on_commit(follow, using=ALIAS)

    whole(app.client.lock(name), body)
    app.released(name)
    assert [app.outside(each) for each in (name, f"{name}-2")] == [1, 1]
    assert app.clean()


def test_a_lock_that_is_not_won_leaves_a_usable_connection(app: App, whole: Whole, name: str) -> None:
    with Client(app._url) as other:
        assert other.lock(name).acquire()
        with pytest.raises(LockBusy):
            whole(app.client.lock(name, timeout=0), lambda lock: pytest.fail("it must not run"))
    assert app.clean()
    with app.plain():
        app.add(name)
    assert app.outside(name) == 1


def test_the_next_transaction_has_no_lock(app: App, whole: Whole, name: str) -> None:
    whole(app.client.lock(name), lambda lock: app.add(name))
    app.released(name)
    with app.plain():
        app.add(f"{name}-2")
        assert not app.held(name)
    assert app.outside(f"{name}-2") == 1


def test_a_connection_without_autocommit_is_refused(app: App, name: str) -> None:
    connections[ALIAS].set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match="autocommit is off"), app.atomic(app.client.lock(name)):
            pytest.fail("it must not run")
        with app.plain(), pytest.raises(TransactionManagementError, match="autocommit is off"):
            with app.atomic(app.client.lock(name), durable=False):
                pytest.fail("it must not run")
    finally:
        connections[ALIAS].rollback()
        connections[ALIAS].set_autocommit(True)
    assert not app.held(name)


# --- decorators, tests, arguments ----------------------------------------------------------------------------


def test_a_decorator_makes_a_lock_for_each_call(app: App, name: str) -> None:
    app.add(name, 0)

    @atomic(lambda: app.client.lock(name), using=ALIAS)
    def count() -> None:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT value FROM counts WHERE name = %s", [name])
            (value,) = cursor.fetchone()
            cursor.execute("UPDATE counts SET value = %s WHERE name = %s", [value + 1, name])

    def several() -> None:
        for _ in range(5):
            count()
        connections[ALIAS].close()

    for future in [in_thread(several) for _ in range(8)]:
        future.result(PATIENCE)
    assert app.outside(name) == 40


def failures_of(case: unittest.TestCase) -> list[str]:
    """Run a test with the set-up of its class; return the tracebacks of what failed."""
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    assert result.testsRun == 1
    return [text for _, text in result.failures + result.errors]


def test_a_testcase_counts_as_no_transaction(app: App, name: str) -> None:
    observed: list[Any] = []

    class Case(TestCase):  # type: ignore[misc]
        databases = frozenset([ALIAS])

        def test(self) -> None:
            with self.captureOnCommitCallbacks(using=ALIAS, execute=True) as callbacks:
                with app.atomic(app.client.lock(name)):
                    app.add(name)
                    transaction.on_commit(lambda: observed.append("on_commit"), using=ALIAS)
                    observed.append(app.held(name))
                app.released(name)
                with app.plain(), app.atomic(app.client.lock(name), durable=False):
                    observed.append(app.held(name))
            observed.append(len(callbacks))
            self.assertTrue(connections[ALIAS].in_atomic_block)
            with self.assertRaises(LockLost), app.atomic(app.client.lock(name, ttl=30)) as lock:
                lock.extend(0.1)
            app.released(name)

    assert failures_of(Case("test")) == []
    assert observed == [True, True, "on_commit", 1]
    assert app.outside(name) is None
    assert app.clean()


def test_a_transaction_testcase_commits(app: App, name: str) -> None:
    class Case(TransactionTestCase):  # type: ignore[misc]
        databases = frozenset([ALIAS])
        available_apps: tuple[str, ...] = ()

        def _fixture_teardown(self) -> None:
            """Leave the table as it is."""

        def test(self) -> None:
            with app.atomic(app.client.lock(name)):
                app.add(name)

    assert failures_of(Case("test")) == []
    app.released(name)
    assert app.outside(name) == 1


def test_wrong_arguments_are_refused(app: App, name: str) -> None:
    for lock, options, error in (
        (app.client.rlock(name), {}, TypeError),
        (AsyncClient(app._url).lock(name), {}, TypeError),
        (lambda: None, {}, TypeError),
        (app.client.lock(name), {"durable": 1}, TypeError),
        (app.client.lock(name), {"margin": "1"}, TypeError),
        (app.client.lock(name), {"margin": 60}, ConfigurationError),
    ):
        with pytest.raises(error), app.atomic(lock, **options):
            pytest.fail("it must not run")
    assert not app.held(name)
    assert app.clean()


def test_methods_that_another_library_has_replaced_come_back(app: App, name: str) -> None:
    connection, calls = connections[ALIAS], []
    former = connection.commit

    def commit() -> None:
        calls.append(threading.current_thread())
        former()

    connection.commit = commit
    try:
        with app.plain(), app.atomic(app.client.lock(name), durable=False):
            app.add(name)
        assert connection.commit is commit
        assert len(calls) == 1
    finally:
        del connection.commit
    app.released(name)


def test_the_package_imports_no_django() -> None:
    program = "import sys, redlatch.django; print(callable(redlatch.django.atomic), 'django' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["True", "False"]
    program = "import redlatch.django.atomic; from redlatch.django import atomic; print(callable(atomic))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["True"]
