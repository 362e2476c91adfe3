"""Waiting for a lock on real masters: a client's wait queue, leases that are handed off, and pushes.

`tests/quorum/waiting/` has the same without I/O. By default the ttl of a lock is a minute here, so that a key that is
gone was deleted. In a test without a backstop, only the event that the test names can have woken the waiter.

The module is longer than others for the same reason as the fault matrix: it has one behaviour after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, at_once, await_true, in_thread
from support.masters import Farm, Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import (
    AlreadyHeld,
    AsyncClient,
    Client,
    ClientClosed,
    Handoff,
    LockBusy,
    LockLost,
    LockTimeout,
    NotOwned,
    Retry,
    impl,
)
from redlatch.quorum.repair import Extension
from redlatch.testing import embedded

# A ttl that no test outlives: a key that is gone was deleted.
LONG = 60.0
# A ttl that a test outlives; waiters must join the queue before its end.
SHORT = 1.0
# No tenure ends in a test.
FOR_EVER = Handoff(tenure=LONG)
# Each release goes to the masters.
EVERY_TIME = Handoff(tenure=0)
POLLS = "does not say when a key changes"

UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


@pytest.fixture
def no_late_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the background thread read no late replies."""
    monkeypatch.setattr("redlatch.drivers.background.PERIOD", 2 * PATIENCE)


def queues_of(client: Any) -> Any:
    return client._quorum.queues


def in_line(client: Any, name: Any) -> Any:
    """Count the entries in a client's queue."""
    queue = queues_of(client).by_key.get(name.encode())
    return len(queue.entries) if queue is not None else 0


def watches(client: Any, name: Any) -> Any:
    """Return whether a client waits for pushes that the key is gone."""
    return any(ballot.reopened for ballot in list(queues_of(client).watches.by_key.get(name.encode(), ())))


def queue_up(client: Any, name: Any, count: Any, ttl: Any = LONG, **named: Any) -> Any:
    """Let `count` more waiters join a client's queue one after the other; return their locks and their calls."""
    locks = [client.lock(name, ttl=ttl) for _ in range(count)]
    calls = []
    for place, lock in enumerate(locks, in_line(client, name) + 1):
        calls.append(lock.start("acquire", **named))
        await_true(partial(lambda place: in_line(client, name) == place, place))
    return locks, calls


def wait_at_the_head(client: Any, name: Any, ttl: Any = LONG) -> Any:
    """Let one waiter wait for another client's lock; return its lock and its call."""
    lock = client.lock(name, ttl=ttl)
    call = lock.start("acquire")
    await_true(lambda: watches(client, name))
    return lock, call


def enter(lock: Any) -> Any:
    """Begin to enter the ``with`` of a lock of either face."""
    return lock.start("__enter__" if hasattr(lock.raw, "__enter__") else "__aenter__")


def held_by(client: Any, name: Any, ttl: Any = LONG) -> Any:
    lock = client.lock(name, ttl=ttl)
    assert lock.acquire(timeout=PATIENCE)
    return lock


def values(urls: Any, name: Any) -> Any:
    """Return the value of the key on each master."""
    found = []
    for url in urls:
        with ask(url) as server:
            found.append(server.get(name))
    return found


def forget(urls: Any, name: Any) -> None:
    """Delete a key as an operator would."""
    for url in urls:
        with ask(url) as server:
            server.delete(name)


def sets(before: Any, name: Any) -> Any:
    """Count the attempts that each proxy has seen."""
    return [proxy.count("SET", name) for proxy in before]


def await_sets(before: Any, name: Any, counts: Any) -> None:
    """Wait until attempts that a quorum has answered reach the other masters, too."""
    await_true(lambda: sets(before, name) == counts)


# --- the queue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiters", [1, 50])
def test_only_the_head_of_the_queue_asks_the_masters(
    waiters: int,
    connect: Face,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    no_backstop: None,
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before], handoff=FOR_EVER), connect(three)
    held = held_by(other, name)
    head, won = wait_at_the_head(client, name)
    locks, calls = queue_up(client, name, waiters)
    await_sets(before, name, [1, 1, 1])
    held.release()
    assert won.result(PATIENCE)
    # The third master may refuse, because the release has not reached it yet.
    await_true(
        lambda: all(
            value == head.token or count > 1
            for value, count in zip(values(three, name), sets(before, name), strict=True)
        )
    )
    asked = sets(before, name)
    for lock, call in zip([head, *locks], [*calls, won], strict=True):
        lock.release()
        assert call.result(PATIENCE)
    assert sets(before, name) == asked


@pytest.mark.parametrize("handoff", [FOR_EVER, EVERY_TIME], ids=["handed on", "released"])
def test_the_first_waiter_gets_the_lock_first(handoff: Any, connect: Face, three: list[str], name: str) -> None:
    client = connect(three, handoff=handoff)
    held = held_by(client, name)
    locks, calls = queue_up(client, name, 6)
    for served, call in enumerate(calls):
        held.release()
        assert call.result(PATIENCE)
        assert not any(later.done() for later in calls[served + 1 :])
        held = locks[served]
    held.release()


def test_a_queue_and_its_head_are_removed_without_waiters_and_holder(
    connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name)
    locks, calls = queue_up(client, name, 3)
    for lock, call in zip([held, *locks], [*calls, None], strict=True):
        lock.release()
        assert call is None or call.result(PATIENCE)
    queues = queues_of(client)
    assert (queues.heads, queues.by_key, queues.watches.by_key) == ({}, {}, {})
    await_true(lambda: not keys(three, name))


def test_the_queue_of_a_lease_that_was_passed_on_and_expires_is_removed(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, handoff=FOR_EVER, attempt_timeout=PATIENCE)
    held = client.lock(name, ttl=SHORT)
    assert held.acquire()
    waiting = client.lock(name, ttl=SHORT)
    call = waiting.start("acquire")
    await_true(lambda: bool(queues_of(client).by_key))
    held.release()
    assert call.result(PATIENCE)
    await_true(lambda: not queues_of(client).by_key)
    # The lock object still exists, and was not released.
    assert waiting.raw.name == name


