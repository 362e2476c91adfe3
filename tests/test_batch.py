"""Many locks in one round, and releases without waiting, on real masters and with both faces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, ask, await_true, finish, in_thread, run_script
from support.masters import Farm, Keys
from support.proxy import Proxy

from redlatch import AlreadyHeld, AsyncClient, Client, ClientClosed, NotOwned, QuorumUnavailable, impl

# A ttl that no test outlives: a key that is gone was deleted.
LONG = 60.0
SHORT = 5.0


def forget(urls: Any, *names: Any) -> None:
    """Delete keys as an operator would."""
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as server:
            server.delete(*names)


# --- a fleet of several kinds ------------------------------------------------------------------------


def test_each_master_of_a_mixed_fleet_gets_the_commands_that_it_knows(
    connect: Face, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    kinds = {"valkey": b"DELIFEQ", "redis-6.2": b"EVALSHA", "redis-on-path": None}
    masters = [farm.urls(1, kind)[0] for kind in kinds]
    before = proxies(masters)
    # Other tests have other lists of these masters.
    client = connect([proxy.url for proxy in before], guard=None)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    lock.extend(2 * LONG)
    await_true(lambda: [pttl > LONG * 1000 for pttl in keys(masters, name).values()] == [True] * 3)
    lock.release()
    await_true(lambda: not keys(masters, name))
    locks = client.acquire_many([f"{name}-{number}" for number in range(300)], ttl=LONG)
    assert all(locks)
    assert client.release_many(locks) == [True] * 300
    await_true(lambda: not any(ask(url).keys(f"*{name}-*") for url in masters))
    for proxy, release in zip(before, kinds.values(), strict=True):
        sent = {command[0] for command in list(proxy.commands)}
        assert release is None or release in sent
        assert (b"DELIFEQ" in sent) <= (release == b"DELIFEQ")


# --- batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_each_name_of_a_batch_has_a_result_of_its_own(
    count: int, connect: Face, farm: Farm, name: str, keys: Keys
) -> None:
    urls = farm.urls(count)
    client, other = connect(urls), connect(urls)
    names = [f"{name}-{number}" for number in range(5)]
    taken = other.lock(names[2], ttl=LONG)
    assert taken.acquire()
    locks = client.acquire_many(names, ttl=LONG)
    assert [lock is not None for lock in locks] == [True, True, False, True, True]
    assert [lock.name for lock in locks if lock] == [names[0], names[1], names[3], names[4]]
    for lock in filter(None, locks):
        assert 0 < lock.remaining() <= LONG
    await_true(lambda: len(keys(urls, names[0])) == count)
    assert client.release_many(locks) == [True, True, False, True, True]
    await_true(lambda: not any(keys(urls, each) for each in names if each != names[2]))
    assert len(keys(urls, names[2])) > count // 2


def test_a_name_that_comes_twice_is_acquired_once(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    locks = client.acquire_many([name, name], ttl=LONG)
    assert [lock is not None for lock in locks] == [True, False]
    client.release_many(locks)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 5000])
def test_a_batch_may_have_any_size(size: int, connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    locks = client.acquire_many((f"{name}-{number}" for number in range(size)), ttl=LONG)
    assert len(locks) == size
    assert all(locks)
    assert client.extend_many(locks) == [True] * size
    assert client.release_many(locks) == [True] * size
    with redis.Redis.from_url(three[0], retry=None) as server:
        await_true(lambda: not list(server.scan_iter(f"*{name}-*", count=1000)))


def test_a_batch_is_one_read_and_one_write_of_every_master(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    call = client.start("acquire_many", [f"{name}-{number}" for number in range(200)], ttl=LONG)
    # All commands arrive before the first reply is sent.
    for proxy in before:
        await_true(partial(lambda proxy: sum(command[0] == b"SET" for command in list(proxy.commands)) == 200, proxy))
        proxy.replies.set()
    client.release_many(call.result(PATIENCE))


def test_extend_many_extends_held_locks_and_returns_false_for_lost_ones(
    connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three)
    locks = client.acquire_many([f"{name}-{number}" for number in range(3)], ttl=5.0)
    forget(three, locks[1].name)
    assert client.extend_many([*locks, None, client.lock(name).raw], ttl=LONG) == [True, False, True, False, False]
    assert locks[0].remaining() > 5 and locks[1].remaining() == 0 and locks[2].remaining() > 5
    # Two of the masters were a quorum already.
    await_true(lambda: all(5000 < pttl for pttl in keys(three, locks[0].name).values()))
    assert client.release_many(locks) == [True, False, True]
    # The locks are not held any more.
    assert client.release_many(locks) == [False, False, False]


def test_a_lock_may_come_twice_in_a_batch(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    [lock] = client.acquire_many([name], ttl=LONG)
    assert client.extend_many([lock, lock]) == [True, True]
    assert client.release_many([lock, lock]) == [True, False]


def test_a_batch_without_a_quorum_raises_and_leaves_nothing(
    connect: Face, three: list[str], closed_ports: Callable[[int], list[str]], name: str, keys: Keys
) -> None:
    client = connect([three[0], *closed_ports(2)])
    with pytest.raises(QuorumUnavailable) as caught:
        client.acquire_many([f"{name}-{number}" for number in range(20)], ttl=LONG)
    assert len(caught.value.causes) == 2
    await_true(lambda: not any(keys(three[:1], f"{name}-{number}") for number in range(20)))


def test_a_batch_on_broken_connections_still_succeeds(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    client.connect()
    for proxy in before:
        proxy.cut()
    locks = client.acquire_many([f"{name}-{number}" for number in range(50)], ttl=LONG)
    assert all(locks)
    client.release_many(locks)
    await_true(lambda: not any(keys(three, f"{name}-{number}") for number in range(50)))


@pytest.mark.parametrize(("locks", "what"), [([1], "a int"), (["name"], "a str")], ids=["int", "str"])
def test_an_object_that_is_no_lock_is_refused(connect: Face, three: list[str], locks: Any, what: Any) -> None:
    client = connect(three)
    for call in (client.release_many, client.extend_many):
        with pytest.raises(TypeError, match=rf"^locks\[0\]: a lock of this client, or None, is needed, not {what}"):
            call(locks)


def test_one_name_or_one_lock_is_no_batch(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    with pytest.raises(TypeError, match="names: an iterable of names is needed, not str"):
        client.acquire_many(name)
    lock = client.lock(name)
    for call in (client.release_many, client.extend_many):
        with pytest.raises(TypeError, match=r"locks: an iterable of locks is needed, not Faced"):
            call(lock)


def test_a_lock_of_another_client_is_refused_and_nothing_is_sent(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three), connect(three)
    mine, theirs = client.acquire_many([name], ttl=LONG), other.acquire_many([f"{name}-2"], ttl=LONG)
    with pytest.raises(TypeError, match=r"^locks\[1\]: .* another client's"):
        client.release_many([*mine, *theirs])
    assert client.release_many(mine) == [True]
    assert other.release_many(theirs) == [True]


def test_a_name_that_cannot_work_is_refused_before_anything_is_sent(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    [proxy] = proxies(three[:1])
    client = connect([proxy.url, *three[1:]])
    client.connect()
    with pytest.raises(ValueError, match="name"):
        client.acquire_many([name, ""], ttl=LONG)
    assert not proxy.count(name.encode())


@pytest.mark.parametrize("turns", range(6))
def test_a_batch_that_is_cancelled_leaves_nothing(
    turns: Any, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            task = asyncio.create_task(client.acquire_many([f"{name}-{number}" for number in range(30)], ttl=LONG))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            locks = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(locks, BaseException):
                await client.release_many(locks)

    asyncio.run(main())
    assert not any(keys(three, f"{name}-{number}") for number in range(30))


def test_threads_with_batches_of_one_client_all_go_on(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        failures = []

        def work(number: Any) -> None:
            for _ in range(5):
                locks = client.acquire_many([f"{name}-{number}-{each}" for each in range(100)], ttl=LONG)
                if not all(locks) or not all(client.release_many(locks)):
                    failures.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failures


# --- releases without waiting ------------------------------------------------------------------------


def test_a_batch_on_silent_masters_ends_when_its_time_is_over(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=0.1)
    client.connect()
    for proxy in before[:2]:
        proxy.replies.clear()
    for size in (1, 2, 300):
        with pytest.raises(QuorumUnavailable):
            client.acquire_many([f"{name}-{number}" for number in range(size)], ttl=LONG)
    for proxy in before[:2]:
        proxy.replies.set()
    await_true(lambda: not any(ask(url).keys(f"*{name}-*") for url in three))


def test_a_whole_batch_times_out_at_once_while_other_threads_drive(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    with Client([proxy.url for proxy in before], attempt_timeout=0.1) as client:
        for proxy in before[:2]:
            proxy.replies.clear()
        over = threading.Event()

        def others(number: Any) -> None:
            while not over.is_set():
                with pytest.raises(QuorumUnavailable):
                    client.lock(f"{name}-other-{number}", ttl=LONG).acquire(blocking=False)

        calls = [in_thread(others, number) for number in range(4)]
        batch = in_thread(client.acquire_many, [f"{name}-{number}" for number in range(600)], LONG)
        with pytest.raises(QuorumUnavailable):
            batch.result(PATIENCE)
        over.set()
        for call in calls:
            call.result(PATIENCE)


@pytest.mark.parametrize("many", [False, True])
def test_an_attempt_during_the_close_of_the_client_fails(
    many: bool, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    names = [f"{name}-{number}" for number in range(3 if many else 1)]
    call = client.start("acquire_many", names, LONG) if many else client.lock(names[0], ttl=LONG).start("acquire")
    for proxy in before:
        await_true(partial(lambda proxy: proxy.count("SET") == len(names), proxy))
    closing = client.start("close")
    for proxy in before:
        await_true(partial(lambda proxy: proxy.count("DELIFEQ") >= len(names), proxy))
        proxy.replies.set()
    with pytest.raises(ClientClosed):
        call.result(PATIENCE)
    closing.result(PATIENCE)
    await_true(lambda: not any(keys(three, each) for each in names))


def test_a_release_without_waiting_needs_no_further_call(
    connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    lock.release(wait=False)
    assert lock.remaining() == 0
    await_true(lambda: not keys(three, name))
    with pytest.raises(NotOwned):
        lock.release(wait=False)


@pytest.mark.parametrize("count", [1, 3])
def test_a_name_can_be_acquired_again_right_after_a_release_without_waiting(
    count: int, connect: Face, farm: Farm, name: str
) -> None:
    client = connect(farm.urls(count))
    for _ in range(200):
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire(blocking=False)
        lock.release(wait=False)


def test_a_release_without_waiting_returns_before_any_answer(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    lock.release(wait=False)
    await_true(lambda: not keys(three, name))
    for proxy in before:
        proxy.replies.set()


def test_an_earlier_loss_is_reported_when_the_answers_to_the_release_come(
    connect: Face, three: list[str], name: str
) -> None:
    told = []
    # Masters that push would report the loss before the release.
    client = connect(three, on_lost=lambda lock, reason: told.append((lock, reason)), wakeups="poll")
    lock, well = client.lock(name, ttl=LONG), client.lock(f"{name}-well", ttl=LONG)
    assert lock.acquire()
    assert well.acquire()
    forget(three, name)
    well.release(wait=False)
    lock.release(wait=False)
    await_true(lambda: told)
    assert told == [(lock.raw, "a quorum had forgotten it before it was released")]


def test_a_loss_without_a_callback_is_logged(
    connect: Face, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    forget(three, name)
    with caplog.at_level(logging.WARNING, "redlatch"):
        lock.release(wait=False)
        await_true(lambda: name in caplog.text and "was lost" in caplog.text)


def test_an_on_lost_callback_may_use_the_client(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    """The callback does not run while a thread serves the client's sockets."""
    done = []
    again = lambda lock, reason: done.append(lock.acquire(blocking=False))  # noqa: E731
    # Masters that push would report the loss before the release.
    with Client(three, on_lost=again, wakeups="poll") as client:
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire()
        forget(three, name)
        lock.release(wait=False)
        await_true(lambda: done == [True])
        lock.release()


