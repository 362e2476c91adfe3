"""Nodes that die, hang, or are replaced under load: clients find the new primaries, and leave no key behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, await_true, in_thread
from support.selection import on_one_face
from support.shards import Shards, running

from redlatch import Client, LockLost, QuorumUnavailable, impl

# No test lives as long.
LONG = 60.0


@pytest.fixture(scope="module")
def with_replicas() -> Iterator[Shards]:
    with running(replicas=1) as shards:
        yield shards


@pytest.fixture
def replicated(with_replicas: Shards) -> Iterator[Shards]:
    """Let a test stop nodes; afterwards all nodes run and agree again."""
    made = with_replicas.cluster
    yield with_replicas
    for node in range(len(with_replicas.urls)):
        if with_replicas.cluster.servers.paused[node]:
            made.resume(node)
        if node not in made.living:
            made.start(node)
    made.wait_until_ok()


def stop(shards: Shards, how: str, shard: int) -> None:
    primary = shards.cluster.primary(shard)
    if how == "replaced":
        shards.cluster.fail_over(shard)
    elif how == "killed":
        shards.cluster.kill(primary)
    else:
        shards.cluster.pause(primary)


@pytest.mark.parametrize("how", ["replaced", "killed", "hangs"])
def test_a_lock_is_acquired_and_released_at_the_new_primary(connect: Face, replicated: Shards, how: str) -> None:
    # The guard keeps a shard out for a ttl if it may have forgotten locks.
    client = connect(replicated.url, patience=PATIENCE, guard=None)
    held, wanted = replicated.names()[0], replicated.names()[0]
    lock = client.lock(held, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: held.encode() in copied(replicated, held))
    stop(replicated, how, 0)
    other = client.lock(wanted, ttl=LONG)
    assert other.acquire(timeout=PATIENCE)
    other.release()
    with contextlib.suppress(QuorumUnavailable, LockLost):
        lock.release()
    # A release is never forgotten: it follows the slot.
    await_true(lambda: not keys_of(replicated, held, 0))


def keys_of(shards: Shards, name: str, shard: int) -> list[bytes]:
    return [key for key in shards.servers[shards.cluster.primary(shard)].keys(f"{name}*") if not key.endswith(b"fence")]


def copied(shards: Shards, name: str) -> list[bytes]:
    """Return the keys of a name on the replica of shard 0."""
    [replica] = shards.cluster.replicas(0)
    return list(shards.servers[replica].keys(f"{name}*"))


@pytest.mark.parametrize("how", ["replaced", "killed", "hangs"])
def test_other_shards_are_not_disturbed(connect: Face, replicated: Shards, how: str) -> None:
    client = connect(replicated.url, guard=None)
    names = replicated.names()
    for name in names:
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire()
        lock.release()
    stop(replicated, how, 0)
    # A slow primary of another shard would make one of these fail.
    for turn in range(50):
        for name in names[1:]:
            lock = client.lock(f"{{{name}}}-{turn}", ttl=LONG)
            assert lock.acquire()
            lock.release()
    stuck = client.lock(names[0], ttl=LONG)
    call = stuck.start("acquire", timeout=PATIENCE)
    for turn in range(50):
        lock = client.lock(f"{{{names[1]}}}-{turn}", ttl=LONG)
        assert lock.acquire()
        lock.release()
    with contextlib.suppress(QuorumUnavailable):
        assert call.result(PATIENCE)
        stuck.release()


def test_a_waiter_outlives_the_primary(connect: Face, replicated: Shards) -> None:
    one, other = (connect(replicated.url, patience=PATIENCE, guard=None) for _ in range(2))
    name = replicated.names()[0]
    lock, waiting = one.lock(name, ttl=LONG), other.lock(name, ttl=LONG)
    assert lock.acquire()
    await_true(lambda: copied(replicated, name))
    call = waiting.start("acquire", timeout=PATIENCE)
    replicated.cluster.kill_primary(0)
    with contextlib.suppress(QuorumUnavailable):
        lock.release()
    assert call.result(PATIENCE)
    waiting.release()


@on_one_face("threads")
def test_a_client_whose_seeds_are_gone_knows_the_other_nodes(connect: Face, replicated: Shards) -> None:
    made = replicated.cluster
    seed = made.primary(0)
    client = connect(f"redis+cluster://{made.address(seed)}", patience=PATIENCE, guard=None)
    client.connect()
    made.kill(seed)
    made.wait_for_promotion(0, seed)
    for name in replicated.names():
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire(timeout=PATIENCE)
        lock.release()


@on_one_face("threads")
def test_a_cluster_that_was_away_is_found_again(connect: Face, replicated: Shards) -> None:
    made = replicated.cluster
    client = connect(replicated.url, patience=PATIENCE, guard=None)
    client.connect()
    name = replicated.names()[0]
    primaries = [made.primary(shard) for shard in range(3)]
    for node in primaries:
        made.pause(node)
    call = client.lock(name, ttl=LONG).start("acquire", timeout=PATIENCE)
    assert not call.done()
    for node in primaries:
        made.resume(node)
    assert call.result(PATIENCE)


def all_grew(now: dict[str, int], before: dict[str, int]) -> bool:
    return all(now[name] > before[name] for name in now)


@pytest.mark.slow("primaries are killed and replaced under load for half a minute")
@pytest.mark.timeout(600)
def test_primaries_are_lost_under_load(implementation: impl.Implementation, replicated: Shards) -> None:
    made = replicated.cluster
    names = replicated.names()
    over = threading.Event()
    cycles = dict.fromkeys(names, 0)

    def work(client: Any, name: str) -> None:
        while not over.is_set():
            lock = client.lock(name, ttl=LONG)
            with contextlib.suppress(QuorumUnavailable, LockLost):
                if lock.acquire(timeout=1.0):
                    cycles[name] += 1
                    lock.release()

    with Client(replicated.url, guard=None) as one, Client(replicated.url, guard=None) as other:
        calls = [in_thread(work, client, name) for client in (one, other) for name in names]
        for turn in range(6):
            shard = turn % 3
            former = made.primary(shard)
            if turn % 2:
                made.kill(former)
                made.wait_for_promotion(shard, former)
                made.start(former)
            else:
                made.fail_over(shard)
            made.wait_until_ok()
            before = dict(cycles)
            await_true(partial(all_grew, cycles, before))
        over.set()
        for call in calls:
            call.result(PATIENCE)
