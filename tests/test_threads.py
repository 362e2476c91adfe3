"""The face for threads where many use one client, one name or one lock object."""

from __future__ import annotations

import _thread
import gc
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, at_once, await_true, descriptors, finish, in_thread, run_script
from support.masters import Farm, Keys
from support.proxy import Proxy

from redlatch import AlreadyHeld, Client, ClientClosed, LockBusy, LockTimeout, NotOwned, impl
from redlatch.locks import factory

LONG = 60.0
# The number of threads, which is more than are woken at once.
MANY = 40


class Counter:
    """A counter that loses counts where two holders overlap."""

    def __init__(self) -> None:
        self.value = 0

    def step(self) -> None:
        before = self.value
        time.sleep(0)  # gives the GIL away, so that whoever else is inside gets here too
        self.value = before + 1


def test_an_unprotected_counter_loses_counts() -> None:
    """Or else the tests below prove nothing."""
    lost = 0
    for _ in range(20):
        counter = Counter()

        def count(counter: Any = counter) -> None:
            for _ in range(300):
                counter.step()

        at_once([count] * 4)
        lost += counter.value < 4 * 300
    assert lost


@pytest.mark.parametrize("count", [1, 3, 5])
def test_row_30_threads_of_one_client_exclude_each_other(
    count: int, implementation: impl.Implementation, farm: Farm, name: str, keys: Keys
) -> None:
    counter = Counter()
    urls = farm.urls(count)
    with Client(urls) as client:

        def work() -> None:
            for _ in range(20):
                with client.lock(name, ttl=LONG, timeout=PATIENCE):
                    counter.step()

        at_once([work] * 8)
        assert counter.value == 8 * 20
    assert not keys(urls, name)