def test_an_on_lost_that_fails_is_logged_and_affects_no_other_lock(
    connect: Face, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Masters that push would report the loss before the release.
    client = connect(three, on_lost=lambda lock, reason: 1 / 0, attempt_timeout=PATIENCE, wakeups="poll")
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    forget(three, name)
    lock.release(wait=False)
    await_true(lambda: "ZeroDivisionError" in caplog.text)
    assert client.lock(name, ttl=SHORT).acquire(blocking=False)


@pytest.mark.parametrize("options", [{"on_lost": 1}, {"wait_release": None}, {"wait_release": 1}])
def test_options_that_cannot_work_are_refused(connect: Face, three: list[str], options: Any) -> None:
    [argument] = options
    with pytest.raises(TypeError, match=f"^{argument}: "):
        connect(three, **options)


def test_a_with_leaves_without_waiting_if_wait_release_is_false(
    implementation: impl.Implementation,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    keys: Keys,
) -> None:
    before = proxies(three)
    with Client([proxy.url for proxy in before], wait_release=False) as client:
        with client.lock(name, ttl=LONG):
            for proxy in before:
                proxy.replies.clear()
        # The `with` ended without an answer.
        assert not any(proxy.replies.is_set() for proxy in before)
        await_true(lambda: not keys(three, name))
        for proxy in before:
            proxy.replies.set()


THREADS_SCRIPT = """
import sys, redlatch
client = redlatch.Client(sys.argv[2:])
locks = client.acquire_many([f"{sys.argv[1]}-{number}" for number in range(300)], ttl=60)
assert all(locks)
client.release_many(locks, wait=False)
"""
ASYNCIO_SCRIPT = """
import asyncio, sys, redlatch
async def main():
    global client
    client = redlatch.AsyncClient(sys.argv[2:])
    locks = await client.acquire_many([f"{sys.argv[1]}-{number}" for number in range(300)], ttl=60)
    assert all(locks)
    await client.release_many(locks, wait=False)
asyncio.run(main())
"""


@pytest.mark.usual(
    "whether the client was forgotten does not depend on the face",
    {"forgotten": False, "text": THREADS_SCRIPT},
    {"forgotten": True, "text": ASYNCIO_SCRIPT},
)
@pytest.mark.parametrize("text", [THREADS_SCRIPT, ASYNCIO_SCRIPT], ids=["threads", "asyncio"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_releases_in_transit_survive_the_end_of_the_interpreter(
    text: Any, forgotten: bool, implementation: impl.Implementation, three: list[str], name: str
) -> None:
    # The client is gone before the interpreter ends.
    if forgotten:
        text += "import gc; del client; locks = None; gc.collect()"
    for _ in range(3):
        process = run_script(text, implementation.name, name, *three, wait=False)
        out, err = finish(process)
        assert (process.returncode, out, err) == (0, "", "")
        with redis.Redis.from_url(three[0], retry=None) as server:
            assert not list(server.scan_iter(f"*{name}-*", count=1000))


def test_a_cancelled_release_does_not_affect_a_later_acquire(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client, AsyncClient(three) as other:
            locks = await client.acquire_many([f"{name}-{number}" for number in range(4000)], ttl=LONG)
            first = locks[0]
            assert first is not None

            async def acquire_again() -> None:
                while True:
                    with contextlib.suppress(AlreadyHeld):
                        if await first.acquire(timeout=0):
                            return
                    await asyncio.sleep(0)

            again = asyncio.create_task(acquire_again())
            releasing = asyncio.create_task(client.release_many(locks))
            # The first locks are released long before the last.
            await again
            assert not releasing.done()
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            assert await first.owned()
            assert not await other.lock(f"{name}-0").acquire(timeout=0)
            await first.release()

    asyncio.run(main())
