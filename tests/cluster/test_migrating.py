"""Slots on their way: for each key that is not at the source any more, the source sends clients to the target (ASK)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, await_true
from support.shards import Shards

from redlatch import AsyncClient, Client, QuorumUnavailable, impl

from .test_locks import KINDS, LONG


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Callable[[Faced, str], Faced]:
    return KINDS[request.param]


@pytest.fixture
def leaving(shards: Shards) -> Iterator[str]:
    """Return a name whose slot is on its way to another shard; afterwards it has arrived, and no key is left."""
    name = shards.names()[0]
    shards.cluster.begin_move(name, 1)
    yield name
    shards.cluster.finish_move(name)
    shards.await_nothing_left(name)
    assert not [key for key in shards.without_ttl() if name.encode() in key]


@pytest.fixture(params=[kind for kind in KINDS if kind != "plain"])
def several(request: pytest.FixtureRequest) -> Callable[[Faced, str], Faced]:
    """Return a kind of lock with several keys."""
    return KINDS[request.param]


def test_a_lock_of_one_key_is_acquired_and_released_at_the_target(connect: Face, shards: Shards, leaving: str) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for _ in range(3):
        lock, rival = one.lock(leaving, ttl=LONG), other.lock(leaving, ttl=LONG)
        assert lock.acquire()
        assert lock.owned()
        assert not rival.acquire(blocking=False)
        lock.extend(LONG)
        assert shards.cluster.shard_of(leaving) == 0
        assert shards.servers[1].keys(leaving)
        lock.release()
        assert rival.acquire()
        rival.release()


def test_a_waiter_gets_a_lock_of_one_key_meanwhile(connect: Face, shards: Shards, leaving: str) -> None:
    one, other = connect(shards.url), connect(shards.url)
    lock, waiting = one.lock(leaving, ttl=LONG), other.lock(leaving, ttl=LONG)
    assert lock.acquire()
    call = waiting.start("acquire")
    shards.reset()
    await_true(lambda: shards.errors("ASK"))
    lock.release()
    assert call.result(PATIENCE)
    waiting.release()


def test_a_lock_of_several_keys_waits_until_its_slot_has_arrived(
    connect: Face, shards: Shards, several: Callable[[Faced, str], Faced], names: list[str]
) -> None:
    # The keys of a script that are not there yet could be on either side.
    client = connect(shards.url, patience=PATIENCE)
    for name in names[:1]:
        shards.reset()
        shards.cluster.begin_move(name, (shards.cluster.shard_of(name) + 1) % 3)
        lock = several(client, name)
        call = lock.start("acquire", timeout=PATIENCE)
        await_true(lambda: shards.errors("TRYAGAIN") > 3)
        shards.cluster.finish_move(name)
        assert call.result(PATIENCE)
        lock.release()
        shards.await_nothing_left(name)


def test_a_call_that_cannot_wait_as_long_says_why(
    connect: Face, shards: Shards, leaving: str, several: Callable[[Faced, str], Faced]
) -> None:
    with pytest.raises(QuorumUnavailable, match="TRYAGAIN"):
        several(connect(shards.url), leaving).acquire()


def test_a_release_goes_on_until_the_slot_has_arrived(
    connect: Face, shards: Shards, several: Callable[[Faced, str], Faced], names: list[str]
) -> None:
    client = connect(shards.url)
    for name in names[:1]:
        lock = several(client, name)
        assert lock.acquire()
        shards.cluster.begin_move(name, (shards.cluster.shard_of(name) + 1) % 3)
        shards.cluster.move_keys(name, next(iter(shards.keys(name))))
        with contextlib.suppress(QuorumUnavailable):
            lock.release()
        shards.cluster.finish_move(name)
        shards.await_nothing_left(name)


def test_a_lock_that_was_held_before_is_released_at_the_source(connect: Face, shards: Shards, names: list[str]) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names[:1]:
        lock = one.lock(name, ttl=LONG)
        assert lock.acquire()
        shards.cluster.begin_move(name, (shards.cluster.shard_of(name) + 1) % 3)
        rival = other.lock(name, ttl=LONG)
        assert not rival.acquire(blocking=False)
        lock.release()
        assert rival.acquire()
        shards.cluster.finish_move(name)
        rival.release()


def test_a_lock_that_arrives_while_it_is_held_is_still_held(
    connect: Face, shards: Shards, kind: Callable[[Faced, str], Faced], names: list[str]
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    for name in names[:1]:
        lock = kind(one, name)
        assert lock.acquire()
        shards.cluster.begin_move(name, (shards.cluster.shard_of(name) + 1) % 3)
        shards.cluster.move_keys(name)
        with contextlib.suppress(QuorumUnavailable):
            assert not kind(other, name).acquire(blocking=False)
        shards.cluster.finish_move(name)
        assert not kind(other, name).acquire(blocking=False)
        assert lock.owned()
        lock.release()
        shards.await_nothing_left(name)


def test_a_waiter_that_times_out_leaves_nothing(
    connect: Face, shards: Shards, leaving: str, kind: Callable[[Faced, str], Faced]
) -> None:
    one, other = connect(shards.url), connect(shards.url)
    lock = one.lock(leaving, ttl=LONG)
    assert lock.acquire()
    with contextlib.suppress(QuorumUnavailable):
        assert not kind(other, leaving).acquire(timeout=0.1)
    lock.release()


def plain(client: Any, name: str) -> Any:
    return client.lock(name, ttl=LONG)


def fenced(client: Any, name: str) -> Any:
    return client.lock(name, ttl=LONG, fence=True)


def fair(client: Any, name: str) -> Any:
    return client.lock(name, ttl=LONG, fair=True)


def test_a_task_that_is_cancelled_leaves_nothing(
    implementation: impl.Implementation, shards: Shards, leaving: str
) -> None:
    async def main() -> None:
        async with AsyncClient(shards.url) as client:
            await client.connect()
            for kind in (plain, fenced, fair):
                for turn in range(20):
                    lock = kind(client, leaving)
                    task = asyncio.create_task(lock.acquire())
                    # Each turn of the loop may have another reply.
                    for _ in range(turn):
                        await asyncio.sleep(0.0002)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, QuorumUnavailable):
                        await task
                        await lock.release()

    asyncio.run(main())


def test_an_interrupted_thread_leaves_nothing(
    implementation: impl.Implementation, shards: Shards, leaving: str, strike: Any
) -> None:
    with Client(shards.url) as client, Client(shards.url) as other:
        rival = other.lock(leaving, ttl=LONG)
        assert rival.acquire()
        for kind in (plain, fenced, fair):
            for turn in range(10):
                lock = kind(client, leaving)
                strike(0.0005 * (turn + 1))
                with contextlib.suppress(KeyboardInterrupt, QuorumUnavailable):
                    assert not lock.acquire(timeout=0.02)
                strike.off()
        rival.release()


def test_a_client_that_closes_leaves_nothing(connect: Face, shards: Shards, leaving: str) -> None:
    client = connect(shards.url)
    locks = [client.lock(f"{{{leaving}}}-{number}", ttl=LONG) for number in range(20)]
    assert all(lock.acquire() for lock in locks)
    assert client.start("close", release=True).result(PATIENCE) is None
