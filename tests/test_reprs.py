"""What objects say of themselves: their reprs, and the name in the warning of a forgotten await."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import redis.asyncio
from support.faces import PATIENCE, Face, await_true, in_thread, refused

import redlatch
from redlatch import impl
from redlatch.compat.redis_py import AsyncLock

# The arguments of calls that need some.
ARGUMENTS: dict[str, list[Any]] = {"acquire_many": [["n"]], "release_many": [[]], "extend_many": [[]]}


@pytest.mark.parametrize("face", [redlatch.Client, redlatch.AsyncClient])
def test_a_repr_says_what_an_object_is(face: type) -> None:
    client = face("redis://127.0.0.1:1")  # it connects only when a lock is asked for
    prefix, owner = ("Async", "task") if face is redlatch.AsyncClient else ("", "thread")
    rw = client.rw_lock("n")
    shown = {
        "Lock 'n' not held": client.lock("n"),
        "Lock 'n' (fair) not held": client.fair_lock("n"),
        "Lock 'n' (fenced) not held": client.lock("n", fence=True),
        "Lock 'n' (reader) not held": rw.read(),
        "Lock 'n' (writer) not held": rw.write(),
        "Semaphore 'n' not held": client.semaphore("n", 2),
        "RateLimit 'n' of 10 in 0.5 s": client.rate_limit("n", 10, 0.5),
        "MultiLock ['a', 'b'] not held": client.multi_lock(["b", "a", "b"]),
        f"Condition of <{prefix}Lock 'n' not held>": client.lock("n").condition(),
        f"Condition 'full' of <{prefix}Lock 'n' not held>": client.lock("n").condition("full"),
        "Latch 'n' of 3": client.latch("n", 3),
        f"RLock 'n' not held by this {owner}": client.rlock("n"),
        f"RLock 'n' (fair) not held by this {owner}": client.rlock("n", fair=True),
        f"RLock 'n' (fenced) not held by this {owner}": client.rlock("n", fence=True),
    }
    assert [repr(lock) for lock in shown.values()] == [f"<{prefix}{text}>" for text in shown]
    assert repr(rw) == f"<RWLock[{prefix}Lock] 'n'>"


def test_the_repr_of_a_held_lock_says_for_how_long(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock, many = client.lock(name, ttl=60.0), client.multi_lock([name + "-1", name + "-2"], ttl=60.0)
    assert lock.acquire() and many.acquire()
    assert re.fullmatch(rf"<(Async)?Lock '{name}' held for 5\d\.\d{{3}} s more>", repr(lock.raw))
    assert re.fullmatch(r"<(Async)?MultiLock \[.*\] held for 5\d\.\d{3} s more>", repr(many.raw))


def test_the_repr_of_an_rlock_counts_the_acquires_of_the_caller(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    with redlatch.Client(url) as client:
        lock = client.rlock(name, ttl=60.0)
        with lock, lock:
            assert re.fullmatch(rf"<RLock '{name}' held for 5\d\.\d{{3}} s more by this thread, count 2>", repr(lock))
            assert in_thread(repr, lock).result(PATIENCE) == f"<RLock '{name}' not held by this thread>"


def test_the_repr_of_a_client_says_whether_it_can_be_used(connect: Face, url: str) -> None:
    client, unused = connect(url), connect([url, "redis://127.0.0.1:1"])
    kind, address = type(client.raw).__name__, url.removeprefix("redis://")
    assert repr(client.raw) == f"<{kind} of {address} (not connected)>"
    client.connect()
    assert repr(client.raw) == f"<{kind} of {address} (1 of 1 connected)>"
    for each in (client, unused):
        each.close()
    assert repr(client.raw) == f"<{kind} of {address} (closed)>"
    assert repr(unused.raw) == f"<{kind} of {address}, 127.0.0.1:1 (closed)>"


def test_the_repr_of_a_client_says_that_its_masters_are_refused(connect: Face, three: list[str]) -> None:
    client = connect([*three[:2], three[0].replace("127.0.0.1", "localhost")])
    # If the third server is slow, its answer comes after the first call.
    await_true(lambda: refused(client, "same server"))
    assert repr(client.raw).endswith(" (misconfigured)>")


def test_the_warning_of_a_forgotten_await_names_the_public_call(implementation: impl.Implementation) -> None:
    client = redlatch.AsyncClient("redis://127.0.0.1:1")
    lock, renewed, rlock = client.lock("n"), client.lock("n", auto_renew=True), client.rlock("n")
    things: list[Any] = [client, lock, renewed, rlock, client.semaphore("n", 2), client.multi_lock(["n"])]
    calls = [
        (getattr(thing, name), ARGUMENTS.get(name, []))
        for thing in things
        for name, function in inspect.getmembers(type(thing), inspect.iscoroutinefunction)
        if not name.startswith("_")
    ]
    calls += [(thing.release, [False]) for thing in things[1:]]
    assert len(calls) >= 25
    for call, arguments in calls:
        with pytest.warns(RuntimeWarning) as caught:
            call(*arguments)
        assert [str(each.message) for each in caught] == [f"coroutine '{call.__qualname__}' was never awaited"]


def test_the_warning_of_a_forgotten_await_names_the_call_of_the_drop_in() -> None:
    lock = AsyncLock(redis.asyncio.Redis(), "n")
    for call in (lock.acquire, lock.release):
        with pytest.warns(RuntimeWarning, match=f"coroutine '{call.__qualname__}' was never awaited"):
            call()
