"""`redlatch.sqlalchemy.hold` on real databases: both faces, every way in which a transaction ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Integer, String, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from support.databases import Server
from support.faces import PATIENCE, await_true, in_thread
from support.transactions import DATABASES, Site, begin_at_once, entered, resolve

from redlatch import (
    AlreadyHeld,
    AsyncClient,
    Client,
    ConfigurationError,
    LockBusy,
    LockLost,
    LockTimeout,
    NotOwned,
)
from redlatch.sqlalchemy import _on_error, hold
from redlatch.testing import embedded


class Base(DeclarativeBase):
    pass


class Counter(Base):
    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[int] = mapped_column(Integer)


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, databases: Callable[[str], Server], tmp_path: Path) -> Iterator[Site]:
    """Return each database in turn, with an empty table."""
    kind = request.param
    site = Site(kind, None if kind == "sqlite" else databases(kind), tmp_path)
    engine = create_engine(site.url("threads", direct=True), poolclass=NullPool)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield site
    site.close()


class App:
    """An application of one face with one database; `run` runs a test, in which both faces look alike.

    Attributes:
        reports: what `on_lost` was called with.
    """

    def __init__(self, face: str, site: Site, url: str) -> None:
        self.face, self.site = face, site
        self.reports: list[str] = []
        self.client: Any = None
        self.wakeups: Any = "auto"
        self.engine: Any = None
        self._url = url
        # It looks at the database and at the masters from outside.
        self.outside = create_engine(site.url("threads", direct=True), poolclass=NullPool)
        self.other = Client(url)
        self.master = redis.Redis.from_url(url)

    def run(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            make = AsyncClient if self.face == "asyncio" else Client
            engines = create_async_engine if self.face == "asyncio" else create_engine
            # NullPool, because a connection that was broken in one test must not be met in the next one.
            self.engine = engines(self.site.url(self.face), poolclass=NullPool, connect_args=self.site.connect_args)
            if self.site.kind == "sqlite":
                begin_at_once(self.engine.sync_engine if self.face == "asyncio" else self.engine)
            report = lambda lock, reason: self.reports.append(reason)  # noqa: E731
            async with entered(make(self._url, on_lost=report, wakeups=self.wakeups)) as client:
                self.client = client
                await asyncio.wait_for(body(), PATIENCE)
            await resolve(self.engine.dispose())

        asyncio.run(whole())

    def session(self, **options: Any) -> Any:
        return (AsyncSession if self.face == "asyncio" else Session)(self.engine, **options)

    @asynccontextmanager
    async def begun(self, **options: Any) -> AsyncIterator[Any]:
        """Enter a session and its transaction."""
        async with entered(self.session(**options)) as session, entered(session.begin()):
            yield session

    async def hold(self, session: Any, lock: Any, **options: Any) -> Any:
        return await resolve(hold(session, lock, **options))

    def held(self, name: str) -> bool:
        """Return whether the lock stands on the master."""
        return bool(self.master.exists(name))

    async def released(self, name: str) -> None:
        """Wait until the lock is released. The limit is below the ttl, so that expiry cannot make a test pass."""
        async with asyncio.timeout(5.0):
            while self.held(name):
                await asyncio.sleep(0.001)

    def value(self, name: str) -> int | None:
        """Return what others see in the table."""
        with Session(self.outside) as session:
            return session.scalar(select(Counter.value).where(Counter.name == name))

    def close(self) -> None:
        self.other.close()
        self.master.close()
        self.outside.dispose()


@pytest.fixture(params=["threads", "asyncio"])
def app(request: pytest.FixtureRequest, site: Site, url: str) -> Iterator[App]:
    app = App(request.param, site, url)
    yield app
    app.close()


def sync_session(session: Any) -> Session:
    return session.sync_session if isinstance(session, AsyncSession) else session


# --- the ends of a transaction --------------------------------------------------------------------------


def test_the_lock_is_released_after_the_commit_and_not_before(app: App, name: str) -> None:
    seen: list[tuple[bool, int | None]] = []

    async def body() -> None:
        async with app.begun() as session:
            lock = await app.hold(session, app.client.lock(name))
            assert lock.token is not None
            session.add(Counter(name=name, value=1))
            await resolve(session.flush())
            assert (app.held(name), app.value(name)) == (True, None)
            # The connection has committed, and the session has not ended yet.
            event.listen(
                sync_session(session), "after_commit", lambda _: seen.append((app.held(name), app.value(name)))
            )
        assert seen == [(True, 1)]
        await app.released(name)
        assert lock.token is None

    app.run(body)
    assert app.reports == []


@pytest.mark.parametrize("way", ["rollback", "exception", "close"])
def test_the_lock_is_released_after_a_rollback(app: App, name: str, way: str) -> None:
    async def work(session: Any) -> None:
        await app.hold(session, app.client.lock(name))
        session.add(Counter(name=name, value=1))
        await resolve(session.flush())
        assert app.held(name)

    async def body() -> None:
        async with entered(app.session()) as session:
            if way == "exception":
                with pytest.raises(LookupError):
                    async with entered(session.begin()):
                        await work(session)
                        raise LookupError
            else:
                await work(session)
                await resolve(getattr(session, way)())
            await app.released(name)
        assert app.value(name) is None

    app.run(body)
    assert app.reports == []


def test_a_session_that_never_sent_anything_releases_the_lock(app: App, name: str) -> None:
    async def body() -> None:
        async with app.begun() as session:
            await app.hold(session, app.client.lock(name))
            assert app.held(name)
        await app.released(name)

    app.run(body)


@pytest.mark.parametrize("outcome", ["released", "rolled back"])
def test_the_end_of_a_savepoint_keeps_the_lock(app: App, name: str, outcome: str) -> None:
    async def body() -> None:
        async with app.begun() as session:
            await app.hold(session, app.client.lock(name))
            session.add(Counter(name=name, value=1))
            async with entered(session.begin_nested()) as savepoint:
                session.add(Counter(name=f"{name}-2", value=1))
                await resolve(session.flush())
                if outcome == "rolled back":
                    await resolve(savepoint.rollback())
            assert app.held(name)
            assert app.value(name) is None
        await app.released(name)
        assert app.value(name) == 1
        assert app.value(f"{name}-2") == (1 if outcome == "released" else None)

    app.run(body)


def test_a_hold_inside_a_savepoint_lasts_until_the_outermost_end(app: App, name: str) -> None:
    async def body() -> None:
        async with app.begun() as session:
            async with entered(session.begin_nested()):
                # A savepoint opens the connection, so the transaction has begun.
                await app.hold(session, app.client.lock(name), late=True)
                session.add(Counter(name=name, value=1))
            assert (app.held(name), app.value(name)) == (True, None)
        await app.released(name)
        assert app.value(name) == 1

    app.run(body)


def test_an_exception_after_the_commit_releases_the_lock(app: App, name: str) -> None:
    def fail(_: Session) -> None:
        raise LookupError

    async def body() -> None:
        with pytest.raises(LookupError):
            async with app.begun() as session:
                event.listen(sync_session(session), "after_commit", fail)
                await app.hold(session, app.client.lock(name))
                session.add(Counter(name=name, value=1))
        await app.released(name)
        assert app.value(name) == 1

    app.run(body)
    assert app.reports == []


def test_the_next_transaction_of_a_session_has_no_lock(app: App, name: str) -> None:
    async def body() -> None:
        async with entered(app.session()) as session:
            await app.hold(session, app.client.lock(name))
            session.add(Counter(name=name, value=1))
            await resolve(session.commit())
            await app.released(name)
            session.add(Counter(name=f"{name}-2", value=1))
            await resolve(session.flush())
            assert not app.held(name)
            await resolve(session.commit())
            # And it may hold the same lock again.
            await app.hold(session, app.client.lock(name))
            assert app.held(name)
            await resolve(session.commit())
            await app.released(name)

    app.run(body)


# --- the commit in doubt ----------------------------------------------------------------------------------


def test_an_engine_is_listened_to_although_a_former_one_had_its_address(url: str, name: str) -> None:
    """The dialect of an engine may outlive it. SQLAlchemy then takes another engine at the same place for it."""
    outlived = []
    while True:
        engine = create_engine("sqlite://")
        if event.contains(engine, "handle_error", _on_error):
            break
        event.listen(engine, "handle_error", _on_error)
        outlived.append(engine.dialect)
        assert len(outlived) < 10_000
        del engine
    with Client(url) as client, Session(engine) as session, session.begin():
        hold(session, client.lock(name, ttl=10.0))
        session.execute(text("SELECT 1"))
        assert _on_error in list(engine.dialect.dispatch.handle_error)


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("auto_renew", [False, True])
def test_a_connection_that_dies_in_commit_leaves_the_lock_to_its_ttl(
    app: App, name: str, mode: str, auto_renew: bool
) -> None:
    async def body() -> None:
        with pytest.raises(DBAPIError):
            async with app.begun() as session:
                lock = await app.hold(session, app.client.lock(name, auto_renew=auto_renew))
                session.add(Counter(name=name, value=1))
                await resolve(session.flush())
                app.site.fail(mode)
        assert app.held(name)
        assert len(app.reports) == 1
        assert app.reports[0].startswith("the commit is in doubt (")
        # It is not renewed any more (tests/test_transactions.py waits for its end), and others cannot have it.
        assert lock._upkeep.term is None
        assert not app.other.lock(name).acquire(blocking=False)
        assert 0 < app.master.pttl(name) <= 10_000

    app.run(body)
    await_true(lambda: app.value(name) == (1 if mode == "after" else None))
    assert len(app.reports) == 1


def test_a_server_that_is_killed_before_commit_releases_the_lock(app: App, name: str) -> None:
    """The connection breaks in an earlier statement, so no COMMIT was sent."""
    if app.site.cutter is None:
        pytest.skip("SQLite has no connection")

    async def body() -> None:
        with pytest.raises(DBAPIError):
            async with app.begun() as session:
                await app.hold(session, app.client.lock(name))
                session.add(Counter(name=name, value=1))
                await resolve(session.flush())
                assert app.site.cutter is not None
                app.site.cutter.cut()
                await resolve(session.execute(text("SELECT 1")))
        await app.released(name)

    app.run(body)
    assert app.reports == []


def test_a_commit_on_a_connection_that_is_dead_already_is_in_doubt(app: App, name: str) -> None:
    """The client cannot know whether the server has seen the COMMIT."""
    if app.site.cutter is None:
        pytest.skip("SQLite has no connection")
    cutter = app.site.cutter

    async def body() -> None:
        with pytest.raises(DBAPIError):
            async with app.begun() as session:
                await app.hold(session, app.client.lock(name))
                await count(app, session, name)
                cutter.cut()
        assert app.held(name)
        assert len(app.reports) == 1

    app.run(body)


def test_an_interrupt_in_commit_is_in_doubt(site: Site, url: str, name: str) -> None:
    if site.cutter is None:
        pytest.skip("SQLite commits without waiting")
    reports: list[str] = []
    cutter, engine = site.cutter, create_engine(site.url("threads"), poolclass=NullPool)

    def interrupt() -> None:
        assert cutter.reached.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        # psycopg waits for the answer before it raises.
        cutter.release.set()

    with Client(url, on_lost=lambda lock, reason: reports.append(reason)) as client:
        struck = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt), Session(engine) as session, session.begin():
            lock = hold(session, client.lock(name))
            session.add(Counter(name=name, value=1))
            session.flush()
            site.fail("hold")
        struck.result(PATIENCE)
        assert reports == [
            "the commit is in doubt (KeyboardInterrupt), so the lock was not released and runs out with its ttl"
        ]
        assert lock.owned()
        # The program has found out how the transaction ended.
        lock.release()
    engine.dispose()


def test_a_commit_that_is_cancelled_is_in_doubt(site: Site, url: str, name: str) -> None:
    if site.cutter is None:
        pytest.skip("the thread of aiosqlite commits in any case")
    app = App("asyncio", site, url)
    cutter = site.cutter

    async def work() -> None:
        async with app.begun() as session:
            await app.hold(session, app.client.lock(name))
            session.add(Counter(name=name, value=1))
            await session.flush()
            site.fail("hold")

    async def body() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(cutter.reached.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert app.held(name)
        assert [report.partition("(")[0] for report in app.reports] == ["the commit is in doubt "]

    app.run(body)
    app.close()


def test_a_commit_that_the_database_refuses_releases_the_lock(app: App, name: str) -> None:
    """A deferred constraint fails in COMMIT, so the transaction was surely rolled back."""
    if app.site.kind == "mariadb":
        pytest.skip("MariaDB has no deferred constraints")
    with app.outside.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS parts"))
        connection.execute(
            text("CREATE TABLE parts (whole VARCHAR(100) REFERENCES counters(name) DEFERRABLE INITIALLY DEFERRED)")
        )

    async def body() -> None:
        with pytest.raises(DBAPIError):
            async with app.begun() as session:
                await app.hold(session, app.client.lock(name))
                await resolve(session.execute(text("INSERT INTO parts VALUES ('nothing')")))
        await app.released(name)

    app.run(body)
    assert app.reports == []
    with app.outside.begin() as connection:
        connection.execute(text("DROP TABLE parts"))


def test_a_handler_of_errors_that_replaces_them_hides_no_doubt(app: App, name: str) -> None:
    class Replaced(Exception):
        pass

    def replace(context: Any) -> None:
        raise Replaced

    async def body() -> None:
        event.listen(app.engine if app.face == "threads" else app.engine.sync_engine, "handle_error", replace)
        with pytest.raises(Replaced):
            async with app.begun() as session:
                await app.hold(session, app.client.lock(name))
                await count(app, session, name)
                app.site.fail("after")
        assert app.held(name)
        assert len(app.reports) == 1

    app.run(body)


def test_a_forgotten_session_gives_its_connection_back(site: Site, url: str, name: str) -> None:
    app = App("threads", site, url)
    engine = create_engine(site.url("threads"), pool_size=1, max_overflow=0)
    with Client(url) as client:
        session = Session(engine)
        lock = hold(session, client.lock(name, auto_renew=True))
        session.execute(text("SELECT 1"))
        forgotten = weakref.ref(lock)
        del session, lock
        gc.collect()
        assert forgotten() is None
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
    engine.dispose()
    app.close()


def test_an_end_outside_the_event_loop_is_logged(
    site: Site, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("asyncio", site, url)

    async def body() -> None:
        session = app.session()
        await app.hold(session, app.client.lock(name))
        # It has no connection yet, so nothing must be awaited.
        await asyncio.to_thread(session.sync_session.close)

    app.run(body)
    assert f"lock {name!r} was not released after its transaction: no event loop runs here" in caplog.text
    app.close()


def test_a_lock_inside_the_transaction_loses_an_update_and_a_hold_does_not(site: Site, url: str, name: str) -> None:
    """The pitfall itself: the next holder reads before the COMMIT."""
    engine = create_engine(site.url("threads"), poolclass=NullPool, isolation_level=_committed(site))
    with Session(engine) as session, session.begin():
        session.add(Counter(name=name, value=0))
    read, first = threading.Event(), threading.Event()

    def add(session: Session) -> None:
        value = session.scalar(text("SELECT value FROM counters")) or 0
        read.set()
        session.execute(
            text("UPDATE counters SET value = :value WHERE name = :name"), {"name": name, "value": value + 1}
        )

    with Client(url) as client:

        def inside() -> None:
            with Session(engine) as session, session.begin(), client.lock(name):
                add(session)

        def ours() -> None:
            with Session(engine) as session, session.begin():
                first.set()
                hold(session, client.lock(name))
                add(session)

        for way, counted in ((inside, 1), (ours, 3)):
            read.clear()
            with Session(engine) as session:
                if way is inside:
                    with client.lock(name):
                        add(session)
                else:
                    hold(session, client.lock(name))
                    add(session)
                read.clear()
                other = in_thread(way)
                # The other one reads the old value; with hold() it waits for the lock instead.
                assert (read if way is inside else first).wait(PATIENCE)
                assert read.is_set() == (way is inside)
                session.commit()
            other.result(PATIENCE)
            with Session(engine) as session:
                assert session.scalar(select(Counter.value)) == counted
    engine.dispose()


def _committed(site: Site) -> str:
    """Return the isolation level at which each statement sees earlier commits; that of SQLite does."""
    return "SERIALIZABLE" if site.kind == "sqlite" else "READ COMMITTED"


# --- the check before COMMIT --------------------------------------------------------------------------------


async def count(app: App, session: Any, name: str) -> None:
    """Insert a row, so that there is something to commit."""
    session.add(Counter(name=name, value=1))
    await resolve(session.flush())


def test_a_lock_with_too_little_validity_left_rolls_back(app: App, name: str) -> None:
    async def body() -> None:
        async with entered(app.session()) as session:
            lock = await app.hold(session, app.client.lock(name, ttl=30), margin=10)
            await count(app, session, name)
            await resolve(lock.extend(5))
            with pytest.raises(LockLost, match=r"less than the margin of 10 s, so the transaction is rolled back"):
                await resolve(session.commit())
            # The database has no transaction any more, although the session waits for its own rollback().
            with app.outside.begin() as connection:
                connection.execute(text("INSERT INTO counters VALUES (:name, 7)"), {"name": name})
            assert app.held(name)
            await resolve(session.rollback())
            await app.released(name)
        assert app.value(name) == 7

    app.run(body)


def test_a_lock_that_ran_out_rolls_back(app: App, name: str) -> None:
    async def body() -> None:
        with pytest.raises(LockLost):
            async with app.begun() as session:
                lock = await app.hold(session, app.client.lock(name, ttl=0.3), margin=0)
                await count(app, session, name)
                await resolve(
                    asyncio.to_thread(lock.lost.wait, PATIENCE) if app.face == "threads" else lock.lost.wait()
                )
                assert app.other.lock(name).acquire(timeout=PATIENCE)
        assert app.value(name) is None
        # The release of the former holder left the lock of the next one alone.
        assert app.held(name)

    app.run(body)
    assert len(app.reports) == 1


def test_a_lock_that_the_masters_lost_is_reported_and_not_raised(app: App, name: str) -> None:
    """Nobody knows of it before COMMIT, so the release finds it, and the transaction has committed."""

    async def body() -> None:
        async with app.begun() as session:
            await app.hold(session, app.client.lock(name))
            await count(app, session, name)
            app.master.delete(name)
        async with asyncio.timeout(PATIENCE):
            while not app.reports:
                await asyncio.sleep(0.001)
        assert app.value(name) == 1

    # The master must not push the loss before COMMIT.
    app.wakeups = "poll"
    app.run(body)
    assert app.reports == ["a quorum had forgotten it before it was released"]


def test_a_lock_that_is_released_early_rolls_back(app: App, name: str) -> None:
    async def body() -> None:
        with pytest.raises(NotOwned, match="was released before its transaction committed"):
            async with app.begun() as session:
                lock = await app.hold(session, app.client.lock(name))
                await count(app, session, name)
                await resolve(lock.release())
        assert app.value(name) is None
        with pytest.raises(NotOwned, match="was released before its transaction committed"):
            async with app.begun() as session:
                lock = await app.hold(session, app.client.lock(name))
                await count(app, session, name)
                await resolve(lock.release())
                # The same object holds a later lock, which does not protect what was read before.
                assert await resolve(lock.acquire())
        assert app.value(name) is None
        assert app.held(name)

    app.run(body)


def test_masters_that_are_gone_do_not_fail_a_commit(site: Site, name: str) -> None:
    for face in ("threads", "asyncio"):
        fleet = embedded.masters(1)
        with fleet as urls:
            app = App(face, site, urls[0])

            async def body(app: App = app, fleet: embedded.Masters = fleet) -> None:
                async with app.begun() as session:
                    await app.hold(session, app.client.lock(name))
                    await count(app, session, f"{name}-{app.face}")
                    fleet.kill(0)
                assert app.value(f"{name}-{app.face}") == 1

            app.run(body)
            app.close()


def test_a_closed_client_does_not_fail_a_commit(app: App, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with app.begun() as session:
            await app.hold(session, app.client.lock(name))
            await count(app, session, name)
            await resolve(app.client.close())
        assert app.value(name) == 1

    app.run(body)
    assert f"lock {name!r} was not released after its transaction" in caplog.text


# --- what cannot work ---------------------------------------------------------------------------------------


def test_a_transaction_that_has_begun_is_refused_unless_late(app: App, name: str) -> None:
    async def body() -> None:
        async with entered(app.session()) as session:
            await resolve(session.execute(text("SELECT 1")))
            with pytest.raises(ConfigurationError, match="uses a connection already"):
                await app.hold(session, app.client.lock(name))
            assert not app.held(name)
            await app.hold(session, app.client.lock(name), late=True)
            await count(app, session, name)
            await resolve(session.commit())
            await app.released(name)
            assert app.value(name) == 1

    app.run(body)


def test_a_lock_that_is_not_won_leaves_a_usable_session(app: App, name: str) -> None:
    async def body() -> None:
        assert app.other.lock(name).acquire()
        async with entered(app.session()) as session:
            with pytest.raises(LockBusy):
                await app.hold(session, app.client.lock(name, timeout=0))
            with pytest.raises(LockTimeout):
                await app.hold(session, app.client.lock(name, timeout=0.05))
            await app.hold(session, app.client.lock(f"{name}-2"))
            await count(app, session, name)
            await resolve(session.commit())
        assert app.value(name) == 1
        await app.released(f"{name}-2")
        assert app.held(name)

    app.run(body)


def test_objects_that_were_loaded_before_are_read_again(app: App, name: str) -> None:
    with app.outside.begin() as connection:
        connection.execute(text("INSERT INTO counters VALUES (:name, 1)"), {"name": name})

    async def body() -> None:
        async with entered(app.session(expire_on_commit=False)) as session:
            counter = await resolve(session.get(Counter, name))
            await resolve(session.commit())
            with app.outside.begin() as connection:
                connection.execute(text("UPDATE counters SET value = 5"))
            await app.hold(session, app.client.lock(name))
            assert (await resolve(session.get(Counter, name))).value == 5
            await resolve(session.commit())
            counter.value += 1
            with pytest.raises(ConfigurationError, match="unsaved changes of 1 objects"):
                await app.hold(session, app.client.lock(name))
            await app.hold(session, app.client.lock(name), expire=False)
            await resolve(session.commit())
        assert app.value(name) == 6

    app.run(body)


def test_a_transaction_of_the_connection_is_refused(site: Site, url: str, name: str) -> None:
    app = App("threads", site, url)
    if site.kind == "sqlite":
        begin_at_once(app.outside)
    with Client(url) as client, app.outside.connect() as connection:
        outer = connection.begin()
        with Session(connection) as session:
            with pytest.raises(ConfigurationError, match="its connection has begun the transaction"):
                hold(session, client.lock(name))
        # The recipe of SQLAlchemy for test suites: the session only makes savepoints.
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            hold(session, client.lock(name))
            session.add(Counter(name=name, value=1))
            session.commit()
        await_true(lambda: not app.held(name), 5.0)
        outer.rollback()
        # A connection without a transaction leaves it to the session.
        with Session(connection) as session:
            lock = hold(session, client.lock(name))
            session.add(Counter(name=name, value=1))
            session.flush()
            lock.extend(0.5)
            with pytest.raises(LockLost):
                session.commit()
            session.rollback()
            assert app.value(name) is None
            hold(session, client.lock(name))
            session.add(Counter(name=name, value=2))
            session.commit()
            assert app.value(name) == 2
    app.close()


def test_two_phase_commit_and_wrong_arguments_are_refused(app: App, name: str) -> None:
    async def body() -> None:
        for options, error in (
            ({"late": 1}, TypeError),
            ({"expire": None}, TypeError),
            ({"margin": "1"}, TypeError),
            ({"margin": -1}, ConfigurationError),
            ({"margin": 10}, ConfigurationError),
        ):
            async with entered(app.session()) as session:
                with pytest.raises(error):
                    await app.hold(session, app.client.lock(name, ttl=10), **options)
        async with entered(app.session(twophase=True)) as session:
            with pytest.raises(ConfigurationError, match="twophase=False"):
                await app.hold(session, app.client.lock(name))
        async with entered(app.session()) as session:
            for wrong in (app.client.rlock(name), None, name):
                with pytest.raises(TypeError, match=r"as lock\(\) and multi_lock\(\) make it"):
                    await app.hold(session, wrong)
            if app.face == "asyncio":
                with pytest.raises(TypeError, match="needs a AsyncLock or AsyncMultiLock, not Lock"):
                    await app.hold(session, app.other.lock(name))
        with pytest.raises(TypeError, match="session: "):
            await app.hold(object(), app.client.lock(name))
        assert not app.held(name)

    app.run(body)


def test_a_hold_that_is_not_awaited_cannot_commit(site: Site, url: str, name: str) -> None:
    app = App("asyncio", site, url)

    async def body() -> None:
        with pytest.raises(NotOwned, match="is not held yet"):
            async with app.begun() as session:
                forgotten = hold(session, app.client.lock(name))
                await count(app, session, name)
        forgotten.close()
        assert app.value(name) is None

    app.run(body)
    app.close()


def test_a_cancelled_hold_leaves_nothing_behind(site: Site, url: str, name: str) -> None:
    app = App("asyncio", site, url)

    async def work() -> None:
        async with app.begun() as session:
            await hold(session, app.client.lock(name))

    async def body() -> None:
        blocker = app.client.lock(name)
        assert await blocker.acquire()
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await blocker.release()
        await app.released(name)

    app.run(body)
    app.close()


def test_an_acquire_that_wins_after_the_end_of_its_transaction_is_undone(site: Site, url: str, name: str) -> None:
    app = App("asyncio", site, url)

    async def body() -> None:
        blocker = app.client.lock(name)
        assert await blocker.acquire()
        async with app.session() as session:
            task = asyncio.create_task(hold(session, app.client.lock(name)))
            await asyncio.sleep(0)
        await blocker.release()
        with pytest.raises(NotOwned, match="after its transaction had ended"):
            await task
        await app.released(name)

    app.run(body)
    app.close()


# --- several locks -----------------------------------------------------------------------------------------


def test_a_name_that_the_transaction_holds_is_not_acquired_again(app: App, name: str) -> None:
    async def body() -> None:
        async with app.begun() as session:
            first = await app.hold(session, app.client.lock(name, fence=True))
            await count(app, session, name)
            # Also after statements: this adds no lock.
            assert await app.hold(session, app.client.lock(name, fence=True, timeout=0)) is first
            with pytest.raises(AlreadyHeld, match="hold all names with one lock of one kind"):
                await app.hold(session, app.client.lock(name, timeout=0))
            with pytest.raises(AlreadyHeld):
                await app.hold(session, app.client.multi_lock([name, f"{name}-2"], timeout=0))
            assert app.held(name)
            assert not app.held(f"{name}-2")
        await app.released(name)

    app.run(body)


def test_a_multi_lock_is_held_and_released_as_one(app: App, name: str) -> None:
    names = [f"{name}-1", f"{name}-2"]

    async def body() -> None:
        async with app.begun() as session:
            lock = await app.hold(session, app.client.multi_lock(names))
            await app.hold(session, app.client.lock(name))
            await count(app, session, name)
            assert [app.held(each) for each in [*names, name]] == [True] * 3
            assert lock.remaining() > 5
        for each in [*names, name]:
            await app.released(each)
        with pytest.raises(DBAPIError):
            async with app.begun() as session:
                await app.hold(session, app.client.multi_lock(names))
                await count(app, session, f"{name}-2")
                app.site.fail("before")
        assert [app.held(each) for each in names] == [True] * 2
        assert [report.partition("(")[0] for report in app.reports] == ["the commit is in doubt "] * 2

    app.run(body)


def test_scoped_sessions_are_looked_through(site: Site, url: str, name: str) -> None:
    app = App("threads", site, url)
    with Client(url) as client:
        scoped = scoped_session(sessionmaker(app.outside))
        hold(scoped, client.lock(name))
        scoped.add(Counter(name=name, value=1))
        assert app.held(name)
        scoped.commit()
        scoped.remove()
        await_true(lambda: not app.held(name), 5.0)
    app.close()
    app = App("asyncio", site, url)

    async def body() -> None:
        scoped = async_scoped_session(async_sessionmaker(app.engine), asyncio.current_task)
        await hold(scoped, app.client.lock(name))
        assert app.held(name)
        await scoped.remove()
        await app.released(name)

    app.run(body)
    app.close()


@pytest.mark.parametrize("commits", [False, True])
def test_a_transaction_with_two_databases_is_checked_before_the_first_commit(
    site: Site, url: str, name: str, commits: bool
) -> None:
    """A check between the two would leave half of the work."""
    app = App("threads", site, url)
    second = create_engine(f"sqlite:///{site.path}-2", poolclass=NullPool)
    Base.metadata.create_all(second)
    with Client(url) as client, Session() as session:
        lock = hold(session, client.lock(name, ttl=60), margin=50)
        for engine in (app.outside, second):
            connection = session.connection(bind_arguments={"bind": engine})
            connection.execute(text("INSERT INTO counters VALUES (:name, 1)"), {"name": name})
            if commits:
                # From the first COMMIT on, the lock has too little validity for another one.
                event.listen(connection, "commit", lambda _: lock.extend(40))
        if commits:
            session.commit()
        else:
            lock.extend(40)
            with pytest.raises(LockLost):
                session.commit()
            session.rollback()
        for engine in (app.outside, second):
            with engine.connect() as connection:
                assert connection.scalar(text("SELECT count(*) FROM counters")) == commits
        await_true(lambda: not app.held(name), 5.0)
    second.dispose()
    app.close()
