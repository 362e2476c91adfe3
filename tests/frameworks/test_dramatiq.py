"""The backend for dramatiq's rate limiters: slots, buckets, windows and barriers, with dramatiq and real masters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.rate_limits import (
    Barrier,
    BucketRateLimiter,
    ConcurrentRateLimiter,
    RateLimiter,
    RateLimitExceeded,
    WindowRateLimiter,
)
from support.faces import PATIENCE, ask, at_once, await_true, in_thread, line_of, run_script
from support.masters import Keys

from redlatch import Client, ConfigurationError, Guard, QuorumUnavailable, impl
from redlatch.dramatiq import RedlatchBackend
from redlatch.testing import Masters

Fleet = Callable[..., Masters]


@pytest.fixture
def backend(implementation: impl.Implementation, three: list[str]) -> Iterator[RedlatchBackend]:
    with Client(three) as client:
        yield RedlatchBackend(client)


@pytest.fixture
def other(implementation: impl.Implementation, three: list[str]) -> Iterator[RedlatchBackend]:
    """The backend of another worker."""
    with Client(three) as client:
        yield RedlatchBackend(client)


def free(limiter: RateLimiter) -> bool:
    """Return whether the limiter lets one more in."""
    with limiter.acquire(raise_on_failure=False) as acquired:
        return bool(acquired)


# --- ConcurrentRateLimiter ------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [20_000, 900_000])
def test_a_limiter_lets_as_many_in_as_it_says(
    backend: RedlatchBackend, other: RedlatchBackend, name: str, ttl: int
) -> None:
    limiters = [ConcurrentRateLimiter(each, name, limit=2, ttl=ttl) for each in (backend, other)]
    with limiters[0].acquire(), limiters[1].acquire():
        for limiter in limiters:
            with pytest.raises(RateLimitExceeded), limiter.acquire():
                raise AssertionError("it is in")
    assert all(map(free, limiters))
    assert backend._slots == other._slots == {}


def test_many_threads_are_never_more_than_the_limit(
    backend: RedlatchBackend, other: RedlatchBackend, name: str
) -> None:
    inside, most, entered = 0, 0, 0
    guard = threading.Lock()

    def work(each: RedlatchBackend) -> None:
        nonlocal inside, most, entered
        limiter = ConcurrentRateLimiter(each, name, limit=3)
        for _ in range(20):
            with limiter.acquire(raise_on_failure=False) as acquired:
                if not acquired:
                    continue
                with guard:
                    inside += 1
                    entered += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with guard:
                    inside -= 1

    at_once([partial(work, each) for each in [backend, other] * 4])
    assert most <= 3
    assert entered > 20


def test_a_slot_with_a_long_ttl_is_renewed_for_that_time(three: list[str], name: str, keys: Keys) -> None:
    # The guard's limit is below the ttl, so the slot is renewed in steps of the client's ttl.
    with Client(three, ttl=0.3, guard=Guard(max_ttl=0.5)) as client:
        backend = RedlatchBackend(client)
        assert backend.add(name, 1, ttl=900_000)
        [(_, slot)] = backend._slots[name]
        first = slot.deadline_ns
        await_true(lambda: slot.deadline_ns > first + 500_000_000)
        assert all(left <= 500 for left in keys(three, f"{{{name}}}\0slots").values())
        assert backend.decr(name, 1, 0, ttl=900_000)


def test_the_slot_of_a_killed_worker_is_free_after_the_clients_ttl(three: list[str], name: str) -> None:
    program = f"""
