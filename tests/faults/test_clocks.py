"""Rows 4, 26, 27 and 28: clocks that are set, that stop, or that ran on while the machine was suspended.

A preloaded library sets the clocks of real servers and clients (`clock.c`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, ask, await_true, finish, line_of, wins
from support.masters import Keys
from support.selection import on_one_face

from redlatch import Guard, LockLost, impl
from redlatch.testing import embedded
from redlatch.wire.engine.net import now_ns

from .clocks import Clock

pytestmark = pytest.mark.one_loop

MAX_TTL = 2.5
GUARD = Guard(max_ttl=MAX_TTL)


@pytest.fixture
def clocked(library: Path, tmp_path: Path) -> Iterator[Any]:
    """Start masters, each with a clock that the test sets; return their URLs and clocks."""
    with contextlib.ExitStack() as stack:

        def start(count: Any = 3, server: Any = None) -> Any:
            server = server or embedded.find_server()
            clocks = [Clock(library, tmp_path, str(index)) for index in range(count)]
            urls = stack.enter_context(embedded.masters(count, server=[clock.wrapped(server) for clock in clocks]))
            return urls, clocks

        yield start


def cycle(client: Any, name: Any) -> None:
    """Use a lock once, so that the client sends a pulse if one is due."""
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()


# --- rows 4 and 28: the masters' clocks --------------------------------------------------------------------


def set_forward(connect: Any, clocked: Any, name: Any, guard: Any) -> Any:
    """Hold a lock on two of three masters, and set the clock of one forward until its key is gone."""
    urls, clocks = clocked()
    owner, rival = connect(urls, guard=guard, ttl=MAX_TTL), connect(urls, guard=guard, ttl=MAX_TTL)
    cycle(rival, name)
    lock = owner.lock(name)
    assert lock.acquire()
    for url in urls:
        await_true(partial(lambda url: ask(url).exists(name), url))
    ask(urls[2]).delete(name)
    clocks[0].set_ahead(2 * MAX_TTL)
    await_true(lambda: not ask(urls[0]).exists(name))
    # The last pulse was a second ago.
    time.sleep(max(0.0, lock.remaining() - MAX_TTL + 1.1))
    return lock, rival.lock(name)


@on_one_face("threads")
def test_row_4_a_clock_that_was_set_forward_lets_no_second_holder_in(connect: Face, clocked: Any, name: str) -> None:
    lock, again = set_forward(connect, clocked, name, GUARD)
    tries = itertools.count()
    while not wins(again):
        next(tries)
    assert now_ns() >= lock.deadline_ns
    assert next(tries) > 1


def test_row_4_without_a_guard_a_clock_that_was_set_forward_lets_a_second_holder_in(clocked: Any, name: str) -> None:
    with contextlib.closing(Face("threads")) as face:
        lock, again = set_forward(face, clocked, name, None)
        # An attempt waits for 0.125 s only.
        while not wins(again):
            assert lock.remaining() > 0
        assert lock.remaining() > 0


def test_row_4_a_jump_is_seen_within_a_second_of_use_and_puts_held_locks_in_doubt(
    connect: Face, clocked: Any, server: str, name: str
) -> None:
    urls, clocks = clocked(server=server)
    client = connect(urls)
    held = client.lock(name)
    assert held.acquire()
    # If its vote came too late to count, the lock would not be in doubt.
    await_true(lambda: ask(urls[0]).exists(name))
    clocks[0].set_ahead(0.5)
    while held.remaining() > 0:
        cycle(client, name + "-other")
        time.sleep(0.01)
    assert now_ns() < held.deadline_ns
    with pytest.raises(LockLost, match="may have forgotten"):
        held.check()
    # The other masters still have the key.
    held.extend()
    held.check()
    await_true(lambda: b'"out":0,' not in ask(urls[0]).get(b"\0guard"))
    held.release()


def test_row_28_a_clock_that_was_set_back_is_logged_and_changes_nothing(
    connect: Face, clocked: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    urls, clocks = clocked(1)
    client = connect(urls, guard=GUARD, ttl=MAX_TTL)
    cycle(client, name)
    clocks[0].set_ahead(-3600)
    with caplog.at_level(logging.WARNING, "redlatch"):

        def told() -> Any:
            cycle(client, name)
            return any("was set back by" in record.getMessage() for record in caplog.records)

        await_true(told)
    lock = client.lock(name)
    assert lock.acquire(blocking=False)
    lock.release()


def test_row_28_a_master_whose_clock_stops_is_kept_out_until_the_clock_runs_again(
    connect: Face, clocked: Any, name: str, keys: Keys
) -> None:
    urls, clocks = clocked()
    client = connect(urls, guard=GUARD, ttl=MAX_TTL)
    cycle(client, name)
    clocks[0].freeze(time.time())

    # A release waits until its master is let in again, so the key stays there meanwhile. Each use has a new name.
    names = (f"{name}-{number}" for number in itertools.count())

    def left_out() -> Any:
        lock = client.lock(next(names))
        assert lock.acquire(timeout=PATIENCE)
        # Wait for a vote that the acquire did not wait for.
        time.sleep(0.02)
        there = keys(urls[:1], lock.name)
        lock.release()
        return not there

    await_true(left_out)
    clocks[0].set_ahead(-1)
    await_true(lambda: not left_out())


# --- rows 26 and 27: the client's clocks -------------------------------------------------------------------

HOLDER = """
import json, sys, threading, time
import redlatch
lost = threading.Event()
client = redlatch.Client(sys.argv[2:], ttl=30)
lock = client.lock(sys.argv[1], on_lost=lambda lock, why: lost.set())
assert lock.acquire()
def tell(**more):
    print(json.dumps(dict(more, remaining=lock.remaining(), wall=time.time())), flush=True)
