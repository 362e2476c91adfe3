"""The lock family on real masters: re-entrant, fenced, fair and read-write locks, semaphores, multi-locks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, ask, await_true, in_thread, wins
from support.masters import Farm
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import (
    AlreadyHeld,
    AsyncClient,
    Client,
    ConfigurationError,
    LockBusy,
    LockError,
    LockLost,
    NotOwned,
    QuorumUnavailable,
    Retry,
    impl,
)
from redlatch.locks import reentrant
from redlatch.quorum.kinds import readwrite
from redlatch.testing import embedded
from redlatch.votes import family_scripts

DEFAULT_TTL = 10.0


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Any) -> list[str]:
    return farm.urls(request.param)  # type: ignore[no-any-return]


def left_behind(urls: list[str], name: str) -> list[bytes]:
    """Return the keys of that name on all masters, except the fence counters."""
    found: list[bytes] = []
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            found += [key for key in master.keys(f"*{name}*") if not key.endswith(b"\0fence")]
    return found


def await_nothing_left(urls: list[str], name: str) -> None:
    """Wait until no key of that name is left; a master whose answer was not needed may be late.

    The limit is below the default ttl, so that expiry cannot make the test pass.
    """
    await_true(lambda: not left_behind(urls, name), DEFAULT_TTL / 2)


def without_ttl(urls: list[str], name: str) -> list[bytes]:
    found = []
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            found += [key for key in master.keys(f"*{name}*") if master.pttl(key) == -1]
    return found


# --- re-entrant -----------------------------------------------------------------------------------------


def test_a_thread_that_holds_an_rlock_may_acquire_it_again_and_releases_it_as_often(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client, Client(masters) as other:
        lock = client.rlock(name)
        for count in (1, 2, 3):
            assert lock.acquire()
            assert lock.count == count
        for count in (2, 1):
            lock.release()
            assert (lock.count, other.lock(name).acquire(blocking=False)) == (count, False)
        lock.release()
        await_nothing_left(masters, name)
        with pytest.raises(NotOwned, match=name):
            lock.release()


def test_another_thread_waits_for_an_rlock_and_may_not_release_it(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        lock = client.rlock(name)
        with lock:
            with pytest.raises(NotOwned):
                in_thread(lock.release).result(PATIENCE)
            waiting = in_thread(lock.acquire)
            assert not in_thread(lambda: lock.acquire(blocking=False)).result(PATIENCE)
        assert waiting.result(PATIENCE)


def test_a_task_that_holds_an_rlock_may_acquire_it_again_and_another_waits(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
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


def test_an_rlock_that_was_lost_is_not_acquired_again(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters, attempt_timeout=PATIENCE) as client:
        lock = client.rlock(name, ttl=1.0)
        assert lock.acquire()
        await_true(lambda: not lock.remaining())
        with pytest.raises(LockLost):
            lock.acquire()
        with pytest.raises(LockLost):
            lock.release()
        # The lost hold has ended with the release.
        assert lock.acquire()


# --- fenced ---------------------------------------------------------------------------------------------


def test_every_holder_has_a_higher_fence_than_all_before_it_over_clients_and_hand_offs(
    connect: Face, masters: list[str], name: str
) -> None:
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


def test_a_second_round_takes_a_higher_fence_if_another_clients_clock_is_ahead(
    connect: Face, masters: list[str], name: str
) -> None:
    client = connect(masters)
    with_number = client.lock(name, fence=True)
    assert with_number.acquire()
    ahead = with_number.fence + 10**12
    with_number.release()
    for url in masters[: len(masters) // 2 + 1]:
        with redis.Redis.from_url(url, retry=None) as master:
            master.set(f"{{{name}}}\0fence", ahead, px=600_000)
    assert with_number.acquire()
    assert with_number.fence > ahead
    assert not without_ttl(masters, name)


# --- readers and writers ---------------------------------------------------------------------------------


def test_many_read_at_once_and_a_writer_is_alone(connect: Face, masters: list[str], name: str) -> None:
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


def test_a_waiting_writer_excludes_new_readers_and_gets_the_lock(connect: Face, masters: list[str], name: str) -> None:
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


def test_upgrading_a_read_lock_raises_an_error(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        both = client.rw_lock(name)
        with both.read():
            with pytest.raises(AlreadyHeld, match="cannot be upgraded"):
                both.write().acquire()
        with both.write():
            pass


# --- semaphores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permits", [1, 3])
def test_as_many_hold_a_semaphore_as_there_are_permits_and_no_more(
    connect: Face, masters: list[str], name: str, permits: int
) -> None:
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


def test_never_more_than_the_permits_are_inside(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
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
    await_nothing_left(masters, name)


# --- many names ------------------------------------------------------------------------------------------


def test_a_multi_lock_holds_all_names_or_none(connect: Face, masters: list[str], name: str) -> None:
    names = [f"{name}-{letter}" for letter in "abc"]
    client, other = connect(masters), connect(masters)
    taken = other.lock(names[1])
    assert taken.acquire()
    lock = client.multi_lock([*names, names[0]])
    # Each name comes once.
    assert lock.names == names
    assert not lock.acquire(blocking=False)
    await_true(lambda: left_behind(masters[:1], name) == [names[1].encode()], DEFAULT_TTL / 2)
    call = lock.start("acquire")
    taken.release()
    assert call.result(PATIENCE)
    assert lock.remaining() > 0
    assert not any(other.lock(each).acquire(blocking=False) for each in names)
    lock.extend(20.0)
    lock.release()
    await_nothing_left(masters, name)


def test_overlapping_multi_locks_do_not_wait_for_each_other_for_ever(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
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
    await_nothing_left(masters, name)


def test_releasing_a_multi_lock_with_a_lost_name_raises_lock_lost(connect: Face, masters: list[str], name: str) -> None:
    names = [f"{name}-a", f"{name}-b"]
    lock = connect(masters).multi_lock(names)
    assert lock.acquire()
    for url in masters:
        with redis.Redis.from_url(url, retry=None) as master:
            master.delete(names[0])
    with pytest.raises(LockLost, match=names[0]):
        lock.release()
    await_nothing_left(masters, name)


# --- decorators ------------------------------------------------------------------------------------------


def test_a_locked_function_runs_while_it_holds_the_lock_that_its_arguments_name(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client, Client(masters) as other:

        @client.locked(name + ":{day}:{kind}", ttl=5.0, timeout=0.0)
        def build(day: int, kind: str = "all") -> bool:
            """Build it."""
            return other.lock(f"{name}:{day}:{kind}").acquire(blocking=False)

        assert build(3) is False
        assert build.__doc__ == "Build it."
        with other.lock(f"{name}:4:few"), pytest.raises(LockBusy):
            build(4, kind="few")
    await_nothing_left(masters, name)


def test_a_locked_coroutine_function_is_awaited_with_its_lock(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(masters) as client, AsyncClient(masters) as other:

            @client.locked(name + ":{day}")
            async def build(day: int) -> bool:
                return await other.lock(f"{name}:{day}").acquire(blocking=False)

            assert await build(3) is False

    asyncio.run(main())


# --- waiters, errors and clients that close ---------------------------------------------------------------

KINDS: dict[str, Callable[[Any, str], Any]] = {
    "fair": lambda client, name: client.fair_lock(name),
    "writer": lambda client, name: client.rw_lock(name).write(),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "numbered": lambda client, name: client.lock(name, fence=True),
    "multi": lambda client, name: client.multi_lock([name]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_wait_leaves_nothing_and_the_next_waiter_gets_the_lock(
    implementation: impl.Implementation, masters: list[str], name: str, kind: Any
) -> None:
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


@pytest.mark.usual(
    "the kinds differ in their commands, and the faces in who sends them",
    {"connect": "threads"},
    {"connect": "asyncio", "kind": "fair"},
)
@pytest.mark.parametrize("kind", ["fair", "reader", "writer", "semaphore", "numbered"])
def test_a_client_that_closes_under_an_acquire_leaves_nothing(
    connect: Face, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str, kind: str
) -> None:
    urls = farm.urls(3)
    before = proxies(urls)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    kinds: dict[str, Callable[[Any, str], Any]] = {**KINDS, "reader": lambda client, name: client.rw_lock(name).read()}
    call = kinds[kind](client, name).start("acquire")
    await_true(lambda: all(proxy.count(b"EVALSHA") for proxy in before))
    client.close()
    for proxy in before:
        proxy.replies.set()
    with pytest.raises(LockError):
        call.result(PATIENCE)
    await_true(lambda: not left_behind(urls, name))


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_the_body_releases_the_lock(
    implementation: impl.Implementation, masters: list[str], name: str, kind: Any
) -> None:
    with Client(masters) as client:
        with pytest.raises(ZeroDivisionError), KINDS[kind](client, name):
            raise ZeroDivisionError
        await_nothing_left(masters, name)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_that_only_poll_hold_the_lock_one_at_a_time(
    connect: Face, masters: list[str], name: str, kind: Any
) -> None:
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
        (lambda client: client.semaphore("s", 3, fair=True), ConfigurationError, "fair"),
        (lambda client: client.rw_lock("x", fair=True).read(), ConfigurationError, "fair"),
        (lambda client: client.locked(3), TypeError, "template"),
        (lambda client: client.locked(len), TypeError, r'write @client.locked\("name"\)'),
    ],
)
def test_bad_input_is_refused_by_name(connect: Face, url: str, call: Any, error: Any, text: Any) -> None:
    with pytest.raises(error, match=text):
        call(connect(url).raw)


def test_a_template_that_names_no_argument_is_refused_where_it_is_written(
    implementation: impl.Implementation, url: str
) -> None:
    with Client(url) as client:
        with pytest.raises(ConfigurationError, match=r"day.*what"):
            client.locked("report:{day}")(lambda what: None)
        with pytest.raises(ConfigurationError, match="malformed"):
            client.locked("report:{")(lambda what: None)
        with pytest.raises(TypeError, match="AsyncClient"):
            client.locked("report")(asyncio.sleep)


def test_the_errors_of_the_family_are_lock_errors(implementation: impl.Implementation, url: str, name: str) -> None:
    with Client(url) as client, pytest.raises(LockError):
        client.fair_lock(name).release()


# --- regressions of a review --------------------------------------------------------------------------------


def test_as_many_as_there_are_permits_get_a_semaphore_at_once_without_waiting(
    connect: Face, masters: list[str], name: str
) -> None:
    client = connect(masters)
    calls = [client.semaphore(name, 5).start("acquire", blocking=False) for _ in range(5)]
    assert [call.result(PATIENCE) for call in calls] == [True] * 5


def test_a_slot_that_is_freed_in_the_same_client_while_another_asks_is_not_missed(
    connect: Face, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    (before,) = proxies([url])
    client = connect(before.url, attempt_timeout=PATIENCE)
    held, waiting = client.semaphore(name, 1), client.semaphore(name, 1)
    assert held.acquire()
    asked, go = threading.Event(), threading.Event()
    attempts: list[bytes] = []

    def spoil(command: Any, reply: bytes) -> bytes:
        if command[0].startswith(b"EVAL") and len(command) == 11:
            attempts.append(reply)
            # This attempt follows the look, and it is refused.
            if len(attempts) == 2:
                asked.set()
                go.wait(PATIENCE)
        return reply

    before.spoil = spoil
    call = waiting.start("acquire")
    assert asked.wait(PATIENCE)
    held.release(wait=False)
    go.set()
    # Without a wake-up it would look again after an hour.
    assert call.result(PATIENCE)
    waiting.release()


def test_a_slot_can_be_extended_at_maxmemory(connect: Face, name: str) -> None:
    with embedded.masters(1) as urls:
        lock = connect(urls).semaphore(name, 2)
        assert lock.acquire()
        ask(urls[0]).config_set("maxmemory", "1mb")
        # All other locks of the family can be extended, too.
        lock.extend()
        lock.release()


@on_one_face("threads")
def test_a_writer_that_has_waited_for_a_while_is_woken_when_the_last_reader_leaves(
    connect: Face, masters: list[str], name: str, no_backstop: None, backstop: Callable[[float], None]
) -> None:
    reader = connect(masters).rw_lock(name, ttl=2 * PATIENCE).read()
    writer = connect(masters, attempt_timeout=PATIENCE).rw_lock(name).write()
    assert reader.acquire()
    backstop(1.0)
    call = waits(writer, masters, name)
    asked = [times_of_waiting_writers(url, name) for url in masters]
    # The writer's next request changes the key, which ends its own watch.
    await_true(lambda: all(times_of_waiting_writers(url, name) > n for url, n in zip(masters, asked, strict=True)))
    backstop(3600)
    # A wait that began with the short backstop is over then.
    time.sleep(1.5)
    reader.release()
    # Without a wake-up it would look again after an hour.
    assert call.result(PATIENCE)
    writer.release()


def test_a_thread_that_lost_its_read_lock_may_write(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters, attempt_timeout=PATIENCE) as client:
        both = client.rw_lock(name, ttl=1.0)
        reader = both.read()
        assert reader.acquire()
        await_true(lambda: not reader.remaining())
        assert both.write().acquire(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["reader", "writer", "semaphore"])
def test_every_kind_of_lock_has_locked(connect: Face, masters: list[str], name: str, kind: str) -> None:
    client = connect(masters)
    lock = {
        "reader": lambda: client.rw_lock(name).read(),
        "writer": lambda: client.rw_lock(name).write(),
        "semaphore": lambda: client.semaphore(name, 1),
    }[kind]()
    assert lock.acquire()
    assert lock.locked()
    lock.release()
    assert not lock.locked()


@pytest.mark.parametrize("kind", ["writer", "semaphore"])
def test_a_name_of_the_greatest_length_breaks_no_connection(
    connect: Face, masters: list[str], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    kinds: dict[str, Callable[[Any], Any]] = {
        "writer": lambda client: client.rw_lock("n" * 512).write(),
        "semaphore": lambda client: client.semaphore("n" * 512, 1),
    }
    make = kinds[kind]
    caplog.set_level("INFO", "redlatch")
    held, waiting = make(connect(masters)), make(connect(masters))
    assert held.acquire()
    call = waiting.start("acquire")
    time.sleep(0.1)
    held.release()
    assert call.result(PATIENCE)
    waiting.release()
    broken = [record.getMessage() for record in caplog.records if "broke" in record.getMessage()]
    # Clients of earlier tests may still log that their own masters are gone.
    assert not [text for text in broken for url in masters if url.removeprefix("redis://") in text]


def test_a_refused_second_round_leaves_no_key_on_a_master_that_did_not_answer_the_first(
    implementation: impl.Implementation, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    urls = farm.urls(3)
    before = proxies(urls)
    turns = range(40)
    for turn in turns:
        for url in urls[:2]:
            ask(url).set(f"{{{name}-{turn}}}\0fence", int(time.time() * 1e6) + 10**9, px=600_000)
    together = threading.Barrier(2)

    def spoiled(master: redis.Redis) -> Any:
        def spoil(command: Any, reply: bytes) -> bytes:
            if reply.startswith(b":-") and command[0] == b"EVALSHA":
                # The key is deleted by an operator, or expires, between the two rounds.
                master.delete(command[3])
            elif len(command) == 8 and reply == b":0\r\n":
                # The second round is refused.
                together.wait(PATIENCE)
            return reply

        return spoil

    with Client([proxy.url for proxy in before], attempt_timeout=1.0) as client:
        await_true(lambda: all(proxy.greeted() for proxy in before))
        before[2].replies.clear()
        for proxy, url in zip(before[:2], urls, strict=False):
            proxy.spoil = spoiled(ask(url))
        for turn in turns:
            lock = client.lock(f"{name}-{turn}", ttl=PATIENCE, fence=True)
            # A second attempt may succeed.
            if lock.acquire(timeout=1.0):
                lock.release()
        for proxy in before:
            proxy.spoil = None
            proxy.replies.set()
        await_true(lambda: not any(ask(urls[2]).exists(f"{name}-{turn}") for turn in turns), PATIENCE / 2)


def test_an_rlock_can_be_acquired_again_after_a_failed_release(
    implementation: impl.Implementation, masters: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(masters)
    with Client([proxy.url for proxy in before], attempt_timeout=0.5) as client:
        plain, lock = client.lock(name + "-plain"), client.rlock(name)
        for each in (plain, lock):
            await_true(partial(wins, each))
        await_true(lambda: all(proxy.greeted() for proxy in before))
        for proxy in before:
            proxy.replies.clear()
        for each in (plain, lock):
            with pytest.raises(QuorumUnavailable):
                each.release()
        for proxy in before:
            proxy.replies.set()
        await_true(lambda: wins(plain))
        # Before the fix, acquire raised NotOwned until release() was called once more.
        await_true(lambda: wins(lock))
        lock.release()


@contextlib.contextmanager
def traced(strike: Callable[..., Any]) -> Iterator[None]:
    """Call `strike` at every line, or opcode, of the body."""
    sys.settrace(strike)
    try:
        yield
    finally:
        sys.settrace(None)


def test_an_interrupt_while_an_rlock_records_its_hold_leaves_no_key(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    done: list[bool] = []

    def strike(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is reentrant.BaseRLock._won.__code__ and not done:
            done.append(True)
            raise KeyboardInterrupt
        return None

    with Client(masters) as client:
        lock = client.rlock(name, ttl=PATIENCE)
        with pytest.raises(KeyboardInterrupt), traced(strike):
            lock.acquire()
        try:
            lock.release()
        except LockError:
            pass
        await_true(lambda: not any(ask(url).exists(name) for url in masters), PATIENCE / 2)


def test_the_repr_of_an_rlock_of_asyncio_needs_no_loop(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    async def make() -> Any:
        async with AsyncClient(masters) as client:
            return client.rlock(name)

    assert name in repr(asyncio.run(make()))


def test_a_generator_function_is_not_run_without_the_lock_that_decorates_it(
    implementation: impl.Implementation, masters: list[str], name: str
) -> None:
    with Client(masters) as client:
        try:

            @client.locked(name)
            def numbers() -> Any:
                yield [ask(url).exists(name) for url in masters]

        except TypeError:
            # It is refused as a coroutine function is.
            return
        assert all(next(iter(numbers())))


def test_an_interrupt_while_a_reader_is_recorded_is_raised_and_leaves_no_entry(
    farm: Farm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impl, "current", impl.load("python"))
    url = farm.urls(1)[0]
    # The number of opcodes until the interrupt.
    left = 0

    def step(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return step

    def strike(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is readwrite.Reader.won.__code__:
            frame.f_trace_opcodes = True
            return step
        return None

    with Client(url) as client:
        both = client.rw_lock(name, ttl=PATIENCE)
        for number in range(1, 100):
            left, lock = number, both.read()
            try:
                with traced(strike):
                    assert lock.acquire()
            except KeyboardInterrupt:
                await_true(lambda: not ask(url).exists(f"{{{name}}}\0rw"), PATIENCE / 2)
                # This raises if the thread is still registered as a reader.
                with both.write():
                    pass
            else:
                break
        assert number > 5
        lock.release()


@on_one_face("threads")
def test_expired_slots_are_free_although_the_key_of_the_semaphore_was_deleted(
    connect: Face, masters: list[str], name: str
) -> None:
    client = connect(masters, attempt_timeout=PATIENCE)
    kept = client.semaphore(name, 3, ttl=PATIENCE)
    assert kept.acquire()
    # These slots are never released.
    assert all(client.semaphore(name, 3, ttl=0.5).acquire() for _ in range(2))
    for url in masters:
        ask(url).delete(f"{{{name}}}\0slots")
    time.sleep(0.7)
    assert client.semaphore(name, 3).acquire(timeout=PATIENCE / 2)


# --- row 54: readers stay out while any writer waits ----------------------------------------------------------


def waiting_writers(url: str, name: str) -> int:
    """Return the number of waiting writers that a master knows."""
    count: int = ask(url).zcard(f"{{{name}}}\0rw\0waits")
    return count


def times_of_waiting_writers(url: str, name: str) -> float:
    """Return the sum of the times until which a master keeps its waiting writers; it rises when a writer asks again."""
    scores: list[tuple[bytes, float]] = ask(url).zrange(f"{{{name}}}\0rw\0waits", 0, -1, withscores=True)
    return sum(until for _, until in scores)


def waits(lock: Any, masters: list[str], name: str) -> Any:
    """Begin an acquire; return when all masters know one more waiting writer."""
    before = [waiting_writers(url, name) for url in masters]
    call = lock.start("acquire")
    await_true(lambda: all(waiting_writers(url, name) > n for url, n in zip(masters, before, strict=True)))
    return call


def test_row_54_a_writer_that_gives_up_leaves_the_others_waiting(connect: Face, masters: list[str], name: str) -> None:
    reader = connect(masters).rw_lock(name).read()
    assert reader.acquire()
    writer, late = connect(masters).rw_lock(name).write(), connect(masters).rw_lock(name).read()
    call = writer.start("acquire")
    await_true(lambda: all(ask(url).exists(f"{{{name}}}\0rw\0waits") for url in masters))
    hasty = connect(masters)
    for _ in range(5):
        assert not hasty.rw_lock(name).write().acquire(blocking=False)
        # This command follows the one that removes the writer's name.
        assert hasty.rw_lock(name).write().locked()
        assert not late.acquire(blocking=False)
    assert [waiting_writers(url, name) for url in masters] == [1] * len(masters)
    reader.release()
    assert call.result(PATIENCE)
    writer.release()
    await_true(lambda: not left_behind(masters, name))


def test_row_54_a_writer_that_wins_leaves_the_others_waiting(connect: Face, masters: list[str], name: str) -> None:
    reader = connect(masters).rw_lock(name).read()
    assert reader.acquire()
    writers = [connect(masters).rw_lock(name).write() for _ in range(2)]
    calls = [waits(writer, masters, name) for writer in writers]
    reader.release()
    await_true(lambda: any(call.done() for call in calls))
    first = 0 if calls[0].done() else 1
    late = connect(masters).rw_lock(name).read()
    writers[first].release()
    while not calls[1 - first].done():
        assert not held_briefly(late) or calls[1 - first].done()
    writers[1 - first].release()
    assert late.acquire(timeout=PATIENCE)
    late.release()
    await_true(lambda: not left_behind(masters, name))


def test_row_54_readers_are_woken_when_the_last_waiting_writer_leaves(
    connect: Face, masters: list[str], name: str, no_backstop: None
) -> None:
    held = connect(masters).rw_lock(name).read()
    assert held.acquire()
    writers = [connect(masters) for _ in range(2)]
    calls = [waits(client.rw_lock(name).write(), masters, name) for client in writers]
    waiting = connect(masters).rw_lock(name).read().start("acquire")
    # Closing the client ends the wait.
    writers[0].close()
    with pytest.raises(LockError):
        calls[0].result(PATIENCE)
    await_true(lambda: all(waiting_writers(url, name) == 1 for url in masters))
    assert not waiting.done()
    writers[1].close()
    with pytest.raises(LockError):
        calls[1].result(PATIENCE)
    # Without a push it would sleep for an hour.
    assert waiting.result(PATIENCE)


@on_one_face("asyncio")
def test_row_54_the_name_of_a_writer_is_removed_when_its_master_is_back(
    connect: Face,
    farm: Farm,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    no_backstop: None,
    backstop: Callable[[float], None],
) -> None:
    # The name expires after a minute, not after 2.5 s.
    backstop(0.5)
    urls = farm.urls(3)
    before = proxies(urls)
    reader = connect(urls).rw_lock(name).read()
    assert reader.acquire()
    writer = connect([proxy.url for proxy in before], attempt_timeout=1.0).rw_lock(name).write()
    call = writer.start("acquire", timeout=4.0)
    await_true(lambda: all(waiting_writers(url, name) for url in urls))
    [known] = ask(urls[0]).zrange(f"{{{name}}}\0rw\0waits", 0, -1)
    before[0].refusing = True
    before[0].cut()
    asked = before[1].count(b"EVALSHA")
    # This attempt does not reach the first master.
    await_true(lambda: before[1].count(b"EVALSHA") > asked)
    assert not call.result(PATIENCE)
    before[0].refusing = False
    await_true(lambda: before[0].count(family_scripts.WRITE_RELEASE.sha, known))
    await_true(lambda: not any(waiting_writers(url, name) for url in urls))
    late = connect(urls).rw_lock(name).read()
    await_true(lambda: wins(late))


@pytest.mark.parametrize("dead", [False, True])
def test_row_54_readers_stay_out_until_the_last_writer_is_dead(url: str, name: str, dead: bool) -> None:
    """One of two waiting writers gives up; the other is alive, or has not asked for a while."""
    keys = [name, f"{{{name}}}\0one", f"{{{name}}}\0two"]

    def run(script: Any, *arguments: Any) -> Any:
        return ask(url).eval(script.text.decode(), 3, *keys, *arguments)

    assert run(family_scripts.READ_ACQUIRE, "r1", 60_000) == 1
    assert run(family_scripts.WRITE_ACQUIRE, "w1", 60_000, 1 if dead else 60_000, "w1") == 0
    assert run(family_scripts.WRITE_ACQUIRE, "w2", 60_000, 60_000, "w2") == 0
    await_true(lambda: not dead or float(ask(url).zscore(keys[2], "w1") or 0) < time.time() * 1000)
    assert run(family_scripts.WRITE_RELEASE, "w2", "w2") == 0
    # A late copy removes no other name.
    assert run(family_scripts.WRITE_RELEASE, "w2", "w2") == 0
    assert run(family_scripts.READ_ACQUIRE, "r2", 60_000) == dead
    assert not without_ttl([url], name)


# --- semaphores of many permits -------------------------------------------------------------------------------


def fill(urls: list[str], name: str, permits: int, free: int | None) -> None:
    """Take all slots of a semaphore except `free`."""
    taken = [slot for slot in range(permits) if slot != free]
    for url in urls:
        with ask(url) as master:
            master.zadd(f"{{{name}}}\0slots", {str(slot): time.time() * 1000 + 600_000 for slot in taken})
            master.hset(f"{{{name}}}\0slots\0tokens", mapping={str(slot): "somebody" for slot in taken})
            for key in (f"{{{name}}}\0slots", f"{{{name}}}\0slots\0tokens"):
                master.pexpire(key, 600_000)


@pytest.mark.parametrize("permits", [450, 2000])
def test_a_single_attempt_finds_the_only_free_slot_of_many(
    connect: Face, masters: list[str], name: str, permits: int
) -> None:
    fill(masters, name, permits, free=permits // 3)
    client = connect(masters)
    # Each attempt has its own order of slots.
    for _ in range(5):
        lock = client.semaphore(name, permits)
        assert lock.acquire(blocking=False)
        lock.release()


def test_a_single_attempt_on_many_taken_slots_asks_each_master_once(
    connect: Face, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    urls = farm.urls(3)
    before = proxies(urls)
    fill(urls, name, 2000, free=None)
    client = connect([proxy.url for proxy in before])
    client.connect()
    assert not client.semaphore(name, 2000).acquire(blocking=False)
    assert client.semaphore(name, 2000).locked()
    # Two of the masters are a quorum already.
    await_true(lambda: all(proxy.count(family_scripts.SLOT_ACQUIRE.sha) for proxy in before))
    assert all(proxy.count(family_scripts.SLOT_ACQUIRE.sha) == 1 for proxy in before)