def test_threads_with_a_client_each_exclude_each_other(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    counter = Counter()

    def work() -> None:
        with Client(three) as client:
            for _ in range(20):
                with client.lock(name, ttl=LONG, timeout=PATIENCE):
                    counter.step()

    at_once([work] * 6)
    assert counter.value == 6 * 20


def test_many_threads_on_names_of_their_own_all_go_on(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    with Client(three) as client:

        def work(number: Any) -> Any:
            for _ in range(10):
                lock = client.lock(f"{name}-{number}", ttl=LONG)
                assert lock.acquire(blocking=False)
                lock.extend()
                assert lock.owned()
                lock.release()
            return number

        assert at_once([partial(work, number) for number in range(48)]) == list(range(48))
        assert not any(keys(three, f"{name}-{number}") for number in range(48))


def test_threads_that_start_with_an_unconnected_client_connect_it_once(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = Client([proxy.url for proxy in before])
    at_once([partial(lambda number: client.lock(f"{name}-{number}").acquire(), number) for number in range(16)])
    await_true(lambda: all(proxy.accepted for proxy in before))  # two are a quorum
    assert [proxy.accepted for proxy in before] == [1, 1, 1]
    client.close()


def test_row_30_one_lock_object_acquired_by_two_threads_is_refused_to_one(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client:
        for _ in range(20):
            lock = client.lock(name, ttl=LONG)

            def work(lock: Any = lock) -> Any:
                try:
                    return lock.acquire(timeout=PATIENCE)
                except AlreadyHeld:
                    return "refused"

            assert sorted(at_once([work] * 4), key=str) == [True, "refused", "refused", "refused"]
            lock.release()


def test_a_lock_object_that_is_held_cannot_be_acquired_again(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG) as lock:
        with pytest.raises(AlreadyHeld):
            lock.acquire()
        assert lock.owned()


def test_row_30_one_lock_object_released_by_many_threads_is_released_once(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    with Client(three) as client:
        for _ in range(20):
            lock = client.lock(name, ttl=LONG)
            assert lock.acquire(timeout=PATIENCE)

            def work(lock: Any = lock) -> Any:
                try:
                    lock.release()
                except NotOwned:
                    return False
                return True

            assert any(at_once([work] * 3))
            assert lock.remaining() == 0.0
            with pytest.raises(NotOwned):
                lock.release()
        await_true(lambda: not keys(three, name))


def test_close_ends_every_wait_with_client_closed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as other, other.lock(name, ttl=LONG):
        client = Client(three)
        client.connect()
        waiting = [in_thread(client.lock(name, ttl=LONG).acquire) for _ in range(8)]
        await_true(lambda: threading.active_count() >= 8)
        client.close()
        for each in waiting:
            with pytest.raises(ClientClosed):
                each.result(PATIENCE)


def test_close_while_masters_are_silent_ends_every_call(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = Client([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    client.connect()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    waiting = [in_thread(client.lock(f"{name}-{number}", ttl=LONG).acquire) for number in range(4)]
    await_true(lambda: all(proxy.count("SET") == 4 for proxy in before))
    client.close()
    for each in waiting:
        with pytest.raises(ClientClosed):
            each.result(PATIENCE / 2)


def test_a_call_that_begins_while_another_thread_closes_ends_at_once(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = factory.draw_tokens
    closing: list[Future[Any]] = []

    def draw_tokens() -> list[bytes]:
        # The call was found to be welcome, and makes its first attempt.
        closing.append(in_thread(client.close))
        closing[0].result(PATIENCE)
        return real()

    monkeypatch.setattr(factory, "draw_tokens", draw_tokens)
    client = Client(three, attempt_timeout=PATIENCE)
    client.connect()
    began = time.monotonic()
    with pytest.raises(ClientClosed):
        client.lock(name, ttl=LONG).acquire()
    assert closing
    assert time.monotonic() - began < PATIENCE / 2


def test_row_30_two_threads_that_extend_one_lock_believe_no_more_than_the_masters(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    with Client(three) as client:
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire()
        for _ in range(50):
            at_once([lambda: lock.extend(LONG), lambda: lock.extend(LONG / 2)])
            left = sorted(keys(three, name).values())[1] / 1000  # first: time may pass before the next line
            assert lock.remaining() <= left + 0.5, left
        lock.release()


def test_close_lets_releases_under_way_arrive(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    for _ in range(20):
        client = Client(three)
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()
        client.close()
        assert not keys(three, name)


def test_a_closed_client_refuses_everything_and_can_be_closed_again(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    client = Client(three)
    lock = client.lock(name, ttl=1.0)
    assert lock.acquire()
    client.close()
    client.close()
    for call in (lock.release, lock.extend, lock.owned, lock.locked, client.lock("x").acquire, client.connect):
        with pytest.raises(ClientClosed):
            call()
    await_true(lambda: not keys(three, name))


def test_a_client_that_was_never_used_can_be_closed_and_is_closed_then(
    implementation: impl.Implementation, three: list[str]
) -> None:
    client = Client(three)
    client.close()
    with pytest.raises(ClientClosed):
        client.lock("x").acquire()


def test_clients_that_are_forgotten_leave_no_warnings_no_descriptors_and_no_threads(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:

    def use() -> None:
        client = Client(three)
        client.lock(name, ttl=LONG, timeout=PATIENCE).acquire(blocking=False)

    threads = _thread._count()
    use()
    gc.collect()
    before = descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            use()
        gc.collect()

    def closed() -> Any:
        gc.collect()  # again: a thread that was still dialling kept one alive, as part of a cycle
        return descriptors() <= before

    await_true(closed)
    await_true(lambda: _thread._count() <= threads)
    with Client(three) as client:
        await_true(lambda: client.lock(name, ttl=0.1).locked())


def test_closed_clients_leave_no_threads_and_no_descriptors(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:

    threads = _thread._count()
    with Client(three) as client, client.lock(name):
        pass
    await_true(lambda: _thread._count() <= threads)
    before = descriptors()
    for _ in range(10):
        with Client(three) as client, client.lock(name):
            pass
    await_true(lambda: _thread._count() <= threads)
    await_true(lambda: descriptors() <= before)


def test_a_held_lock_makes_a_busy_with_and_a_timed_one_fail(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    with Client(three) as client, client.lock(name, ttl=LONG):
        with pytest.raises(LockBusy), client.lock(name, timeout=0):
            raise AssertionError("the body ran without the lock")
        with pytest.raises(LockTimeout), client.lock(name, timeout=0.05):
            raise AssertionError("the body ran without the lock")


def test_a_waiter_gets_the_lock_of_a_holder_that_died(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    text = """
import os, sys, redlatch
client = redlatch.Client(sys.argv[2:], attempt_timeout=10)
assert client.lock(sys.argv[1], ttl=3).acquire()
os.kill(os.getpid(), 9)
"""
    finish(run_script(text, implementation.name, name, *three, wait=False))
    with Client(three) as client:
        assert not client.lock(name).acquire(blocking=False)
        assert client.lock(name).acquire(timeout=PATIENCE)


def test_patience_is_for_a_thread_that_uses_the_client_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, name: str
) -> None:
    monkeypatch.setattr(impl, "current", impl.load("python"))  # a compiled driver shows nobody its fields
    with Client(url, gil_patience=0.001) as client:
        driver: Any = client._driver
        wires = driver._leader.fleet.wires

        def ask_until(patience_ns: Any) -> None:
            def asked() -> Any:
                client.lock(name).locked()
                return wires.gil_patience_ns == patience_ns

            await_true(asked)

        ask_until(1_000_000)
        in_thread(client.lock(name).locked).result(PATIENCE)
        assert wires.gil_patience_ns == 0
        ask_until(1_000_000)


def test_without_patience_the_gil_is_never_kept(monkeypatch: pytest.MonkeyPatch, url: str, name: str) -> None:
    monkeypatch.setattr(impl, "current", impl.load("python"))
    with Client(url, gil_patience=0) as client:
        driver: Any = client._driver
        deadline = time.monotonic() + 0.2  # four times as long as being alone takes
        while time.monotonic() < deadline:
            client.lock(name).locked()
            assert driver._leader.fleet.wires.gil_patience_ns == 0


# --- threads that are woken one by one ---------------------------------------------------------------


def decided_at_once(client: Client, before: list[Any], name: str, then: Any) -> list[threading.Thread]:
    """Start many threads that acquire a lock each; all of their ballots are decided at one moment.

    Each thread calls `then` while it holds its lock, and ends at once if that returns True.
    """

    def work(number: int) -> None:
        lock = client.lock(f"{name}-{number}", ttl=LONG, timeout=PATIENCE)
        assert lock.acquire()
        if not then():
            lock.release()

    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(MANY)]
    for thread in threads:
        thread.start()
    for proxy in before:
        await_true(partial(lambda proxy: sum(command[0] == b"SET" for command in list(proxy.commands)) >= MANY, proxy))
    for proxy in before:
        proxy.replies.set()
    return threads


def test_threads_decided_at_once_are_all_woken_although_none_calls_again(
    implementation: impl.Implementation, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(farm.urls(3))
    with Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        line = threading.Barrier(MANY + 1)
        threads = decided_at_once(client, before, name, lambda: line.wait(PATIENCE) < 0)
        line.wait(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)


def test_threads_decided_at_once_are_all_woken_while_another_thread_drives(
    implementation: impl.Implementation, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(farm.urls(3))
    with Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        line = threading.Barrier(MANY + 1)
        over = threading.Event()

        def churn() -> None:
            while not over.is_set():
                with client.lock(f"{name}-churn", ttl=LONG, timeout=PATIENCE):
                    pass

        churning = [in_thread(churn) for _ in range(2)]
        try:
            threads = decided_at_once(client, before, name, lambda: line.wait(PATIENCE) < 0)
            line.wait(PATIENCE)
        finally:
            over.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
        for call in churning:
            call.result(PATIENCE)


def test_a_thread_that_ends_instead_of_waking_the_next_leaves_no_thread_asleep(
    implementation: impl.Implementation, farm: Farm, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(farm.urls(3))
    with Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        held: list[int] = []

        def end() -> bool:
            held.append(1)
            return True

        threads = decided_at_once(client, before, name, end)
        for thread in threads:
            thread.join(PATIENCE)
        assert len(held) == MANY


def test_threads_that_hold_their_locks_for_different_times_all_make_progress(
    implementation: impl.Implementation, farm: Farm, name: str
) -> None:
    with Client(farm.urls(3)) as client:

        def work(number: int) -> None:
            for turn in range(30):
                with client.lock(f"{name}-{number}", ttl=LONG, timeout=PATIENCE):
                    if (number + turn) % 7 == 0:
                        time.sleep(0.002)

        at_once([partial(work, number) for number in range(MANY)])