tell()
for line in sys.stdin:
    try:
        lock.check()
        tell(checked=True)
    except redlatch.LockLost:
        tell(checked=False, told=lost.wait(10))
client.close()
"""


@contextlib.contextmanager
def holder(implementation: Any, clock: Any, name: Any, urls: Any) -> Iterator[Any]:
    """Run a process that holds a lock under a clock; yield a function that returns its state."""
    environment = os.environ | clock.environment | {"REDLATCH_IMPL": implementation.name}
    command = [sys.executable, "-W", "error", "-c", HOLDER, name, *urls]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def said() -> Any:
        return json.loads(line_of(process))

    def how() -> Any:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return said()

    try:
        yield said(), how
    finally:
        finish(process)
    assert process.returncode == 0


@pytest.mark.parametrize("hours", [1, -1])
def test_row_26_the_wall_clock_of_a_client_does_not_matter(
    hours: int, implementation: impl.Implementation, library: Path, tmp_path: Path, three: list[str], name: str
) -> None:
    clock = Clock(library, tmp_path, "client")
    with holder(implementation, clock, name, three) as (first, how):
        clock.set_ahead(hours * 3600)
        now = how()
    assert abs(now["wall"] - first["wall"] - hours * 3600) < PATIENCE
    assert now["checked"]
    assert first["remaining"] - PATIENCE / 2 < now["remaining"] <= first["remaining"]


def test_row_27_time_counts_while_the_machine_is_suspended(
    implementation: impl.Implementation, library: Path, tmp_path: Path, three: list[str], name: str
) -> None:
    clock = Clock(library, tmp_path, "client")
    with holder(implementation, clock, name, three) as (first, how):
        assert how()["checked"]
        clock.suspend(60)
        now = how()
    assert first["remaining"] > 0
    assert now["remaining"] == 0
    assert not now["checked"]
    assert now["told"]


# --- row 71: markers that nobody asks for ------------------------------------------------------------------


@pytest.mark.parametrize("days", [1, 31])
def test_row_71_a_job_that_runs_once_a_day_or_a_month_needs_only_a_quorum(
    days: int, connect: Face, clocked: Any, name: str
) -> None:
    urls, clocks = clocked()
    first = connect(urls)
    cycle(first, name)
    first.close()
    for clock in clocks:
        clock.set_ahead(days * 86_400)
    with contextlib.suppress(redis.ConnectionError):
        ask(urls[2]).shutdown(nosave=True, now=True, force=True)
    later = connect(urls)
    lock = later.lock(name)
    assert lock.acquire(timeout=5.0)
    lock.release()
