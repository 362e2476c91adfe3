"""The other calls on a cluster: batches and multi-locks over all shards, questions, conditions, latches, limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, await_true
from support.shards import Shards

from redlatch import NotOwned, impl
from redlatch.quorum.claim import FREE

# No test lives as long.
LONG = 30.0


def test_a_batch_has_locks_of_all_shards(connect: Face, shards: Shards, name: str) -> None:
    client, other = connect(shards.url), connect(shards.url)
    names = [f"{name}-{number}" for number in range(60)]
    assert {shards.cluster.shard_of(each) for each in names} == {0, 1, 2}
    taken = other.lock(names[7], ttl=LONG)
    assert taken.acquire()
    locks = client.acquire_many(names, ttl=LONG)
    assert [lock is None for lock in locks] == [each == names[7] for each in names]
    held = [lock for lock in locks if lock is not None]
    assert all(client.extend_many(held, 2 * LONG))
    assert all(left > 1000 * LONG for each in names if each != names[7] for left in shards.keys(each).values())
    assert client.release_many(held) == [True] * 59
    taken.release()
    shards.await_nothing_left(name)


def test_a_multi_lock_holds_names_of_all_shards_or_none(connect: Face, shards: Shards, names: list[str]) -> None:
    client, other = connect(shards.url), connect(shards.url)
    taken = other.lock(names[1], ttl=LONG)
    assert taken.acquire()
    lock = client.multi_lock(names, ttl=LONG)
    assert not lock.acquire(blocking=False)
    call = lock.start("acquire")
    taken.release()
    assert call.result(PATIENCE)
    assert not any(other.lock(name).acquire(blocking=False) for name in names)
    lock.extend(LONG)
    lock.release()
    shards.await_nothing_left(*names)


def test_questions_go_to_the_shard_of_the_name(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url, owner="me"), connect(shards.url)
    for name in names:
        lock, question = one.lock(name, ttl=LONG), other.lock(name)
        assert not question.locked()
        assert question.holder() is None
        assert lock.acquire()
        assert question.locked()
        assert lock.owned()
        assert not question.owned()
        assert question.holder().owner == "me"
        lock.release()
        assert not question.locked()
        with pytest.raises(NotOwned):
            lock.release()


def test_a_rate_limit_is_one_for_all_clients(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        limits = [client.rate_limit(name, 3, LONG) for client in (one, other)]
        assert [limits[turn % 2].acquire(blocking=False) for turn in range(5)] == [True] * 3 + [False] * 2


def test_a_call_wakes_a_waiter_in_a_condition(
    connect: Face, shards: Shards, names: list[str], no_backstop: None, no_polls: None
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        lock = one.lock(name, ttl=LONG)
        assert lock.acquire()
        call = lock.condition().start("wait")
        await_true(partial(is_free, lock))
        caller = other.lock(name, ttl=LONG)
        assert caller.acquire(timeout=PATIENCE)
        caller.condition().notify()
        caller.release()
        assert call.result(PATIENCE)
        lock.release()


def test_the_last_count_opens_a_latch(
    connect: Face, shards: Shards, names: list[str], no_backstop: None, no_polls: None
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        calls = [client.latch(name, 2, ttl=LONG).start("wait") for client in (one, other)]
        await_true(partial(waits_for_latch, one, name))
        await_true(partial(waits_for_latch, other, name))
        one.latch(name, 2, ttl=LONG).count_down()
        assert not any(call.done() for call in calls)
        other.latch(name, 2, ttl=LONG).count_down()
        assert all(call.result(PATIENCE) for call in calls)


def is_free(lock: Faced) -> bool:
    return bool(lock.raw._hold.state == FREE)


def waits_for_latch(client: Faced, name: str) -> bool:
    watches = client.raw._quorum.queues.watches.by_key.get(f"{{{name}}}\0latch\0open".encode(), ())
    return any(watch.reopened for watch in list(watches))


@pytest.fixture
def no_polls(implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters ask only when they are woken, so that a missed push hangs the test."""
    condition: Any = implementation.module("quorum.condition")
    for name, value in (("KEEP_MS", 60_000), ("POLL_NS", 1 << 60), ("POLL_SHARE", 1), ("ALIVE_SHARE", 1)):
        monkeypatch.setattr(condition, name, value)
    monkeypatch.setattr(implementation.module("quorum.latch"), "POLL_NS", 1 << 60)


def test_health_names_the_nodes(connect: Face, shards: Shards, names: list[str]) -> None:
    client = connect(shards.url)
    client.connect()
    nodes = sorted(shards.cluster.address(node) for node in range(3))
    assert sorted(master.address for master in client.raw.health().masters) == nodes
    assert all(master.voting for master in client.raw.health().masters)


def test_a_client_without_pushes_polls(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url), connect(shards.url, wakeups="poll")
    for name in names:
        lock = one.lock(name, ttl=LONG)
        assert lock.acquire()
        call = other.lock(name, ttl=LONG).start("acquire")
        lock.release()
        assert call.result(PATIENCE)
