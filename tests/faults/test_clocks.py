"""Rows 4, 26, 27 and 28: clocks that are set, stand still, or have gone on while the machine was suspended.

The clocks of real servers and of real clients are moved by a library that is preloaded into them (`clock.c`).
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

import pytest
from faces import PATIENCE, Face, ask, await_true, finish, wins

from redlatch import Guard, LockLost, embedded
from redlatch.wire.net import now_ns

from .clocks import Clock

MAX_TTL = 2.5
GUARD = Guard(max_ttl=MAX_TTL)


@pytest.fixture
def clocked(library, tmp_path):
    """Start masters, each with a clock that the test sets; return their URLs and clocks."""
    with contextlib.ExitStack() as stack:

        def start(count=3, server=None):
            server = server or embedded.find_server()
            clocks = [Clock(library, tmp_path, str(index)) for index in range(count)]
            urls = stack.enter_context(embedded.masters(count, server=[clock.wrapped(server) for clock in clocks]))
            return urls, clocks

        yield start


def cycle(client, name):
    """Use a lock once, so that there is a pulse if one is due."""
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()


# --- rows 4 and 28: the masters' clocks --------------------------------------------------------------------


def set_forward(connect, clocked, name, guard):
    """Have a lock on two of three masters, one of which is set forward until the lock is gone there."""
    urls, clocks = clocked()
    owner, rival = connect(urls, guard=guard, ttl=MAX_TTL), connect(urls, guard=guard, ttl=MAX_TTL)
    cycle(rival, name)
    lock = owner.lock(name)
    assert lock.acquire()
    for url in urls:
        await_true(lambda url=url: ask(url).exists(name))
    ask(urls[2]).delete(name)
    clocks[0].set_ahead(2 * MAX_TTL)
    await_true(lambda: not ask(urls[0]).exists(name))
    time.sleep(max(0.0, lock.remaining() - MAX_TTL + 1.1))  # the last pulse is a second ago
    return lock, rival.lock(name)


def test_row_4_a_clock_that_was_set_forward_does_not_help_to_a_second_holder(connect, clocked, name):
    lock, again = set_forward(connect, clocked, name, GUARD)
    tries = itertools.count()
    while not wins(again):
        next(tries)
    assert now_ns() >= lock.deadline_ns
    assert next(tries) > 1


def test_row_4_without_a_guard_it_does(clocked, name):
    with contextlib.closing(Face("threads")) as face:
        lock, again = set_forward(face, clocked, name, None)
        while not wins(again):  # an attempt waits for 0.125 s only
            assert lock.remaining() > 0
        assert lock.remaining() > 0


def test_row_4_it_is_seen_within_a_second_of_use_and_what_stood_on_it_is_in_doubt(connect, clocked, server, name):
    urls, clocks = clocked(server=server)
    client = connect(urls)
    held = client.lock(name)
    assert held.acquire()
    await_true(lambda: ask(urls[0]).exists(name))  # else its vote comes too late to count, and is in no doubt
    clocks[0].set_ahead(0.5)
    while held.remaining() > 0:
        cycle(client, name + "-other")
        time.sleep(0.01)
    assert now_ns() < held.deadline_ns
    with pytest.raises(LockLost, match="may have forgotten"):
        held.check()
    held.extend()  # the others have it
    held.check()
    await_true(lambda: b'"new":false' in ask(urls[0]).get(b"\0guard"))
    held.release()


def test_row_28_a_clock_that_was_set_back_is_told_of_and_changes_nothing(connect, clocked, name, caplog):
    urls, clocks = clocked(1)
    client = connect(urls, guard=GUARD, ttl=MAX_TTL)
    cycle(client, name)
    clocks[0].set_ahead(-3600)
    with caplog.at_level(logging.WARNING, "redlatch"):

        def told():
            cycle(client, name)
            return any("was set back by" in record.getMessage() for record in caplog.records)

        await_true(told)
    lock = client.lock(name)
    assert lock.acquire(blocking=False)
    lock.release()


def test_row_28_a_master_whose_clock_stands_still_is_left_out_until_it_goes_on(connect, clocked, name, keys):
    urls, clocks = clocked()
    client = connect(urls, guard=GUARD, ttl=MAX_TTL)
    cycle(client, name)
    clocks[0].freeze(time.time())

    names = (f"{name}-{number}" for number in itertools.count())  # what is owed to who is left out stays there so long

    def left_out():
        lock = client.lock(next(names))
        assert lock.acquire(timeout=PATIENCE)
        time.sleep(0.02)  # for a vote that is not waited for
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
def holder(implementation, clock, name, urls):
    """Run a process that holds a lock under a clock; yield what asks it how it is."""
    environment = os.environ | clock.environment | {"REDLATCH_IMPL": implementation.name}
    command = [sys.executable, "-W", "error", "-c", HOLDER, name, *urls]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def said():
        return json.loads(process.stdout.readline())

    def how():
        process.stdin.write("\n")
        process.stdin.flush()
        return said()

    try:
        yield said(), how
    finally:
        finish(process)
    assert process.returncode == 0


@pytest.mark.parametrize("hours", [1, -1])
def test_row_26_the_wall_clock_of_a_client_decides_nothing(hours, implementation, library, tmp_path, three, name):
    clock = Clock(library, tmp_path, "client")
    with holder(implementation, clock, name, three) as (first, how):
        clock.set_ahead(hours * 3600)
        now = how()
    assert abs(now["wall"] - first["wall"] - hours * 3600) < PATIENCE
    assert now["checked"]
    assert first["remaining"] - PATIENCE / 2 < now["remaining"] <= first["remaining"]


def test_row_27_time_in_which_the_machine_was_suspended_counts(implementation, library, tmp_path, three, name):
    clock = Clock(library, tmp_path, "client")
    with holder(implementation, clock, name, three) as (first, how):
        assert how()["checked"]
        clock.suspend(60)
        now = how()
    assert first["remaining"] > 0
    assert now["remaining"] == 0
    assert not now["checked"]
    assert now["told"]
