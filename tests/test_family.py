"""The lock family on real masters: re-entrant, numbered, fair and read-write locks, semaphores, multi-locks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from faces import PATIENCE, await_true, in_thread

from redlatch import (
    AlreadyHeld,
    AsyncClient,
    Client,
    ConfigurationError,
    LockBusy,
    LockError,
    LockLost,
    NotOwned,
    Retry,
)


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Any) -> list[str]:
    return farm.urls(request.param)  # type: ignore[no-any-return]


def left_behind(urls: list[str], name: str) -> list[bytes]:
    """Return the keys of that name on all masters, but the counters of numbered locks."""
    found: list[bytes] = []
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            found += [key for key in master.keys(f"*{name}*") if not key.endswith(b"\0fence")]
    return found


def without_ttl(urls: list[str], name: str) -> list[bytes]:
    found = []
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            found += [key for key in master.keys(f"*{name}*") if master.pttl(key) == -1]
    return found


# --- re-entrant -----------------------------------------------------------------------------------------


def test_a_thread_that_holds_an_rlock_may_acquire_it_again_and_releases_it_as_often(implementation, masters, name):
    with Client(masters) as client, Client(masters) as other:
        lock = client.rlock(name)
        for count in (1, 2, 3):
            assert lock.acquire()
            assert lock.count == count
        for count in (2, 1):
            lock.release()
            assert (lock.count, other.lock(name).acquire(blocking=False)) == (count, False)
        lock.release()
        assert not left_behind(masters, name)
        with pytest.raises(NotOwned, match=name):
            lock.release()


def test_another_thread_waits_for_an_rlock_and_may_not_release_it(implementation, masters, name):
    with Client(masters) as client:
        lock = client.rlock(name)
        with lock:
            with pytest.raises(NotOwned):
                in_thread(lock.release).result(PATIENCE)
            waiting = in_thread(lock.acquire)
            assert not in_thread(lambda: lock.acquire(blocking=False)).result(PATIENCE)
        assert waiting.result(PATIENCE)


def test_a_task_that_holds_an_rlock_may_acquire_it_again_and_another_waits(implementation, masters, name):
    async def main() -> None:
        async with AsyncClient(masters) as client:
            lock = client.rlock(name)
            order = []

            async def other() -> None:
                async with lock:
                    order.append("other")

            async with lock:
                task = asyncio.create_task(other())
                async with lock:
                    assert lock.count == 2
                    await asyncio.sleep(0.01)
                order.append("first")
            await task
            assert order == ["first", "other"]

    asyncio.run(main())


def test_an_rlock_that_was_lost_is_not_acquired_again(implementation, masters, name):
    with Client(masters) as client:
        lock = client.rlock(name, ttl=0.05)
        assert lock.acquire()
        await_true(lambda: not lock.remaining())
        with pytest.raises(LockLost):
            lock.acquire()
        with pytest.raises(LockLost):
            lock.release()
        assert lock.acquire()  # it is no more


# --- numbered -------------------------------------------------------------------------------------------


def test_every_holder_has_a_higher_number_than_all_before_it_over_clients_and_hand_offs(connect, masters, name):
    clients = [connect(masters) for _ in range(2)]
    numbers = []
    for turn in range(20):
        lock = clients[turn % 2].lock(name, fence=True)
        assert lock.acquire()
        numbers.append(lock.fence)
        waiting = clients[turn % 2].lock(name, fence=True)
        call = waiting.start("acquire")
        lock.release()
        assert call.result(PATIENCE)
        numbers.append(waiting.fence)
        assert lock.fence is None
        waiting.release()
    assert numbers == sorted(set(numbers))


def test_where_another_clients_clock_is_ahead_a_second_round_takes_a_higher_number(connect, masters, name):
    client = connect(masters)
    with_number = client.lock(name, fence=True)
    assert with_number.acquire()
    ahead = with_number.fence + 10**12
    with_number.release()
    for url in masters[: len(masters) // 2 + 1]:
        with redis.Redis.from_url(url, retry=None) as master:
            master.set(f"{name}\0fence", ahead, px=600_000)
    assert with_number.acquire()
    assert with_number.fence > ahead
    assert not without_ttl(masters, name)


# --- readers and writers ---------------------------------------------------------------------------------


def test_many_read_at_once_and_a_writer_is_alone(connect, masters, name):
    locks = [connect(masters).rw_lock(name) for _ in range(2)]
    readers = [lock.read() for lock in locks for _ in range(2)]
    assert all(reader.acquire() for reader in readers)
    writer = connect(masters).rw_lock(name).write()
    assert not writer.acquire(blocking=False)
    for reader in readers:
        assert reader.owned()
        reader.release()
    assert writer.acquire(timeout=PATIENCE)
    assert not locks[0].read().acquire(blocking=False)
    assert not locks[1].write().acquire(blocking=False)
    writer.extend(20.0)
    assert writer.owned()
    writer.release()
    await_true(lambda: not left_behind(masters, name))


def test_a_writer_that_waits_keeps_new_readers_out_and_has_its_turn(connect, masters, name):
    reader = connect(masters).rw_lock(name).read()
    assert reader.acquire()
    writer = connect(masters).rw_lock(name).write()
    call = writer.start("acquire")
    late = connect(masters).rw_lock(name)
    await_true(lambda: not held_briefly(late.read()))
    reader.release()
    assert call.result(PATIENCE)
    writer.release()
    assert late.read().acquire(timeout=PATIENCE)


def held_briefly(lock: Any) -> bool:
    won = lock.acquire(blocking=False)
    if won:
        lock.release()
    return bool(won)


def test_a_read_lock_cannot_be_upgraded_and_says_so(implementation, masters, name):
    with Client(masters) as client:
        both = client.rw_lock(name)
        with both.read():
            with pytest.raises(AlreadyHeld, match="cannot be upgraded"):
                both.write().acquire()
        with both.write():
            pass


# --- semaphores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permits", [1, 3])
def test_as_many_hold_a_semaphore_as_there_are_permits_and_no_more(connect, masters, name, permits):
    clients = [connect(masters) for _ in range(2)]
    locks = [clients[number % 2].semaphore(name, permits) for number in range(permits)]
    assert all(lock.acquire() for lock in locks)
    late = clients[0].semaphore(name, permits)
    assert not late.acquire(blocking=False)
    call = late.start("acquire")
    locks[-1].release()
    assert call.result(PATIENCE)
    assert all(lock.owned() for lock in [*locks[:-1], late])
    for lock in [*locks[:-1], late]:
        lock.release()
    await_true(lambda: not left_behind(masters, name))


def test_never_more_than_the_permits_are_inside(implementation, masters, name):
    inside, most = 0, 0
    guard = threading.Lock()

    def work(client: Any) -> None:
        nonlocal inside, most
        for _ in range(15):
            with client.semaphore(name, 2, timeout=PATIENCE):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    with Client(masters) as one, Client(masters) as other:
        calls = [in_thread(work, client) for client in (one, other) for _ in range(3)]
        for call in calls:
            call.result(PATIENCE)
    assert 1 <= most <= 2
    assert not left_behind(masters, name)


# --- many names ------------------------------------------------------------------------------------------


def test_a_multi_lock_holds_all_names_or_none(connect, masters, name):
    names = [f"{name}-{letter}" for letter in "abc"]
    client, other = connect(masters), connect(masters)
    taken = other.lock(names[1])
    assert taken.acquire()
    lock = client.multi_lock([*names, names[0]])
    assert lock.names == names  # each once
    assert not lock.acquire(blocking=False)
    assert [key for key in left_behind(masters[:1], name)] == [names[1].encode()]
    call = lock.start("acquire")
    taken.release()
    assert call.result(PATIENCE)
    assert lock.remaining() > 0
    assert not any(other.lock(each).acquire(blocking=False) for each in names)
    lock.extend(20.0)
    lock.release()
    assert not left_behind(masters, name)


def test_overlapping_multi_locks_do_not_wait_for_each_other_for_ever(implementation, masters, name):
    names = [f"{name}-{letter}" for letter in "abcd"]

    def work(client: Any, wanted: list[str]) -> int:
        done = 0
        for _ in range(10):
            with client.multi_lock(wanted, timeout=PATIENCE):
                done += 1
        return done

    with Client(masters) as one, Client(masters) as other:
        calls = [
            in_thread(work, one, names[:3]),
            in_thread(work, other, names[1:][::-1]),
            in_thread(work, other, [names[3], names[0]]),
        ]
        assert [call.result(PATIENCE) for call in calls] == [10, 10, 10]
    assert not left_behind(masters, name)


def test_a_multi_lock_of_which_a_name_was_lost_says_so_when_it_is_released(connect, masters, name):
    names = [f"{name}-a", f"{name}-b"]
    lock = connect(masters).multi_lock(names)
    assert lock.acquire()
    for url in masters:
        with redis.Redis.from_url(url, retry=None) as master:
            master.delete(names[0])
    with pytest.raises(LockLost, match=names[0]):
        lock.release()
    assert not left_behind(masters, name)


# --- decorators ------------------------------------------------------------------------------------------


def test_a_locked_function_runs_while_it_holds_the_lock_that_its_arguments_name(implementation, masters, name):
    with Client(masters) as client, Client(masters) as other:

        @client.locked(name + ":{day}:{kind}", ttl=5.0, timeout=0.0)
        def build(day: int, kind: str = "all") -> bool:
            """Build it."""
            return other.lock(f"{name}:{day}:{kind}").acquire(blocking=False)

        assert build(3) is False
        assert build.__doc__ == "Build it."
        with other.lock(f"{name}:4:few"), pytest.raises(LockBusy):
            build(4, kind="few")
    assert not left_behind(masters, name)


def test_a_locked_coroutine_function_is_awaited_with_its_lock(implementation, masters, name):
    async def main() -> None:
        async with AsyncClient(masters) as client, AsyncClient(masters) as other:

            @client.locked(name + ":{day}")
            async def build(day: int) -> bool:
                return await other.lock(f"{name}:{day}").acquire(blocking=False)

            assert await build(3) is False

    asyncio.run(main())


# --- its interplay ----------------------------------------------------------------------------------------

KINDS = {
    "fair": lambda client, name: client.fair_lock(name),
    "writer": lambda client, name: client.rw_lock(name).write(),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "numbered": lambda client, name: client.lock(name, fence=True),
    "multi": lambda client, name: client.multi_lock([name]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_wait_leaves_nothing_and_the_next_has_its_turn(implementation, masters, name, kind):
    async def main() -> None:
        async with AsyncClient(masters) as client, AsyncClient(masters) as other:
            held = KINDS[kind](client, name)
            await held.acquire()
            waiting = asyncio.create_task(KINDS[kind](other, name).acquire())
            last = asyncio.create_task(KINDS[kind](client, name).acquire())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await held.release()
            assert await asyncio.wait_for(last, PATIENCE)

    asyncio.run(main())
    assert not without_ttl(masters, name)


@pytest.mark.parametrize("kind", ["fair", "reader", "writer", "semaphore", "numbered"])
def test_a_client_that_closes_under_an_acquire_leaves_nothing(connect, farm, proxies, name, kind):
    urls = farm.urls(3)
    before = proxies(urls)
    client = connect([proxy.url for proxy in before])
    client.connect()
    for proxy in before:
        proxy.replies.clear()
    make = {**KINDS, "reader": lambda client, name: client.rw_lock(name).read()}[kind]
    call = make(client, name).start("acquire")
    await_true(lambda: all(proxy.count(b"EVALSHA") for proxy in before))
    client.close()
    for proxy in before:
        proxy.replies.set()
    with pytest.raises(LockError):
        call.result(PATIENCE)
    await_true(lambda: not left_behind(urls, name))


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_the_body_releases_it(implementation, masters, name, kind):
    with Client(masters) as client:
        with pytest.raises(ZeroDivisionError), KINDS[kind](client, name):
            raise ZeroDivisionError
        assert not left_behind(masters, name)


@pytest.mark.parametrize("kind", KINDS)
def test_one_holder_at_a_time_over_clients_that_only_poll(connect, masters, name, kind):
    clients = [connect(masters, wakeups="poll", retry=Retry(0.001, 0.01)) for _ in range(2)]
    held = KINDS[kind](clients[0], name)
    assert held.acquire()
    late = KINDS[kind](clients[1], name)
    call = late.start("acquire")
    held.release()
    assert call.result(PATIENCE)
    late.release()


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda client: client.semaphore("s", 0), ConfigurationError, "permits"),
        (lambda client: client.semaphore("s", -1), ConfigurationError, "permits"),
        (lambda client: client.semaphore("s", 1.0), TypeError, "permits"),
        (lambda client: client.semaphore("s", True), TypeError, "permits"),
        (lambda client: client.multi_lock([]), ConfigurationError, "names"),
        (lambda client: client.multi_lock("abc"), TypeError, "names"),
        (lambda client: client.multi_lock([3]), TypeError, "names"),
        (lambda client: client.multi_lock(["a"], timeout=-1), ConfigurationError, "timeout"),
        (lambda client: client.rlock("r", ttl=0), ConfigurationError, "ttl"),
        (lambda client: client.rlock("r", timeout=float("nan")), ConfigurationError, "timeout"),
        (lambda client: client.fair_lock("f", timeout=-1), ConfigurationError, "timeout"),
        (lambda client: client.fair_lock("", timeout=1), ConfigurationError, "name"),
        (lambda client: client.rw_lock("x", ttl=float("inf")), ConfigurationError, "ttl"),
        (lambda client: client.rw_lock("x", auto_renew=1), TypeError, "auto_renew"),
        (lambda client: client.lock("x", max_hold=3.0), ConfigurationError, "max_hold"),
        (lambda client: client.lock("x", auto_renew=True, max_hold=-1), ConfigurationError, "max_hold"),
        (lambda client: client.lock("x", on_lost=3), TypeError, "on_lost"),
        (lambda client: client.lock("x", fence=1), TypeError, "fence"),
        (lambda client: client.lock("x", fair="yes"), TypeError, "fair"),
        (lambda client: client.lock("x", fair=True, fence=True), ConfigurationError, "fence"),
        (lambda client: client.locked(3)(len), TypeError, "template|locked"),
    ],
)
def test_bad_input_is_refused_by_name(connect, url, call, error, text):
    with pytest.raises(error, match=text):
        call(connect(url).raw)


def test_a_template_that_names_no_argument_is_refused_where_it_is_written(implementation, url):
    with Client(url) as client:
        with pytest.raises(ConfigurationError, match=r"day.*what"):
            client.locked("report:{day}")(lambda what: None)
        with pytest.raises(ConfigurationError, match="malformed"):
            client.locked("report:{")(lambda what: None)
        with pytest.raises(TypeError, match="AsyncClient"):
            client.locked("report")(asyncio.sleep)


def test_the_family_is_no_lock_error_of_another_kind(implementation, url, name):
    with Client(url) as client, pytest.raises(LockError):
        client.fair_lock(name).release()
