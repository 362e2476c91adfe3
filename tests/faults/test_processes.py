"""Rows 5, 8 and 38: late releases, renewals that fail silently, and processes without time."""

from __future__ import annotations

import _thread
import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, await_true, finish, run_script, wins
from support.masters import Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import AsyncClient, QuorumUnavailable, impl
from redlatch.testing import embedded

LONG = 60.0


# --- row 5: a late release ---------------------------------------------------------------------------------


def test_row_5_a_late_release_deletes_no_key(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client, other = connect([proxy.url for proxy in before]), connect(three)
    held = other.lock(name, ttl=LONG)
    assert held.acquire()
    await_true(lambda: len(keys(three, name)) == 3)
    # This master gives the key to the attempt, which is then undone.
    ask(three[0]).delete(name)

    # Wait for all three, not only for those that were connected first.
    def refused_by_three() -> bool:
        assert not client.lock(name, ttl=LONG).acquire(blocking=False)
        return all(proxy.count("SET", name) for proxy in before)

    await_true(refused_by_three)
    first = next(command for command in before[0].commands if command[:2] == (b"SET", name.encode()))[2]
    await_true(lambda: before[0].count(first) > 1)
    undone = [command for command in before[0].commands if first in command and command[0] != b"SET"]
    held.release()
    # A quorum has released it; the third master may be later.
    await_true(lambda: not keys(three, name))
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    await_true(lambda: len(keys(three, name)) == 3)
    for url in three:
        for command in undone:
            assert ask(url).execute_command(*command) == 0
    assert len(keys(three, name)) == 3
    assert lock.owned()
    assert lock.token != first
    lock.release()


# --- row 8: a limit of the process -------------------------------------------------------------------------


def test_row_8_masters_are_dialled_later_if_no_thread_could_be_started(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = fleet()
    client = connect(masters.urls)
    lock = client.lock(name)
    assert lock.acquire()
    lock.release()
    refused = []

    def refuse(*args: Any) -> None:
        """Stand in for a process that cannot start more threads."""
        refused.append(args)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    for url in masters.urls[:2]:
        ask(url).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(QuorumUnavailable, match="can't start new thread"):
        while True:
            lock = client.lock(name)
            assert lock.acquire()
            lock.release()
    assert refused
    monkeypatch.undo()
    await_true(lambda: wins(client.lock(name)))


# --- row 8: a renewal that fails ---------------------------------------------------------------------------


@on_one_face("asyncio")
def test_row_8_a_renewal_that_raises_is_no_silent_loss(
    connect: Face, three: list[str], name: str, implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the renewal raises, the loss is reported at the deadline, and other locks are still renewed."""
    calls = implementation.module("quorum.calls")
    extend, doomed = calls.extend, []

    def mistaken(quorum: Any, hold: Any, *rest: Any) -> Any:
        if hold.name in doomed:
            raise ZeroDivisionError("a mistake of ours")
        return extend(quorum, hold, *rest)

    monkeypatch.setattr(calls, "extend", mistaken)
    told = []
    client = connect(three)
    lock = client.lock(name, ttl=0.6, auto_renew=True, on_lost=lambda lock, why: told.append(time.monotonic()))
    other = client.lock(name + "-other", ttl=2.0, auto_renew=True)
    assert lock.acquire()
    assert other.acquire()
    over = time.monotonic() + lock.remaining()
    doomed.append(name)
    await_true(lambda: told)
    assert told[0] >= over - 0.05
    assert lock.remaining() == 0
    held_until = time.monotonic() + 2.5
    while time.monotonic() < held_until:
        assert other.remaining() > 0
        time.sleep(0.01)
    other.release()


# --- row 38: no time for renewals --------------------------------------------------------------------------

BUSY = """
import json, sys, threading, time
import redlatch
name, *urls = sys.argv[1:]
told = []
with redlatch.Client(urls) as client:
    lock = client.lock(name, ttl=3, auto_renew=True, on_lost=lambda lock, why: told.append(why))
    assert lock.acquire()
    over = threading.Event()
    def hog():  # takes the GIL back as soon as it may
        while not over.is_set():
            sum(range(2000))
    hogs = [threading.Thread(target=hog) for _ in range(4)]
    for each in hogs:
        each.start()
    until, least = time.monotonic() + 5, 9.9
    while time.monotonic() < until:
        least = min(least, lock.remaining())
        time.sleep(0.02)
    over.set()
    for each in hogs:
        each.join()
    print(json.dumps(dict(least=least, told=told, remaining=lock.remaining())))
    lock.release()
"""


def test_row_38_a_lock_is_renewed_while_other_threads_take_all_the_time(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    out, err = finish(run_script(BUSY, implementation.name, name, *three, wait=False))
    assert not err
    said = json.loads(out)
    assert not said["told"]
    assert said["least"] > 0
    assert said["remaining"] > 0


def test_row_38_a_blocked_loop_loses_its_lock_and_learns_of_it_as_soon_as_it_runs(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        told = []
        async with AsyncClient(three) as client:
            lock = client.lock(name, ttl=0.4, auto_renew=True, on_lost=lambda lock, why: told.append(why))
            assert await lock.acquire()
            time.sleep(0.8)
            # The loss shows at once, before any callback.
            assert lock.remaining() == 0
            await asyncio.sleep(0.05)
            assert told

    asyncio.run(main())
