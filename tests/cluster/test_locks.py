"""Every kind of lock on a cluster: it excludes others, it is released, and a release wakes a waiter elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, await_true, in_thread
from support.shards import Shards, kinds_for

from redlatch import AsyncClient, Client, LockLost, impl

# No test lives as long.
LONG = 30.0

KINDS = kinds_for(LONG)


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Callable[[Faced, str], Faced]:
    return KINDS[request.param]


def waits(client: Faced, name: str) -> bool:
    """Return whether a task of the client waits for pushes of a name."""
    watches = client.raw._quorum.queues.watches.by_key
    return any(watch.reopened for key in list(watches) if name.encode() in key for watch in list(watches.get(key, ())))


def test_a_lock_excludes_other_clients_until_it_is_released(
    connect: Face, shards: Shards, names: list[str], kind: Callable[[Faced, str], Faced]
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        lock, rival = kind(one, name), kind(other, name)
        assert lock.acquire()
        assert lock.owned()
        assert not rival.acquire(blocking=False)
        lock.extend(2 * LONG)
        assert lock.remaining() > LONG
        lock.release()
        assert rival.acquire()
        rival.release()
    shards.await_nothing_left(*names)
    assert not [key for key in shards.without_ttl() if b"lock-" in key]


def test_a_release_wakes_a_waiter_of_another_client(
    connect: Face, shards: Shards, names: list[str], kind: Callable[[Faced, str], Faced], no_backstop: None
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        lock, waiting = kind(one, name), kind(other, name)
        assert lock.acquire()
        call = waiting.start("acquire")
        await_true(partial(waits, other, name))
        lock.release()
        assert call.result(PATIENCE)
        waiting.release()
    shards.await_nothing_left(*names)


def test_the_keys_of_a_lock_are_in_the_slot_of_its_name(
    connect: Face, shards: Shards, names: list[str], kind: Callable[[Faced, str], Faced]
) -> None:
    client = connect(shards.url)
    for name in [*names, f"{names[0]}{{tag}}"]:
        lock = kind(client, name)
        assert lock.acquire()
        assert {shards.cluster.slot_of(key) for key in shards.keys(name)} == {shards.cluster.slot_of(name)}
        lock.release()
    shards.await_nothing_left(*names)


def test_fences_go_up_over_clients(connect: Face, shards: Shards, names: list[str]) -> None:
    clients = [connect(shards.url), connect(shards.url)]
    for name in names:
        numbers = []
        for turn in range(6):
            lock = clients[turn % 2].lock(name, ttl=LONG, fence=True)
            assert lock.acquire()
            numbers.append(lock.fence)
            lock.release()
        assert numbers == sorted(set(numbers))


def test_an_rlock_counts(implementation: impl.Implementation, shards: Shards, names: list[str]) -> None:
    with Client(shards.url) as client, Client(shards.url) as other:
        for name in names:
            lock = client.rlock(name, ttl=LONG)
            with lock, lock:
                assert lock.count == 2
                assert not other.lock(name).acquire(blocking=False)
                waiting = in_thread(lock.acquire)
            assert waiting.result(PATIENCE)


def test_an_rlock_of_tasks_counts(implementation: impl.Implementation, shards: Shards, names: list[str]) -> None:
    async def main() -> None:
        async with AsyncClient(shards.url) as client:
            for name in names:
                lock = client.rlock(name, ttl=LONG)
                async with lock, lock:
                    assert lock.count == 2
                assert lock.count == 0

    asyncio.run(main())
    shards.await_nothing_left(*names)


def test_many_read_and_a_writer_is_alone(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        readers = [client.rw_lock(name, ttl=LONG).read() for client in (one, other, one)]
        assert all(reader.acquire() for reader in readers)
        writer = other.rw_lock(name, ttl=LONG).write()
        assert not writer.acquire(blocking=False)
        call = writer.start("acquire")
        for reader in readers:
            reader.release()
        assert call.result(PATIENCE)
        assert not one.rw_lock(name).read().acquire(blocking=False)
        writer.release()
    shards.await_nothing_left(*names)


def test_a_semaphore_has_as_many_holders_as_permits(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names:
        held = [client.semaphore(name, 3, ttl=LONG) for client in (one, other, one)]
        assert all(each.acquire() for each in held)
        late = other.semaphore(name, 3, ttl=LONG)
        assert not late.acquire(blocking=False)
        call = late.start("acquire")
        held.pop().release()
        assert call.result(PATIENCE)
        for each in [*held, late]:
            each.release()
    shards.await_nothing_left(*names)


class Told:
    def __init__(self, reasons: list[Any]) -> None:
        self._reasons = reasons

    def __call__(self, lock: object, reason: object) -> None:
        self._reasons.append(reason)


def test_a_lock_whose_key_is_deleted_is_reported_at_once(connect: Face, shards: Shards, names: list[str]) -> None:
    for name in names:
        reasons: list[Any] = []
        lock = connect(shards.url).lock(name, ttl=LONG, on_lost=Told(reasons))
        assert lock.acquire()
        lost = lock.lost
        assert shards.server_of(name).delete(name) == 1
        await_true(lost.is_set)
        await_true(reasons.__len__)
        with pytest.raises(LockLost):
            lock.release()


def test_a_renewed_lock_outlives_its_ttl(connect: Face, shards: Shards, names: list[str]) -> None:
    locks = [connect(shards.url).lock(name, ttl=1.0, auto_renew=True) for name in names]
    assert all(lock.acquire() for lock in locks)
    other = connect(shards.url)
    assert not other.lock(names[0]).acquire(timeout=1.5)
    assert all(lock.owned() for lock in locks)
    for lock in locks:
        lock.release()
    shards.await_nothing_left(*names)
