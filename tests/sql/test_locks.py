"""Whole clients on real databases: what ShedLock's integration tests ask of a lock provider, and more."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from support.faces import PATIENCE, Faced, in_thread

from redlatch import AsyncLock, ConfigurationError, LockBusy, LockLost, LockTimeout, NotOwned, Retry, sql
from redlatch.votes.key import MAX_BYTES

from .conftest import ONE_EACH, SERVERS, FindUrl, SqlFace, execute

# Long enough for a busy machine, short enough to wait for.
SHORT = 0.4


def try_once(lock: Faced) -> bool:
    return bool(lock.acquire(blocking=False))


def test_a_lock_is_created(connect: SqlFace, database: str, name: str) -> None:
    lock = connect(database).lock(name)
    assert try_once(lock)
    assert lock.locked() and lock.owned()
    assert 9.0 < lock.remaining() < 10.0
    lock.release()
    assert not lock.locked()


def test_a_second_holder_is_refused(connect: SqlFace, database: str, name: str) -> None:
    held, other = connect(database).lock(name), connect(database).lock(name)
    assert try_once(held)
    assert not try_once(other)
    assert not other.acquire(timeout=2.0)
    held.release()
    assert try_once(other)


@pytest.mark.usefixtures("patient_question")
def test_a_timeout_names_the_holder(connect: SqlFace, database: str, name: str) -> None:
    held, other = connect(database, owner="worker-7").lock(name, ttl=60.0), connect(database).lock(name, timeout=SHORT)
    assert try_once(held)
    enter = other.raw.__enter__ if hasattr(other.raw, "__enter__") else other.raw.__aenter__
    with pytest.raises(LockTimeout, match=r"held by worker-7 for \d+ s, \d\d s left$") as caught:
        other._start(enter).result(PATIENCE)
    assert caught.value.holder is not None and caught.value.holder.owner == "worker-7"


def test_two_names_are_two_locks(connect: SqlFace, database: str, name: str) -> None:
    client = connect(database)
    assert try_once(client.lock(name)) and try_once(client.lock(name + "x"))


def test_a_lock_is_had_twice_in_a_row(connect: SqlFace, database: str, name: str) -> None:
    lock = connect(database).lock(name)
    for _ in range(2):
        assert try_once(lock)
        lock.release()


def test_a_lock_is_free_after_its_ttl(connect: SqlFace, database: str, name: str) -> None:
    held, other = connect(database).lock(name, ttl=SHORT), connect(database).lock(name)
    assert try_once(held)
    assert other.acquire(timeout=PATIENCE)
    assert held.remaining() == 0
    with pytest.raises(LockLost):
        held.release()
    assert other.owned()


def test_a_lock_is_taken_again_ten_times(connect: SqlFace, database: str, name: str) -> None:
    one, other = connect(database).lock(name), connect(database).lock(name)
    for _ in range(10):
        assert try_once(one) and not try_once(other)
        one.release()
        assert try_once(other) and not try_once(one)
        other.release()


def test_a_lock_that_nobody_releases_is_held_for_at_least_its_ttl(connect: SqlFace, database: str, name: str) -> None:
    held = connect(database).lock(name, ttl=SHORT)
    other = connect(database).lock(name)
    assert try_once(held)
    while not try_once(other):
        pass
    assert held.remaining() == 0


def test_a_holder_extends_its_lock(connect: SqlFace, database: str, name: str) -> None:
    lock = connect(database).lock(name, ttl=2.0)
    assert try_once(lock)
    lock.extend(20.0)
    assert lock.remaining() > 15
    # A shorter one does not shorten the row.
    lock.extend(1.0)
    assert lock.owned()
    lock.release()
    with pytest.raises(NotOwned):
        lock.extend(1.0)


def test_fences_only_grow(connect: SqlFace, database: str, name: str) -> None:
    one, other = connect(database), connect(database)
    fences = []
    for client in (one, other, one, one, other):
        lock = client.lock(name, fence=True)
        assert lock.acquire(timeout=PATIENCE)
        fences.append(lock.raw.fence)
        lock.release()
    assert fences == sorted(set(fences))


def test_a_fence_stays_when_plain_holders_come_in_between(connect: SqlFace, database: str, name: str) -> None:
    client = connect(database)
    fences = []
    for fence in (True, False, True):
        lock = client.lock(name, fence=fence)
        assert try_once(lock)
        fences.append(lock.raw.fence)
        lock.release()
    assert fences[0] < fences[2]


@pytest.mark.parametrize(
    "given", [bytes(range(1, 256)), b"x" * (MAX_BYTES - 30), "日本語" * 20, "a'b\"c\\d%s:e", " trailing "]
)
def test_a_name_may_have_any_bytes(threads: SqlFace, database: str, given: bytes | str, name: str) -> None:
    client, other = threads(database), threads(database)
    # The text of the name comes first, because several drivers share a database.
    whole = name.encode() + (given if isinstance(given, bytes) else given.encode())
    lock = client.lock(whole)
    assert try_once(lock) and not try_once(other.lock(whole))
    # Names that differ in one byte, in case or by a blank are different.
    near = {whole[:-1] + b"!", whole[:-1] + b" ", whole[:-1], whole.upper()} - {whole}
    assert all([try_once(other.lock(each)) for each in near])
    lock.release()


def test_a_name_that_is_too_long_is_refused(threads: SqlFace, with_table: FindUrl) -> None:
    with pytest.raises(ConfigurationError):
        threads(with_table("sqlite")).lock(b"x" * (MAX_BYTES + 1))


@pytest.mark.parametrize("mode", ["table", "session"])
@pytest.mark.parametrize("driver", SERVERS)
def test_a_waiter_is_next_after_a_release_of_another_client(
    connect: SqlFace, with_table: FindUrl, driver: str, mode: str, name: str
) -> None:
    url = with_table(driver)
    held, waiter = connect(url, mode=mode).lock(name), connect(url, mode=mode).lock(name)
    assert try_once(held)
    waiting = waiter.start("acquire", timeout=PATIENCE)
    held.release()
    assert waiting.result(PATIENCE)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"])
def test_postgresql_wakes_waiters_without_polls(
    connect: SqlFace, with_table: FindUrl, driver: str, name: str, no_backstop: None
) -> None:
    # A waiter that missed its wake-up would wait for the end of the ttl, which is longer than the test's patience.
    url = with_table(driver)
    held, client = connect(url, ttl=500.0).lock(name), connect(url)
    for number in range(20):
        assert held.acquire(timeout=PATIENCE)
        other = client.lock(name)
        waiting = other.start("acquire", timeout=2 * PATIENCE)
        held.release()
        assert waiting.result(PATIENCE), number
        other.release()


async def cancel_at_any_step(url: str, name: str) -> None:
    """Cancel attempts and waits after different times; then the lock must be free."""
    async with sql.AsyncClient(url) as client, sql.AsyncClient(url) as other:
        held = other.lock(name)
        assert await held.acquire(timeout=PATIENCE)
        for pause in (0.0, 0.001, 0.02, 0.05):
            await cancel_after(client.lock(name), pause)
        await held.release()
        for number in range(20):
            await cancel_after(client.lock(name), number * 0.0002)
        # An attempt that was cancelled under way is undone. Otherwise the row would stay for its ttl.
        assert await other.lock(name, ttl=500.0).acquire(timeout=PATIENCE)


async def cancel_after(lock: AsyncLock, pause: float) -> None:
    """Cancel an acquire after a time; release the lock if it was acquired before that."""
    task = asyncio.create_task(lock.acquire(timeout=PATIENCE))
    await asyncio.sleep(pause)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        await lock.release()


@pytest.mark.parametrize("driver", ONE_EACH)
def test_a_cancelled_task_leaves_nothing(with_table: FindUrl, driver: str, name: str) -> None:
    asyncio.run(cancel_at_any_step(with_table(driver), name))


def test_an_exception_in_the_body_releases_the_lock(with_table: FindUrl, name: str) -> None:
    for driver in ONE_EACH:
        with sql.Client(with_table(driver)) as client:
            with pytest.raises(ZeroDivisionError), client.lock(name):
                raise ZeroDivisionError
            assert not client.lock(name).locked()


def test_a_nonblocking_with_on_a_held_lock_is_busy(with_table: FindUrl, name: str) -> None:
    with sql.Client(with_table("sqlite")) as client, client.lock(name):
        with pytest.raises((LockBusy, LockTimeout)), client.lock(name, timeout=0):
            pass


def test_rlock_multi_lock_and_batches(threads: SqlFace, each_database: str, name: str) -> None:
    client, other = threads(each_database), threads(each_database)
    again = client.raw.rlock(name)
    with again, again:
        assert not try_once(other.lock(name))
    names = [f"{name}-{number}" for number in range(5)]
    both = client.multi_lock(names)
    assert both.acquire(timeout=PATIENCE)
    assert not try_once(other.lock(names[3]))
    both.release()
    batch = client.raw.acquire_many(names)
    assert not try_once(other.lock(names[4]))
    client.raw.release_many(batch)
    assert try_once(other.lock(names[4]))


@pytest.mark.parametrize("call", ["fair_lock", "semaphore", "rw_lock"])
def test_locks_that_need_scripts_are_refused(threads: SqlFace, with_table: FindUrl, call: str, name: str) -> None:
    client = threads(with_table("sqlite"))
    arguments = (name, 2) if call == "semaphore" else (name,)
    with pytest.raises(ConfigurationError, match="Redis or Valkey"):
        getattr(client.raw, call)(*arguments)


@pytest.mark.parametrize("mode", ["table", "session"])
@pytest.mark.parametrize("driver", ONE_EACH)
def test_many_threads_of_two_clients_never_overlap(
    threads: SqlFace, with_table: FindUrl, driver: str, mode: str, name: str
) -> None:
    """ShedLock's fuzz test: each holder reads and writes a number, with a pause in between."""
    if driver == "sqlite" and mode == "session":
        pytest.skip("SQLite has no sessions")
    url = with_table(driver)
    clients = [threads(url, mode=mode, retry=Retry(0.001, 0.02)).raw for _ in range(2)]
    counted, rounds, width = [0], 10 if driver == "sqlite" else 25, 4

    def work(client: Any) -> None:
        for _ in range(rounds):
            with client.lock(name, timeout=2 * PATIENCE):
                number = counted[0]
                threading.Event().wait(random.uniform(0, 0.002))
                counted[0] = number + 1

    futures: list[Future[Any]] = [in_thread(work, client) for client in clients for _ in range(width)]
    for future in futures:
        future.result(4 * PATIENCE)
    assert counted[0] == 2 * width * rounds


def test_rows_are_never_deleted(threads: SqlFace, with_table: FindUrl, name: str) -> None:
    for driver in ONE_EACH:
        url = with_table(driver)
        before = execute(url, "SELECT count(*) FROM redlatch_lock")[0][0]
        lock = threads(url).lock(name)
        assert try_once(lock)
        lock.release()
        assert execute(url, "SELECT count(*) FROM redlatch_lock")[0][0] == before + 1
