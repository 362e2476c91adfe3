"""Locks while slots move all the time, key by key and atomically: no second holder, no lost wake-up, no key left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, in_thread
from support.shards import Moves, Shards, kinds_for

from redlatch import AsyncClient, Client, QuorumUnavailable, impl
from redlatch.quorum.waiting.contention import BACKSTOP_NS

LONG = 20.0

KINDS = kinds_for(LONG)

# No server reports that a slot has gone, and a bell that has not rung is no key that goes with it. So a fair waiter
# learns it when it asks by itself.
SURE = [kind for kind in KINDS if kind != "fair"]

CLIENTS = 3


class Figures:
    """What the callers have seen, who all hold locks by one of a few names.

    Attributes:
        longest: the longest wait in seconds.
    """

    def __init__(self, names: list[str]) -> None:
        self.inside = dict.fromkeys(names, 0)
        self.most = 0
        self.cycles = 0
        self.longest = 0.0
        self.fences = dict.fromkeys(names, 0)
        self._guard = threading.Lock()

    def enter(self, name: str, fence: int | None, began: float) -> None:
        with self._guard:
            self.inside[name] += 1
            self.most = max(self.most, self.inside[name])
            self.cycles += 1
            self.longest = max(self.longest, time.monotonic() - began)
            if fence is not None:
                assert fence > self.fences[name]
                self.fences[name] = fence

    def leave(self, name: str) -> None:
        with self._guard:
            self.inside[name] -= 1


# Whether to stop.
Done = Callable[[Figures], bool]


def by_threads(url: str, names: list[str], kind: str, done: Done) -> Figures:
    figures = Figures(names)

    def work(client: Client, name: str) -> None:
        while not done(figures):
            lock = KINDS[kind](client, name)
            began = time.monotonic()
            assert lock.acquire(timeout=PATIENCE)
            figures.enter(name, getattr(lock, "fence", None), began)
            figures.leave(name)
            lock.release()

    clients = [Client(url, patience=PATIENCE) for _ in range(CLIENTS)]
    try:
        for call in [in_thread(work, client, name) for client in clients for name in names]:
            call.result(10 * PATIENCE)
    finally:
        for client in clients:
            client.close()
    return figures


def by_tasks(url: str, names: list[str], kind: str, done: Done) -> Figures:
    figures = Figures(names)

    async def work(client: Any, name: str) -> None:
        while not done(figures):
            lock = KINDS[kind](client, name)
            began = time.monotonic()
            assert await lock.acquire(timeout=PATIENCE)
            figures.enter(name, getattr(lock, "fence", None), began)
            await asyncio.sleep(0)
            figures.leave(name)
            await lock.release()

    async def main() -> None:
        clients = [AsyncClient(url, patience=PATIENCE) for _ in range(CLIENTS)]
        try:
            async with asyncio.timeout(10 * PATIENCE), asyncio.TaskGroup() as group:
                for client in clients:
                    for name in names:
                        group.create_task(work(client, name))
        finally:
            for client in clients:
                await client.close()

    asyncio.run(main())
    return figures


FACES = {"threads": by_threads, "asyncio": by_tasks}


def check(shards: Shards, names: list[str], moves: Moves, figures: Figures) -> None:
    assert figures.most == 1
    shards.await_nothing_left(*names)
    assert not [key for key in shards.without_ttl() if b"lock-" in key]
    # Every client is sent on once for each move, and perhaps once more by a node that has not heard of it.
    assert shards.errors("MOVED") <= 2 * CLIENTS * (moves.count + 1)


@pytest.mark.parametrize("atomic", [False, True], ids=["key by key", "atomic"])
@pytest.mark.parametrize("face", list(FACES))
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.usual(
    "the other combinations run for longer in `make test-all`",
    {"face": "threads", "kind": "fenced"},
    {"face": "asyncio", "kind": "plain"},
)
def test_slots_move_while_locks_are_used(
    implementation: impl.Implementation, shards: Shards, names: list[str], face: str, kind: str, atomic: bool
) -> None:
    shards.reset()
    with Moves(shards, names, atomic) as moves:
        figures = FACES[face](shards.url, names, kind, lambda figures: figures.cycles > 1000 and moves.count > 10)
    check(shards, names, moves, figures)
    if kind in SURE:
        assert figures.longest < 0.9 * BACKSTOP_NS / 1e9


@pytest.mark.slow("100,000 cycles of each kind in all meet each moment of a move")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("atomic", [False, True], ids=["key by key", "atomic"])
@pytest.mark.parametrize("face", list(FACES))
@pytest.mark.parametrize("kind", list(KINDS))
def test_slots_move_for_long(
    implementation: impl.Implementation, shards: Shards, names: list[str], face: str, kind: str, atomic: bool
) -> None:
    shards.reset()
    with Moves(shards, names, atomic) as moves:
        figures = FACES[face](shards.url, names, kind, lambda figures: figures.cycles > 25_000)
    check(shards, names, moves, figures)


@pytest.mark.parametrize("atomic", [False, True], ids=["key by key", "atomic"])
@pytest.mark.parametrize("kind", ["plain", "fenced", "fair"])
@pytest.mark.usual("the other kinds run in `make test-all`", {"kind": "fenced"})
def test_calls_that_end_early_leave_nothing_while_slots_move(
    implementation: impl.Implementation, shards: Shards, names: list[str], kind: str, atomic: bool
) -> None:
    figures = Figures(names)
    # Not the generator that others share.
    chance = random.Random(41)

    async def work(client: Any, name: str, moves: Moves) -> None:
        while figures.cycles < 300 or moves.count < 10:
            lock = KINDS[kind](client, name)
            task = asyncio.create_task(lock.acquire(timeout=chance.choice([0.0005, 0.005, 0.05, PATIENCE])))
            with contextlib.suppress(asyncio.CancelledError, QuorumUnavailable):
                if chance.random() < 0.4:
                    await asyncio.sleep(chance.choice([0.0, 0.0003, 0.001, 0.004]))
                    task.cancel()
                if await task:
                    figures.enter(name, getattr(lock, "fence", None), time.monotonic())
                    await asyncio.sleep(0)
                    figures.leave(name)
                    await lock.release()

    async def main(moves: Moves) -> None:
        clients = [AsyncClient(shards.url, patience=PATIENCE) for _ in range(CLIENTS)]
        for client in clients:
            await client.connect()
        async with asyncio.timeout(10 * PATIENCE), asyncio.TaskGroup() as group:
            for client in clients:
                for name in 2 * names:
                    group.create_task(work(client, name, moves))
        # The last undo of each is on its way.
        await asyncio.to_thread(shards.await_nothing_left, *names)
        for client in clients:
            await client.close()

    with Moves(shards, names, atomic) as moves:
        asyncio.run(main(moves))
    assert figures.most == 1
    assert not [key for key in shards.without_ttl() if b"lock-" in key]


def test_a_move_costs_each_client_one_redirect_and_one_question(
    implementation: impl.Implementation, shards: Shards, names: list[str]
) -> None:
    name, others = names[0], [f"{{{names[0]}}}-{number}" for number in range(50)]
    with Client(shards.url) as client:
        for each in [name, *others]:
            with client.lock(each, ttl=LONG):
                pass
        shards.cluster.move(name, 1)
        shards.reset()
        for _ in range(3):
            for each in [name, *others]:
                with client.lock(each, ttl=LONG):
                    pass
        assert shards.errors("MOVED") == 1
        await_true(lambda: shards.calls("cluster|slots"))
        assert shards.calls("cluster|slots") == {"cmdstat_cluster|slots": 1}


def test_many_locks_at_once_ask_one_question(
    implementation: impl.Implementation, shards: Shards, names: list[str]
) -> None:
    async def main() -> None:
        async with AsyncClient(shards.url) as client:
            await client.connect()
            several = [f"{{{names[0]}}}-{number}" for number in range(200)]
            locks = [client.lock(each, ttl=LONG) for each in several]
            shards.cluster.move(names[0], 2)
            shards.reset()
            assert all(await asyncio.gather(*[lock.acquire() for lock in locks]))
            # All of them had left before the first answer came.
            assert 1 <= shards.errors("MOVED") <= 200
            await client.release_many(locks)
            await_true(lambda: shards.calls("cluster|slots"))
            assert sum(shards.calls("cluster|slots").values()) <= 2

    asyncio.run(main())
    shards.await_nothing_left(names[0])