def test_each_name_has_a_queue_of_its_own(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    held = held_by(client, name)
    _, [call] = queue_up(client, name, 1)
    held_by(client, f"{name}-other").release()
    assert not call.done()
    held.release()
    assert call.result(PATIENCE)


def test_an_attempt_without_waiting_behind_another_of_this_client_sends_nothing(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    held = held_by(client, name)
    await_sets(before, name, [1, 1, 1])
    assert client.lock(name).acquire(blocking=False) is False
    assert client.lock(name).acquire(timeout=0) is False
    # The extension follows everything that was sent before.
    held.extend()
    assert sets(before, name) == [1, 1, 1]
    assert held.owned()


def test_a_second_acquire_of_a_held_lock_does_not_change_the_queue(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name)
    token = held.token
    [lock], [call] = queue_up(client, name, 1)
    with pytest.raises(AlreadyHeld):
        held.acquire()
    assert queues_of(client).heads[name.encode()] is held.raw._hold
    assert in_line(client, name) == 1
    held.release()
    assert call.result(PATIENCE)
    assert lock.token == token


def test_threads_on_one_name_hold_it_one_at_a_time_and_all_of_them_in_the_end(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    inside: list[int] = []

    def work() -> Any:
        for _ in range(30):
            with client.lock(name, ttl=LONG, timeout=PATIENCE):
                inside.append(1)
                assert len(inside) == 1
                inside.pop()
        return True

    with Client(three, handoff=Handoff(tenure=0.001)) as client:
        assert all(at_once([work] * 8))
        await_true(lambda: not keys(three, name))


def test_tasks_on_one_name_hold_it_one_at_a_time_and_all_of_them_in_the_end(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    inside = []

    async def work(client: Any) -> None:
        for _ in range(10):
            async with client.lock(name, ttl=LONG, timeout=PATIENCE):
                inside.append(1)
                await asyncio.sleep(0)
                assert len(inside) == 1
                inside.pop()

    async def main() -> None:
        async with AsyncClient(three, handoff=Handoff(tenure=0.001)) as client:
            await asyncio.gather(*[work(client) for _ in range(50)])

    asyncio.run(main())
    assert not keys(three, name)


# --- leases that are handed off ----------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False])
def test_a_release_passes_the_lease_on_without_a_command(
    wait: bool, connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], handoff=FOR_EVER)
    held = held_by(client, name)
    token, deadline = held.token, held.deadline_ns
    [lock], [call] = queue_up(client, name, 1)
    await_sets(before, name, [1, 1, 1])
    await_true(lambda: all(proxy.quiet() for proxy in before))
    sent = [len(proxy.commands) for proxy in before]
    held.release(wait=wait)
    assert call.result(PATIENCE)
    assert [len(proxy.commands) for proxy in before] == sent
    assert (lock.token, lock.deadline_ns) == (token, deadline)
    assert values(three, name) == [token] * 3


def test_each_holder_of_a_passed_lease_is_a_hold_of_its_own(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name)
    [lock], [call] = queue_up(client, name, 1)
    held.release()
    assert call.result(PATIENCE)
    assert (held.remaining(), held.token, held.deadline_ns) == (0, None, 0)
    for refused in (held.release, held.extend):
        with pytest.raises(NotOwned):
            refused()
    assert held.owned() is False
    assert lock.remaining() > 0
    assert lock.owned() is True


def test_a_holder_that_passed_a_lease_on_may_wait_for_it_again(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, handoff=FOR_EVER)
    one, other = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
    assert one.acquire()
    for _ in range(10):
        call = other.start("acquire")
        await_true(lambda: in_line(client, name) == 1)
        one.release()
        assert call.result(PATIENCE)
        one, other = other, one
    assert one.owned()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_lease_passes_at_most_count_times_and_then_it_is_released(
    count: int, connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, handoff=Handoff(tenure=LONG, count=count))
    held = held_by(client, name)
    tokens = [held.token]
    locks, calls = queue_up(client, name, 5)
    for lock, call in zip(locks, calls, strict=True):
        held.release()
        assert call.result(PATIENCE)
        held = lock
        tokens.append(lock.token)
    each = [len(list(same)) for _, same in itertools.groupby(tokens)]
    assert each == {0: [1] * 6, 1: [2] * 3, 3: [4, 2]}[count]
    assert len(set(tokens)) == len(each)


def test_without_a_tenure_each_holder_asks_the_masters(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, handoff=EVERY_TIME)
    held = held_by(client, name)
    token = held.token
    [lock], [call] = queue_up(client, name, 1)
    held.release()
    assert call.result(PATIENCE)
    assert lock.token != token
    assert lock.owned()


def test_another_client_gets_the_lock_after_a_tenure(connect: Face, three: list[str], name: str) -> None:
    busy, other = connect(three, handoff=Handoff(tenure=0.01)), connect(three)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            held_by(busy, name).release()

    workers = [in_thread(work) for _ in range(3)]
    await_true(lambda: in_line(busy, name))
    for _ in range(3):
        held_by(other, name).release()
    over.set()
    for worker in workers:
        worker.result(PATIENCE)


@pytest.mark.parametrize(("first", "second"), [(20.0, LONG), (LONG, 20.0)], ids=["longer", "shorter"])
def test_a_lease_gets_the_ttl_of_its_next_holder(
    first: Any, second: Any, connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name, ttl=first)
    token = held.token
    [lock], [call] = queue_up(client, name, 1, ttl=second)
    held.release()
    assert call.result(PATIENCE)
    assert lock.token == token
    assert second * 0.9 < lock.remaining() < second
    # An extension never shortens a key.
    longest = max(first, second)
    await_true(lambda: all(longest * 900 < pttl <= longest * 1000 for pttl in keys(three, name).values()))
    # Two of the masters were a quorum already.
    await_true(lambda: values(three, name) == [token] * 3)


def test_the_next_holder_acquires_again_if_the_key_of_its_lease_is_gone(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name, ttl=20.0)
    token = held.token
    [lock], [call] = queue_up(client, name, 1)
    forget(three, name)
    held.release()
    assert call.result(PATIENCE)
    assert lock.token != token
    assert lock.owned()
    await_true(lambda: values(three, name) == [lock.token] * 3)


def test_the_next_holder_waits_if_another_client_has_the_key_of_its_lease(
    connect: Face, three: list[str], name: str
) -> None:
    client, other = connect(three, handoff=FOR_EVER), connect(three)
    held = held_by(client, name, ttl=20.0)
    [lock], [call] = queue_up(client, name, 1)
    forget(three, name)
    stolen = held_by(other, name)
    held.release()
    await_true(lambda: watches(client, name))
    assert stolen.owned() and not call.done()
    stolen.release()
    assert call.result(PATIENCE)
    assert lock.owned()


def test_the_release_reports_that_a_lease_was_lost_before_its_hand_off(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, handoff=FOR_EVER)
    held = held_by(client, name)
    [lock], [call] = queue_up(client, name, 1)
    forget(three, name)
    held.release()
    assert call.result(PATIENCE)
    assert not lock.owned()
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("wait", [True, False])
def test_an_expired_holder_passes_no_lease_on_and_the_next_waiter_asks(
    wait: bool, connect: Face, three: list[str], name: str, no_late_reading: Any
) -> None:
    client = connect(three, handoff=FOR_EVER, attempt_timeout=PATIENCE)
    held = held_by(client, name, ttl=SHORT)
    token = held.token
    locks, calls = queue_up(client, name, 2)
    await_true(lambda: not held.remaining())
    with pytest.raises(LockLost):
        held.release(wait=wait)
    assert calls[0].result(PATIENCE)
    assert locks[0].token != token
    assert locks[0].owned()
    locks[0].release()
    assert calls[1].result(PATIENCE)


def test_a_waiter_behind_a_holder_that_never_releases_gets_the_lock_after_the_ttl(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, attempt_timeout=PATIENCE)
    held_by(client, name, ttl=SHORT)
    locks, calls = queue_up(client, name, 2)
    assert calls[0].result(PATIENCE)
    assert locks[0].owned()
    locks[0].release()
    assert calls[1].result(PATIENCE)


def test_a_waiter_that_comes_after_a_loss_overtakes_no_other_waiter(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, attempt_timeout=PATIENCE)
    held = held_by(client, name, ttl=SHORT)
    [first], [call] = queue_up(client, name, 1)
    await_true(lambda: not held.remaining())
    last = client.lock(name, ttl=LONG)
    late = last.start("acquire")
    await_true(lambda: first.token or last.token)
    assert first.token and not last.token
    first.release()
    assert call.result(PATIENCE) and late.result(PATIENCE)


def test_a_waiter_that_comes_while_a_lost_lock_is_released_gets_the_lock(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_late_reading: Any
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    held = held_by(client, name)
    await_true(lambda: len(set(values(three, name))) == 1)
    forget(three, name)
    for proxy in before:
        proxy.replies.clear()
    releasing = held.start("release")
    await_true(lambda: all(proxy.count("DELIFEQ", name) == 1 for proxy in before))
    [lock], [call] = queue_up(client, name, 1)
    for proxy in before:
        proxy.replies.set()
    with pytest.raises(LockLost):
        releasing.result(PATIENCE)
    assert call.result(PATIENCE)
    assert lock.owned()


def test_the_release_of_a_lock_of_a_batch_wakes_a_waiter(connect: Face, url: str, name: str, no_backstop: None) -> None:
    client = connect([url])
    [held] = client.acquire_many([name], ttl=LONG)
    _, call = wait_at_the_head(client, name)
    # A lock of the same face, through which the batch's lock is called.
    release = client.lock(name)
    release.raw = held
    release.release()
    assert call.result(PATIENCE)


def test_many_releases_wake_the_waiters_behind_them(
    connect: Face, three: list[str], name: str, no_backstop: None
) -> None:
    client = connect(three)
    held = client.acquire_many([name, f"{name}-other"], ttl=LONG)
    _, call = wait_at_the_head(client, name)
    assert client.release_many(held) == [True, True]
    assert call.result(PATIENCE)


# --- masters that push -------------------------------------------------------------------------------


def released_by_its_client(client: Any, urls: Any, name: Any) -> Any:
    lock = held_by(client, name)
    return lambda: lock.release()


def released_without_waiting(client: Any, urls: Any, name: Any) -> Any:
    lock = held_by(client, name)
    return lambda: lock.release(wait=False)


def deleted_by_an_operator(client: Any, urls: Any, name: Any) -> Any:
    held_by(client, name)
    return lambda: forget(urls, name)


def released_by_redlock_py(client: Any, urls: Any, name: Any) -> Any:
    for url in urls:
        with ask(url) as server:
            assert server.set(name, "token-of-redlock-py", nx=True, px=int(LONG * 1000))

    def unlock() -> None:
        for url in urls:
            with ask(url) as server:
                assert server.eval(UNLOCK, 1, name, "token-of-redlock-py") == 1

    return unlock


def expired_by_itself(client: Any, urls: Any, name: Any) -> Any:
    for url in urls:
        with ask(url) as server:
            assert server.set(name, "x", nx=True, px=1500)
    return lambda: None


def test_an_expired_lock_is_acquired_although_others_wait_behind_a_long_one(
    connect: Face, farm: Farm, name: str
) -> None:
    client = connect(farm.urls(1), attempt_timeout=PATIENCE)
    held_by(client, name)
    queue_up(client, name, 1)
    # Meanwhile the client has decided when to look again.
    time.sleep(0.5)
    held_by(client, f"{name}-short", ttl=SHORT)
    assert client.lock(f"{name}-short", ttl=SHORT).acquire(timeout=PATIENCE / 2)


@pytest.mark.usual(
    "both faces are woken by the same push", {"connect": "asyncio", "count": 3}, {"connect": "threads", "count": 1}
)
@pytest.mark.parametrize(
    "hold",
    [
        released_by_its_client,
        released_without_waiting,
        deleted_by_an_operator,
        released_by_redlock_py,
        expired_by_itself,
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_waiter_is_woken_by_every_way_in_which_the_key_ends(
    count: int, hold: Any, connect: Face, farm: Farm, name: str, no_backstop: None
) -> None:
    urls = farm.urls(count)
    client, other = connect(urls), connect(urls)
    # Connect before the ttl of the key that expires begins.
    client.connect()
    end = hold(other, urls, name)
    lock, call = wait_at_the_head(client, name)
    end()
    assert call.result(PATIENCE)
    assert lock.owned()
    assert queues_of(client).watches.by_key == {}


def test_the_masters_push_a_release_that_comes_before_the_waiter_sleeps(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = held_by(other, name)
    client.connect()
    # The first master's answer to the look comes last.
    before[0].replies.clear()
    call = client.lock(name, ttl=LONG).start("acquire")
    # Counting the commands is not enough: a look that follows the release would find no key, and get no push.
    await_true(lambda: all(any(b"PTTL" in words for words in list(proxy.answered)) for proxy in before[1:]))
    held.release()
    # The answer of the first master follows the pushes of the others.
    await_true(lambda: before[1].pushes and before[2].pushes)
    before[0].replies.set()
    assert call.result(PATIENCE)


def test_row_32_a_waiter_looks_by_itself_if_pushes_are_lost(
    connect: Face,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    backstop: Callable[[float], None],
) -> None:
    backstop(0.1)
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = held_by(other, name)
    for proxy in before:
        proxy.deaf = True
    _, call = wait_at_the_head(client, name)
    held.release()
    assert call.result(PATIENCE)
    # Two masters knew that they should push.
    await_true(lambda: sum(bool(proxy.pushes) for proxy in before) >= 2)


def test_row_32_late_pushes_disturb_no_waiter(
    connect: Face,
    three: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    backstop: Callable[[float], None],
) -> None:
    backstop(0.1)
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = held_by(other, name)
    for proxy in before:
        proxy.deaf = True
    lock, call = wait_at_the_head(client, name)
    held.release()
    assert call.result(PATIENCE)
    for proxy in before:
        proxy.deaf = False
        proxy.deliver()
    assert lock.owned()
    lock.release()
    held_by(client, name).release()
    assert [proxy.accepted for proxy in before] == [1, 1, 1]


def test_the_pushes_of_a_minority_wake_no_waiter(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = held_by(other, name)
    _, call = wait_at_the_head(client, name)
    await_sets(before, name, [1, 1, 1])
    await_true(lambda: all(proxy.count("PTTL", name) and proxy.quiet() for proxy in before))
    with ask(three[0]) as server:
        server.delete(name)
    await_true(lambda: before[0].pushes)
    # Its answer follows the push.
    client.lock(f"{name}-other").locked()
    assert sets(before, name) == [1, 1, 1] and not call.done()
    held.release()
    assert call.result(PATIENCE)


def test_flushed_masters_wake_every_waiter(connect: Face, name: str, no_backstop: None) -> None:
    with embedded.masters(1) as [url]:
        client, other = connect([url], guard=None), connect([url], guard=None)
        for number in range(3):
            held_by(other, f"{name}-{number}")
        calls = [wait_at_the_head(client, f"{name}-{number}")[1] for number in range(3)]
        with ask(url) as server:
            server.flushall()
        assert all(call.result(PATIENCE) for call in calls)
        client.close()
        other.close()


def test_a_connection_that_breaks_wakes_all_waiters(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    names = [f"{name}-{number}" for number in range(3)]
    held = [held_by(other, each) for each in names]
    for proxy in before:
        proxy.deaf = True
    calls = [wait_at_the_head(client, each)[1] for each in names]
    for lock in held:
        lock.release()
    before[1].cut()
    assert all(call.result(PATIENCE) for call in calls)


def test_masters_that_return_wake_a_waiter(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = held_by(other, name)
    _, call = wait_at_the_head(client, name)
    for proxy in before:
        looked = proxy.count("PTTL", name)
        proxy.cut()
        await_true(partial(lambda proxy, looked: proxy.count("PTTL", name) > looked, proxy, looked))
    await_true(lambda: watches(client, name))
    held.release()
    assert call.result(PATIENCE)


@pytest.mark.parametrize("silent", [1, 2])
def test_the_pushes_of_a_quorum_are_enough(
    silent: int,
    connect: Face,
    urls: list[str],
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    no_backstop: None,
) -> None:
    before = proxies(urls[:silent])
    for proxy in before:
        proxy.deaf = True
    client, other = connect([*[proxy.url for proxy in before], *urls[silent:]]), connect(urls)
    held = held_by(other, name)
    _, call = wait_at_the_head(client, name)
    held.release()
    assert call.result(PATIENCE)


@pytest.fixture(scope="module")
def speaking_resp2() -> Iterator[Any]:
    with embedded.masters(3, config={"rename-command": 'HELLO ""'}) as urls:
        # The first client that connects writes the guard's markers, and connects twice for that.
        with Client(urls) as client:
            client.connect()
        yield urls


@pytest.fixture(scope="module")
def refusing_to_track() -> Iterator[Any]:
    """Return masters with users that may not use the command of their name."""
    with embedded.masters(3) as urls:
        for url in urls:
            for command in ("tracking", "caching"):
                with ask(url) as server:
                    server.execute_command(
                        "ACL", "SETUSER", command, "on", ">s3cr3t-lk", "~*", "+@all", f"-client|{command}"
                    )
        yield urls


@pytest.fixture(params=["RESP2", "tracking", "caching", "poll"])
def silent(request: pytest.FixtureRequest, three: list[str]) -> Any:
    """Return masters that push no changes of keys, the options of their clients, and the number of their warnings."""
    if request.param == "poll":
        return three, {"wakeups": "poll"}, 0
    if request.param == "RESP2":
        return request.getfixturevalue("speaking_resp2"), {}, 1
    urls = request.getfixturevalue("refusing_to_track")
    return [url.replace("//", f"//{request.param}:s3cr3t-lk@") for url in urls], {}, 1


def test_keys_that_scripts_read_are_not_tracked(connect: Face, name: str) -> None:
    """If it were tracked, each client that ever ran a script would get pushes for all changes of a busy queue."""
    # On shared masters, tracked keys of other tests expire at any time.
    with embedded.masters(3) as three:
        other = connect(three)
        before = [tracked_keys(url) for url in three]
        kinds: list[Callable[[str], Any]] = [
            other.fair_lock,
            other.lock,
            lambda name: other.rw_lock(name).write(),
        ]
        for make in kinds:
            lock = make(name)
            assert lock.acquire()
            lock.extend(LONG)
            assert lock.owned()
            lock.release()
        assert [tracked_keys(url) for url in three] == before
        other.close()


def tracked_keys(url: Any) -> Any:
    with ask(url) as server:
        return server.info("stats")["tracking_total_keys"]


def assert_it_passes_on(client: Any, lock: Any, held: Any) -> None:
    """Wait for a held lock until it is released, and then release it."""
    call = lock.start("acquire")
    await_true(lambda: queues_of(client).watches.by_key or call.done())
    assert not call.done()
    held.release()
    assert call.result(PATIENCE)
    lock.release()


def test_a_waiter_polls_masters_that_do_not_push_and_that_is_logged_once(
    connect: Face, silent: Any, name: str, keys: Keys, no_backstop: None, caplog: pytest.LogCaptureFixture
) -> None:
    urls, options, warnings = silent
    client = connect(urls, **options)
    client.connect()
    assert caplog.text.count(POLLS) == warnings
    other = connect(urls, **options)
    held = held_by(other, name)
    lock = client.lock(name, ttl=LONG)
    assert_it_passes_on(client, lock, held)
    await_true(lambda: not keys([f"{url}?protocol=2" for url in urls], name))
    assert caplog.text.count(POLLS) == 2 * warnings


@pytest.mark.parametrize("kind", ["fence", "reader"])
def test_a_waiter_polls_if_only_a_minority_pushes_and_gave_its_vote(
    kind: str, connect: Face, refusing_to_track: Any, name: str, no_backstop: None
) -> None:
    first, second, third = refusing_to_track
    client = connect([*[url.replace("//", "//tracking:s3cr3t-lk@") for url in (first, second)], third])
    client.connect()
    other = connect([first, second, third], guard=None)
    held = held_by(other, name) if kind == "fence" else other.rw_lock(name).write()
    if kind == "reader":
        assert held.acquire(timeout=PATIENCE)
    with ask(third) as server:
        await_true(lambda: server.keys(f"*{name}*"))
        # The waiter therefore gets the vote of this master, and gives it back.
        server.delete(*server.keys(f"*{name}*"))
    lock = client.lock(name, ttl=LONG, fence=True) if kind == "fence" else client.rw_lock(name).read()
    assert_it_passes_on(client, lock, held)


def test_a_master_that_returns_and_still_does_not_push_is_not_logged_again(
    connect: Face,
    speaking_resp2: Any,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = proxies(speaking_resp2)
    client = connect([proxy.url for proxy in before])
    client.connect()
    for proxy in before:
        proxy.cut()
    held_by(client, name).release()
    await_true(lambda: all(proxy.count("HELLO") >= 2 for proxy in before))
    held_by(client, name).release()
    assert caplog.text.count(POLLS) == 1


def test_masters_that_push_are_not_logged(
    connect: Face, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    held_by(connect(three), name).release()
    assert POLLS not in caplog.text


def test_a_client_that_polls_asks_for_no_pushes(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    [proxy] = proxies(three[:1])
    client, other = connect([proxy.url], wakeups="poll", guard=None), connect(three[:1], guard=None)
    held = held_by(other, name)
    lock = client.lock(name, ttl=LONG)
    call = lock.start("acquire")
    await_true(lambda: proxy.count("PTTL", name) > 3)
    held.release()
    assert call.result(PATIENCE)
    assert not proxy.pushes
    assert not proxy.count("TRACKING", "ON")


# --- several clients on one name ---------------------------------------------------------------------


def agreed(client: Any, name: Any) -> Any:
    """Return the index of the master that is asked first for a contended name."""
    return queues_of(client).first_master.first_of(client._quorum.order, name.encode(), 1 << 61)


def split(urls: Any, name: Any) -> None:
    """Let another holder have the key on some masters."""
    for url in urls:
        with ask(url) as server:
            assert server.set(name, "somebody", nx=True, px=int(LONG * 1000))


def test_after_a_split_vote_one_master_is_asked_first_and_the_others_if_it_was_won(
    connect: Face, urls: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(urls)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    first = agreed(client, name)
    taken = [url for index, url in enumerate(urls) if index != first][:3]
    split(taken, name)
    lock, call = wait_at_the_head(client, name)
    await_sets(before, name, [1] * 5)
    await_true(lambda: before[first].count("PTTL", name) and before[first].quiet())
    before[first].replies.clear()
    forget(taken, name)
    await_true(lambda: before[first].count("SET", name) == 2)
    assert sets(before, name) == [2 if index == first else 1 for index in range(5)]
    before[first].replies.set()
    assert call.result(PATIENCE)
    await_sets(before, name, [2] * 5)
    assert len({command[2] for proxy in before for command in proxy.commands if command[0] == b"SET"}) == 2
    await_true(lambda: values(urls, name) == [lock.token] * 5)


def test_the_other_masters_are_not_asked_if_a_rival_was_faster(
    connect: Face, urls: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, no_backstop: None
) -> None:
    before = proxies(urls)
    client, other = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE), connect(urls)
    client.connect()
    first = agreed(client, name)
    taken = [url for index, url in enumerate(urls) if index != first][:3]
    split(taken, name)
    _, call = wait_at_the_head(client, name)
    await_true(lambda: sets(before, name) == [proxy.count("DELIFEQ", name) for proxy in before] == [1] * 5)
    await_true(lambda: before[first].count("PTTL", name) and before[first].quiet())
    before[first].requests.clear()
    forget(taken, name)
    await_true(lambda: before[first].count("SET", name) == 2)
    rival = held_by(other, name)
    before[first].requests.set()
    await_true(lambda: watches(client, name))
    assert sets(before, name) == [2 if index == first else 1 for index in range(5)]
    # Only the split vote needs an undo.
    assert [proxy.count("DELIFEQ", name) for proxy in before] == [1] * 5
    rival.release()
    assert call.result(PATIENCE)


def test_a_key_that_only_the_agreed_master_has_excludes_no_client(connect: Face, urls: list[str], name: str) -> None:
    client, other = connect(urls), connect(urls)
    held = held_by(other, name)
    lock, call = wait_at_the_head(client, name)
    first = agreed(client, name)
    forget([url for index, url in enumerate(urls) if index != first], name)
    assert call.result(PATIENCE)
    assert lock.owned()
    with pytest.raises(LockLost):
        held.release()


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_an_agreed_master_that_does_not_answer_is_skipped(how: str, connect: Face, name: str, keys: Keys) -> None:
    masters = embedded.masters(5)
    with masters as urls:
        client, other = connect(urls), connect(urls)
        held = held_by(other, name)
        lock, call = wait_at_the_head(client, name)
        first = agreed(client, name)
        getattr(masters, how)(first)
        held.release()
        assert call.result(PATIENCE)
        lock.check()
        lock.release()
        if how == "pause":
            masters.resume(first)
        await_true(lambda: not any(keys([url], name) for index, url in enumerate(urls) if index != first))
        if how == "pause":
            await_true(lambda: not keys(urls, name))
        client.close()
        other.close()


@pytest.mark.parametrize("clients", [2, 5, 8])
def test_clients_that_start_together_all_get_the_lock(
    clients: int, connect: Face, urls: list[str], name: str, keys: Keys
) -> None:
    rivals = [connect(urls) for _ in range(clients)]
    for rival in rivals:
        rival.connect()
    inside = []

    def cycle(rival: Any) -> Any:
        lock = rival.lock(name, ttl=LONG)
        assert lock.acquire(timeout=PATIENCE)
        inside.append(rival)
        assert inside == [rival]
        lock.check()
        inside.pop()
        lock.release()
        return True

    assert all(at_once([partial(cycle, rival) for rival in rivals]))
    await_true(lambda: not keys(urls, name))


# --- limits of the queue -----------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 2])
def test_at_most_max_waiters_may_wait_for_one_name(most: int, connect: Face, three: list[str], name: str) -> None:
    client = connect(three, max_waiters=most)
    held = held_by(client, name)
    locks, calls = queue_up(client, name, most)
    late = client.lock(name, ttl=LONG)
    with pytest.raises(LockBusy) as caught:
        late.acquire()
    assert (caught.value.depth, caught.value.name) == (most, name)
    # A call that does not wait needs no place in the queue.
    assert late.acquire(blocking=False) is False
    held_by(client, f"{name}-other").release()
    for lock, call in zip([held, *locks], [*calls, None], strict=True):
        lock.release()
        assert call is None or call.result(PATIENCE)
    assert late.acquire(timeout=PATIENCE)


def test_a_place_that_was_given_up_can_be_used_again(connect: Face, three: list[str], name: str) -> None:
    client = connect(three, max_waiters=1)
    held = held_by(client, name)
    assert client.lock(name).acquire(timeout=0.01) is False
    _, [call] = queue_up(client, name, 1)
    held.release()
    assert call.result(PATIENCE)


def test_a_waiter_that_would_time_out_is_refused_at_once_with_refuse_late(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, refuse_late=True)
    held = held_by(client, name)
    _, [call] = queue_up(client, name, 1)
    queues_of(client).by_key[name.encode()].pace_ns = 20_000_000_000
    late = client.lock(name, ttl=LONG)
    with pytest.raises(LockBusy) as caught:
        late.acquire(timeout=39.0)
    assert (caught.value.depth, caught.value.name) == (1, name)
    queue_up(client, name, 1, timeout=LONG)
    queue_up(client, name, 1)
    held.release()
    assert call.result(PATIENCE)


def test_a_waiter_that_times_out_leaves_and_the_queue_moves_on(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    held = held_by(client, name)
    _, [first] = queue_up(client, name, 1)
    _, [second] = queue_up(client, name, 1, timeout=1.0)
    _, [third] = queue_up(client, name, 1)
    assert second.result(PATIENCE) is False
    assert in_line(client, name) == 2
    held.release()
    assert first.result(PATIENCE)
    assert not third.done()


def test_a_first_waiter_that_times_out_is_skipped(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    held = held_by(client, name)
    [out], [first] = queue_up(client, name, 1, timeout=1.0)
    [lock], [second] = queue_up(client, name, 1)
    assert first.result(PATIENCE) is False
    assert out.remaining() == 0
    held.release()
    assert second.result(PATIENCE)
    assert lock.owned()


def test_a_waiting_with_times_out_with_an_error(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    held = held_by(client, name)
    with pytest.raises(LockTimeout) as caught:
        enter(client.lock(name, ttl=LONG, timeout=0.05)).result(PATIENCE)
    assert caught.value.name == name
    with pytest.raises(LockBusy):
        enter(client.lock(name, ttl=LONG, timeout=0)).result(PATIENCE)
    assert held.owned()
    assert in_line(client, name) == 0


def test_a_head_that_times_out_calls_the_next_waiter(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three), connect(three)
    held = held_by(other, name)
    client.connect()
    head = client.lock(name, ttl=LONG).start("acquire", timeout=1.5)
    await_true(lambda: watches(client, name))
    _, [call] = queue_up(client, name, 1)
    assert head.result(PATIENCE) is False
    # Now the next waiter watches.
    await_true(lambda: watches(client, name))
    held.release()
    assert call.result(PATIENCE)


# --- waits that end early ----------------------------------------------------------------------------


@pytest.mark.parametrize("followed", [True, False])
@pytest.mark.parametrize("turns", [-1, 0, 1, 2, 3])
def test_a_task_that_is_cancelled_at_its_hand_off_lets_the_lease_pass(
    turns: int, followed: bool, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three, handoff=FOR_EVER) as client:
            held, doomed, last = (client.lock(name, ttl=LONG) for _ in range(3))
            assert await held.acquire()
            waiting = [asyncio.ensure_future(lock.acquire()) for lock in ([doomed, last] if followed else [doomed])]
            await until(lambda: in_line(client, name) == len(waiting))
            if turns < 0:
                waiting[0].cancel()
            await held.release()
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns >= 0:
                waiting[0].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if await waiting[0]:
                    await doomed.release()
            assert doomed.remaining() == 0
            if followed:
                async with asyncio.timeout(PATIENCE):
                    assert await waiting[1]
                assert await last.owned()
                await last.release()
            assert queues_of(client).heads == {}
            async with asyncio.timeout(PATIENCE):
                while await asyncio.to_thread(keys, three, name):
                    await asyncio.sleep(0.001)

    asyncio.run(main())


async def until(condition: Any) -> None:
    """Wait, while the loop runs, for a condition that no event reports."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


def test_a_head_that_is_cancelled_at_any_turn_of_the_loop_calls_the_next_waiter(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client, AsyncClient(three) as other:
            await client.connect()
            for turns in range(40):
                held = other.lock(name, ttl=LONG)
                assert await held.acquire()
                locks = [client.lock(name, ttl=LONG) for _ in range(2)]
                head, last = (asyncio.ensure_future(lock.acquire()) for lock in locks)
                for _ in range(turns):
                    await asyncio.sleep(0)
                head.cancel()
                await held.release()
                with pytest.raises(asyncio.CancelledError):
                    await head
                async with asyncio.timeout(PATIENCE):
                    assert await last
                await locks[1].release()

    asyncio.run(main())
    await_true(lambda: not keys(three, name))


def test_a_timeout_around_a_wait_ends_it_and_the_queue_moves_on(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three, handoff=FOR_EVER) as client:
            held, out, last = (client.lock(name, ttl=LONG) for _ in range(3))
            assert await held.acquire()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await out.acquire()
            waiting = asyncio.ensure_future(last.acquire())
            await until(lambda: in_line(client, name) == 1)
            await held.release()
            assert await waiting
            await last.release()

    asyncio.run(main())
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("handoff", [FOR_EVER, EVERY_TIME], ids=["handed on", "released"])
def test_an_exception_in_the_body_passes_the_lock_on_as_a_normal_end_does(
    handoff: Any, implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three, handoff=handoff) as client:
        lock = client.lock(name, ttl=LONG)
        with pytest.raises(ZeroDivisionError), client.lock(name, ttl=LONG):
            call = in_thread(lock.acquire)
            await_true(lambda: in_line(client, name))
            raise ZeroDivisionError
        assert call.result(PATIENCE)
        assert lock.owned()


def test_many_tasks_cancelled_at_random_leave_no_waiter_waiting_for_ever(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    chance = random.Random(19)
    inside = []

    async def cycle(client: Any) -> None:
        for _ in range(5):
            async with client.lock(name, ttl=LONG):
                inside.append(1)
                assert len(inside) == 1
                try:
                    await asyncio.sleep(0)
                finally:
                    inside.pop()

    async def main() -> None:
        async with AsyncClient(three, handoff=Handoff(tenure=0.002)) as client:
            tasks = [asyncio.ensure_future(cycle(client)) for _ in range(60)]
            doomed = chance.sample(tasks, 30)
            for task in doomed:
                for _ in range(chance.randrange(8)):
                    await asyncio.sleep(0)
                task.cancel()
            async with asyncio.timeout(PATIENCE):
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            for task, end in zip(tasks, ends, strict=True):
                assert end is None or (task in doomed and isinstance(end, asyncio.CancelledError)), end

    asyncio.run(main())
    await_true(lambda: not keys(three, name))


@pytest.mark.parametrize("wakeups", ["auto", "poll"])
@pytest.mark.parametrize("held_here", [True, False], ids=["held here", "held elsewhere"])
def test_a_client_that_closes_ends_all_its_waits(
    held_here: bool, wakeups: str, connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client, other = connect(three, wakeups=wakeups), connect(three)
    held_by(client if held_here else other, name)
    calls = []
    if not held_here:
        calls.append(client.lock(name, ttl=LONG).start("acquire"))
        await_true(lambda: queues_of(client).watches.by_key)
    calls += queue_up(client, name, 5)[1]
    client.close()
    for call in calls:
        with pytest.raises(ClientClosed):
            call.result(PATIENCE)
    forget(three, name)
    assert not keys(three, name)


def test_a_client_that_closes_right_after_a_hand_off_hangs_no_waiter(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    for _ in range(20):
        client = Client(three, handoff=FOR_EVER)
        held = client.lock(name, ttl=LONG)
        assert held.acquire(timeout=PATIENCE)
        calls = [in_thread(client.lock(name, ttl=LONG).acquire) for _ in range(3)]
        await_true(partial(lambda client: in_line(client, name) == 3, client))
        held.release()
        client.close()
        for call in calls:
            with contextlib.suppress(ClientClosed):
                call.result(PATIENCE)
        forget(three, name)


# --- threads that are interrupted --------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("handoff", [FOR_EVER, EVERY_TIME], ids=["handed on", "released"])
def test_an_interrupted_release_leaves_no_waiter_waiting_for_ever(
    handoff: Any, wait: bool, implementation: impl.Implementation, three: list[str], name: str, keys: Keys, strike: Any
) -> None:
    chance = random.Random(23)
    with Client(three, handoff=handoff) as client:
        for _ in range(100):
            held, lock = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
            assert held.acquire(timeout=PATIENCE)
            call = in_thread(lock.acquire)
            await_true(lambda: in_line(client, name))
            try:
                strike(chance.uniform(1e-6, 3e-4))
                held.release(wait=wait)
                strike.off()
            except KeyboardInterrupt:
                # The caller repeats the release, as after an interrupt between any two calls.
                with contextlib.suppress(NotOwned, LockLost):
                    held.release(wait=wait)
            assert call.result(PATIENCE)
            assert lock.owned()
            lock.release()
        await_true(lambda: not keys(three, name))


def test_an_interrupted_waiter_is_skipped(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, strike: Any
) -> None:
    chance = random.Random(29)
    with Client(three, handoff=FOR_EVER) as client:
        for _ in range(60):
            held, last = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
            assert held.acquire(timeout=PATIENCE)

            struck = threading.Event()

            def let_go(held: Any = held, last: Any = last, struck: Any = struck) -> Any:
                await_true(lambda: in_line(client, name) or struck.is_set())
                following = in_thread(last.acquire)
                await_true(lambda: last._hold.state)
                held.release()
                return following.result(PATIENCE)

            others = in_thread(let_go)
            lock = client.lock(name, ttl=LONG)
            try:
                strike(chance.uniform(1e-3, 2e-2))
                lock.acquire()
                lock.release()
                strike.off()
            except KeyboardInterrupt:
                struck.set()
                if lock.remaining():
                    lock.release()
            assert others.result(PATIENCE)
            assert last.owned()
            last.release()
        await_true(lambda: not keys(three, name))


def test_an_interrupt_right_after_a_lease_was_passed_on_does_not_take_it_back(
    three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the pure build runs signal handlers at this place.
    monkeypatch.setattr(impl, "current", impl.load("python"))
    kind = impl.current.module("quorum.waiting.queues").WaitQueues
    hand_off = kind.hand_off

    def interrupted(queues: Any, quorum: Any, hold: Any, now_ns: Any) -> Any:
        passed = hand_off(queues, quorum, hold, now_ns)
        monkeypatch.setattr(kind, "hand_off", hand_off)
        if passed:
            raise KeyboardInterrupt
        return passed

    with Client(three, handoff=FOR_EVER) as client:
        held, lock = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
        assert held.acquire()
        call = in_thread(lock.acquire)
        await_true(lambda: in_line(client, name))
        monkeypatch.setattr(kind, "hand_off", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.release()
        assert call.result(PATIENCE)
        # Its answer follows everything that the interrupt had sent.
        assert client.lock(f"{name}-other").locked() is False
        assert lock.owned() or not lock.remaining()


# --- regressions of a review --------------------------------------------------------------------------------


def test_a_plain_lock_that_once_got_a_fenced_lease_passes_no_old_fence_on(
    connect: Face, three: list[str], name: str
) -> None:
    client, other = connect(three), connect(three)
    first, plain, last = client.lock(name, fence=True), client.lock(name), client.lock(name, fence=True)
    holder = client.lock(name)
    assert holder.acquire()
    one = first.start("acquire")
    await_true(lambda: in_line(client, name) == 1)
    # `first` takes a block of fences, because `plain` waits behind it.
    two = plain.start("acquire")
    await_true(lambda: in_line(client, name) == 2)
    holder.release()
    assert one.result(PATIENCE)
    # The lease is handed off to `plain`, with a fence.
    first.release()
    assert two.result(PATIENCE)
    plain.release()
    foreign = other.lock(name, fence=True)
    assert foreign.acquire()
    highest = foreign.fence
    foreign.release()
    # A plain SET acquires the lock, so it has no fence.
    assert plain.acquire()
    last_call = last.start("acquire")
    await_true(lambda: in_line(client, name) == 1)
    plain.release()
    assert last_call.result(PATIENCE)
    assert last.fence > highest
    last.release()


def test_a_renewal_that_began_before_a_hand_off_does_not_shorten_the_next_lease(
    farm: Farm, name: str, monkeypatch: pytest.MonkeyPatch, keys: Keys
) -> None:
    monkeypatch.setattr(impl, "current", impl.load("python"))
    urls = farm.urls(3)
    begun, go = threading.Event(), threading.Event()
    # With the default tenure of 0.1 s the ttl would have to be below 0.3 s.
    with Client(urls, handoff=Handoff(tenure=PATIENCE)) as client:
        driver: Any = client._driver
        leader = driver._leader
        send = leader.send

        # The renewing thread loses the GIL just before its command is put into the inbox.
        def preempted(ballots: Any) -> None:
            if threading.current_thread() not in mine and any(isinstance(each.command, Extension) for each in ballots):
                begun.set()
                assert go.wait(PATIENCE)
            send(ballots)

        mine = {threading.current_thread()}
        short = client.lock(name, ttl=0.9, auto_renew=True)
        long = client.lock(name, ttl=PATIENCE)
        assert short.acquire()

        def take() -> Any:
            mine.add(threading.current_thread())
            return long.acquire()

        call = in_thread(take)
        await_true(lambda: bool(client._quorum.queues.by_key))
        leader.send = preempted
        assert begun.wait(PATIENCE)
        short.release()
        assert call.result(PATIENCE)
        go.set()
        time.sleep(0.2)
        left = sorted(keys(urls, name).values())
        assert left[1] / 1000 >= long.remaining() - 1.0, f"{left} ms on the masters, {long.remaining()} s believed"
        assert not client.lock(name).acquire(blocking=False)
        long.release()


# --- row 48: processes that poll ---------------------------------------------------------------------------


@on_one_face("threads")
def test_row_48_after_a_tenure_pollers_of_other_processes_have_time_to_try(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three, wakeups="poll", handoff=EVERY_TIME, retry=Retry(first=4.0, longest=4.0))
    other = connect(three, wakeups="poll")
    held = held_by(client, name)
    other.connect()
    call = client.lock(name).start("acquire")
    await_true(lambda: in_line(client, name) == 1)
    held.release()
    rival = other.lock(name)
    # In version 0.1.0 the next waiter of the same client got the lock within two round trips.
    for _ in range(20):
        assert not rival.locked()
    assert rival.acquire(blocking=False)
    rival.release()
    assert not call.done()
    assert call.result(PATIENCE)