from redlatch import Client
from redlatch.dramatiq import RedlatchBackend
backend = RedlatchBackend(Client({three!r}, ttl=0.5))
assert backend.add({name!r}, 1, 900_000)
print("in", flush=True)
input()
"""
    worker = run_script(program, "python", wait=False)
    with Client(three) as client:
        limiter = ConcurrentRateLimiter(RedlatchBackend(client), name, limit=1)
        assert line_of(worker) == "in\n"
        assert not free(limiter)
        worker.kill()
        worker.communicate(timeout=PATIENCE)
        await_true(lambda: free(limiter))


def test_a_slot_that_was_lost_is_not_given_back_twice(
    backend: RedlatchBackend, other: RedlatchBackend, name: str, three: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert backend.add(name, 1, ttl=50)
    [(_, slot)] = backend._slots[name]
    await_true(lambda: not slot.remaining())
    limiter = ConcurrentRateLimiter(other, name, limit=1)
    await_true(lambda: other.add(name, 1, ttl=20_000))
    assert not backend.decr(name, 1, 0, ttl=50)
    assert f"lock {name!r} was lost" in caplog.text
    assert not free(limiter)
    assert other.decr(name, 1, 0, ttl=20_000)
    assert free(limiter)


def test_nothing_is_given_back_that_was_not_taken(backend: RedlatchBackend, name: str) -> None:
    assert not backend.decr(name, 1, 0, ttl=1000)


def test_each_thread_and_task_gives_its_own_slot_back(backend: RedlatchBackend, name: str) -> None:
    backend.incr(name, 1, 9, 20_000)
    [(_, mine)] = backend._slots[name]
    began, finish = threading.Event(), threading.Event()

    def thread() -> None:
        assert backend.incr(name, 1, 9, 20_000)
        began.set()
        assert finish.wait(PATIENCE)
        assert backend.decr(name, 1, 0, 20_000)

    done = in_thread(thread)
    assert began.wait(PATIENCE)

    async def task() -> None:
        assert backend.incr(name, 1, 9, 20_000)
        await asyncio.sleep(0)
        assert backend.decr(name, 1, 0, 20_000)

    async def tasks() -> None:
        await asyncio.gather(*[task() for _ in range(5)])

    asyncio.run(tasks())
    assert mine.remaining()
    assert backend.decr(name, 1, 0, 20_000)
    assert not mine.remaining()
    assert len(backend._slots[name]) == 1
    # Another thread may give back what nobody else does.
    assert backend.decr(name, 1, 0, 20_000)
    assert backend._slots == {}
    finish.set()
    with pytest.raises(AssertionError):
        done.result(PATIENCE)


def test_slots_of_ended_threads_are_forgotten_when_they_expired(backend: RedlatchBackend, name: str) -> None:
    assert in_thread(backend.incr, name, 1, 9, 50).result(PATIENCE)
    [(owner, slot)] = backend._slots[name]
    await_true(lambda: owner() is None and not slot.remaining())
    assert backend.incr(name, 1, 9, 20_000)
    assert [each for _, each in backend._slots[name]] != [slot]
    assert len(backend._slots[name]) == 1
    backend.decr(name, 1, 0, 20_000)


def test_an_interrupt_right_after_the_acquire_gives_the_slot_back(
    backend: RedlatchBackend, other: RedlatchBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RedlatchBackend, "_note", strike)
        backend.add(name, 1, 60_000)
    await_true(lambda: free(ConcurrentRateLimiter(other, name, limit=1)))


def test_without_a_quorum_nobody_gets_in_and_a_worker_can_finish(
    implementation: impl.Implementation, fleet: Fleet, name: str
) -> None:
    masters = fleet(3)
    with Client(masters.urls, attempt_timeout=0.2) as client:
        limiter = ConcurrentRateLimiter(RedlatchBackend(client), name, limit=2, ttl=20_000)
        with limiter.acquire():
            masters.kill(0)
            masters.kill(1)
            with pytest.raises(QuorumUnavailable), limiter.acquire():
                raise AssertionError("it is in")


# --- BucketRateLimiter and WindowRateLimiter ------------------------------------------------------------


def test_a_bucket_has_as_many_slots_as_its_limit(
    backend: RedlatchBackend, other: RedlatchBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time() // 20 * 20 + 1  # a bucket that does not end during the test
    monkeypatch.setattr(time, "time", lambda: now)
    limiters = [BucketRateLimiter(each, name, limit=4, bucket=20_000) for each in (backend, other)]
    results = [free(limiter) for _ in range(4) for limiter in limiters]
    assert results == [True] * 4 + [False] * 4
    assert backend._slots == {}


def test_a_bucket_outlives_its_worker_or_is_refused(three: list[str], name: str) -> None:
    with Client(three, guard=Guard(max_ttl=60)) as client:
        limiter = BucketRateLimiter(RedlatchBackend(client), name, bucket=3_600_000)
        with pytest.raises(ConfigurationError, match="above the 60 s of the guard"), limiter.acquire():
            raise AssertionError("it is in")


def test_a_window_slides(backend: RedlatchBackend, other: RedlatchBackend, name: str) -> None:
    limiters = [WindowRateLimiter(each, name, limit=3, window=2) for each in (backend, other)]
    began = time.monotonic()
    assert [free(limiter) for _ in range(2) for limiter in limiters] == [True, True, True, False]
    await_true(lambda: free(limiters[0]))
    # However slow this machine is, the window is never shorter.
    assert time.monotonic() - began > 1.9
    assert backend._slots == {}


# --- Barrier --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [1, 2, 3, 10])
def test_the_last_party_clears_a_barrier(
    backend: RedlatchBackend, other: RedlatchBackend, name: str, parties: int
) -> None:
    barriers = [Barrier(each, name, ttl=20_000) for each in (backend, other)]
    assert barriers[0].create(parties=parties)
    assert not barriers[1].create(parties=parties)
    cleared = [barriers[number % 2].wait(block=False) for number in range(parties)]
    assert cleared == [False] * (parties - 1) + [True]
    assert barriers[0].wait(block=False)


def test_parties_that_arrive_at_once_are_counted(backend: RedlatchBackend, other: RedlatchBackend, name: str) -> None:
    assert Barrier(backend, name, ttl=20_000).create(parties=16)
    barriers = [Barrier(each, name, ttl=20_000) for each in [backend, other] * 8]
    cleared = at_once([partial(each.wait, block=False) for each in barriers])
    assert sorted(cleared) == [False] * 15 + [True]


def test_a_number_that_a_party_only_tries_is_not_counted(
    backend: RedlatchBackend, other: RedlatchBackend, name: str
) -> None:
    assert Barrier(backend, name, ttl=20_000).create(parties=2)
    # The other party tries for the first number, and its attempt will be undone.
    with other._client.lock(f"{name}@arriving"), other._client.lock(f"{name}@arrived/1"):
        missing = in_thread(backend.decr, name, 1, 1, 20_000)
        waiting = f"{name}@arriving".encode()
        await_true(lambda: missing.done() or waiting in backend._client._quorum.queues.heads)
    assert missing.result(PATIENCE)


def test_a_waiting_party_goes_on_when_the_last_one_arrives(
    backend: RedlatchBackend, other: RedlatchBackend, name: str
) -> None:
    assert Barrier(backend, name, ttl=20_000).create(parties=2)
    first = in_thread(lambda: Barrier(backend, name, ttl=20_000).wait(timeout=30_000))
    await_true(lambda: backend._is_locked(f"{name}@arrived/1"))
    assert not first.done()
    assert Barrier(other, name, ttl=20_000).wait(timeout=1000)
    assert first.result(PATIENCE)


def test_a_party_waits_no_longer_than_its_timeout(backend: RedlatchBackend, name: str) -> None:
    barrier = Barrier(backend, name, ttl=20_000)
    assert barrier.create(parties=2)
    assert not barrier.wait(timeout=100)


def test_a_barrier_that_does_not_exist_is_cleared(backend: RedlatchBackend, name: str) -> None:
    assert Barrier(backend, name, ttl=20_000).wait(block=False)


def test_a_client_remembers_nothing_of_barriers_and_buckets(backend: RedlatchBackend, name: str) -> None:
    for number in range(5):
        barrier = Barrier(backend, f"{name}:{number}", ttl=20_000)
        barrier.create(parties=2)
        barrier.wait(block=False)
        barrier.wait(block=False)
        free(BucketRateLimiter(backend, f"{name}:{number}"))
    assert backend._client._quorum.queues.heads == {}


# --- other callers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.incr("a", 2, 9, 1000),
        lambda backend: backend.decr("a", 2, 0, 1000),
        lambda backend: backend.decr("a", 1, 2, 1000),
        lambda backend: backend.incr_and_sum("a@1", lambda: ["a@1"], 2, 9, 1000),
        lambda backend: backend.incr_and_sum("a@1", lambda: ["a@1", "b@1"], 1, 9, 1000),
        lambda backend: backend.incr_and_sum("a", lambda: ["a"], 1, 9, 1000),
    ],
)
def test_a_call_that_no_limiter_makes_is_refused(call: Callable[[RedlatchBackend], object], three: list[str]) -> None:
    with Client(three) as client, pytest.raises(NotImplementedError):
        call(RedlatchBackend(client))


def test_actors_of_a_worker_share_a_limit(backend: RedlatchBackend, name: str) -> None:
    broker = StubBroker(middleware=[])
    broker.emit_after("process_boot")
    mutex = ConcurrentRateLimiter(backend, name, limit=1)
    inside, most, done = 0, 0, 0

    @dramatiq.actor(broker=broker, queue_name="orders")
    def sell() -> None:
        nonlocal inside, most, done
        while True:
            with mutex.acquire(raise_on_failure=False) as acquired:
                if not acquired:
                    time.sleep(0.001)
                    continue
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1
                done += 1
                return

    worker = Worker(broker, worker_timeout=100, worker_threads=4)
    worker.start()
    try:
        for _ in range(12):
            sell.send()
        broker.join("orders", timeout=int(PATIENCE * 1000))
        worker.join()
    finally:
        worker.stop()
        broker.close()
    assert (most, done) == (1, 12)


COUNT = """
import sys, time
from dramatiq.rate_limits import ConcurrentRateLimiter
from redlatch import Client
from redlatch.dramatiq import RedlatchBackend
import redis
shop = redis.Redis.from_url(sys.argv[2])
with Client(sys.argv[3:]) as client:
    mutex = ConcurrentRateLimiter(RedlatchBackend(client), sys.argv[1], limit=1)
    sold = 0
    while sold < 50:
        with mutex.acquire(raise_on_failure=False) as acquired:
            if acquired:
                shop.set("sold", int(shop.get("sold") or 0) + 1)
                sold += 1
"""


def test_worker_processes_lose_no_update_under_a_limit_of_one(fleet: Fleet, three: list[str], name: str) -> None:
    url = fleet(1).urls[0]
    running = [subprocess.Popen([sys.executable, "-c", COUNT, name, url, *three]) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0] * 3
    assert ask(url).get("sold") == b"150"
