"""The sleeper on which a thread sleeps, in both builds."""

from __future__ import annotations

import signal
import threading
import time
from types import ModuleType
from typing import Any

import pytest
from support.faces import PATIENCE

from redlatch import impl

pytestmark = pytest.mark.each_build

PATIENCE_NS = int(PATIENCE * 1e9)


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
    assert module.this_thread() == module.Sleeper().thread == threading.get_ident()
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
