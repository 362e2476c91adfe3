"""The sleeper on which a thread sleeps, in both builds; and threads that are woken one by one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from support.faces import PATIENCE, at_once, await_true, in_thread
from support.masters import Farm
from support.proxy import Proxy

from redlatch import Client, impl

PATIENCE_NS = int(PATIENCE * 1e9)
LONG = 60.0
# The number of threads, which is more than are woken at once.
MANY = 40


@pytest.fixture
def module(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("drivers.sleeper")


class Sleeping:
    """A thread that sleeps, and its sleeper."""

    def __init__(self, module: ModuleType) -> None:
        made = threading.Event()
        self.woken = threading.Event()

        def sleep() -> None:
            self.sleeper: Any = module.Sleeper()
            made.set()
            self.sleeper.sleep(PATIENCE_NS)
            self.woken.set()

        self.thread = threading.Thread(target=sleep, daemon=True)
        self.thread.start()
        assert made.wait(PATIENCE)


def test_a_sleeper_that_was_woken_before_does_not_sleep(module: ModuleType) -> None:
    sleeper = module.Sleeper()
    assert sleeper.asleep
    sleeper.wake()
    assert not sleeper.asleep
    sleeper.sleep(3600 * 10**9)


@pytest.mark.parametrize("nanoseconds", [-5, 0, 1, 20_000_000])
def test_a_sleep_lasts_at_least_the_given_time(module: ModuleType, nanoseconds: int) -> None:
    began = time.monotonic_ns()
    module.Sleeper().sleep(nanoseconds)
    # The sleeper rounds the time to microseconds.
    assert time.monotonic_ns() - began >= nanoseconds - 1_000_000


def test_waking_twice_is_waking_once(module: ModuleType) -> None:
    sleeper = module.Sleeper()
    sleeper.wake()
    sleeper.wake()
    sleeper.sleep(3600 * 10**9)
    began = time.monotonic_ns()
    sleeper.sleep(20_000_000)
    assert time.monotonic_ns() - began >= 19_000_000


def test_a_sleeping_thread_is_woken(module: ModuleType) -> None:
    sleeping = Sleeping(module)
    sleeping.sleeper.wake()
    assert sleeping.woken.wait(PATIENCE)


def test_going_to_sleep_wakes_the_other_one(module: ModuleType) -> None:
    sleeping = Sleeping(module)
    module.Sleeper().sleep(0, sleeping.sleeper)
    assert not sleeping.sleeper.asleep
    assert sleeping.woken.wait(PATIENCE)
    # It is awake already, so nothing happens.
    module.Sleeper().sleep(0, sleeping.sleeper)
    module.Sleeper().sleep(0, None)


def test_a_sleeper_knows_its_thread(module: ModuleType) -> None:
    assert module.Sleeper().thread == threading.get_ident()
    assert Sleeping(module).sleeper.thread != threading.get_ident()


def test_a_signal_whose_handler_raises_ends_the_sleep_and_the_other_one_is_awake(module: ModuleType) -> None:
    class Struck(Exception):
        pass

    def strike(*_: object) -> None:
        raise Struck

    sleeping = Sleeping(module)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Struck):
            module.Sleeper().sleep(PATIENCE_NS, sleeping.sleeper)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sleeping.woken.wait(PATIENCE)


def test_a_signal_whose_handler_returns_does_not_end_the_sleep(module: ModuleType) -> None:
    struck: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: struck.append(time.monotonic_ns()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        began = time.monotonic_ns()
        module.Sleeper().sleep(100_000_000)
        assert struck and time.monotonic_ns() - began >= 99_000_000
    finally:
        signal.signal(signal.SIGALRM, before)


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
