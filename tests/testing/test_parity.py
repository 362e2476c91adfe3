"""A client in memory does and says what a real one does: the same scenes, on memory and on real masters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from redlatch import impl
from redlatch.testing import Masters, clear, masters
from testing.both import FACES, Both, done, enter, leave, outcome


class World:
    """Two clients of the same masters, and what happens to these masters."""

    def __init__(self, make: Callable[..., Any], lose: Callable[[Any, str], None]) -> None:
        self.make = make
        self.client, self.other = make(owner="web:1"), make(owner="web:2")
        self.lose = lose

    async def close(self) -> None:
        await done(self.client.close())
        await done(self.other.close())


async def plain(world: World) -> list[str]:
    """One lock: won, taken, released, and every call that comes at the wrong time."""
    client, other = world.client, world.other
    lock, same, theirs = client.lock("a"), client.lock("a"), other.lock("a")
    return [
        await outcome(lock.release),
        await outcome(lock.extend),
        await outcome(lock.acquire),
        await outcome(lock.acquire),
        await outcome(lambda: same.acquire(blocking=False)),
        await outcome(lambda: theirs.acquire(blocking=False)),
        await outcome(lambda: theirs.acquire(timeout=0.2)),
        await outcome(lambda: enter(client.lock("a", timeout=0.1))),
        await outcome(lambda: enter(other.lock("a", timeout=0.1))),
        await outcome(lambda: enter(other.lock("a", timeout=0))),
        await outcome(lock.owned),
        await outcome(theirs.locked),
        (await done(theirs.holder())).owner,
        await outcome(lambda: lock.extend(5)),
        await outcome(lambda: lock.extend(-1)),
        await outcome(lambda: client.lock("")),
        await outcome(lambda: client.lock("b", ttl=1000)),
        await outcome(lambda: client.lock("b", nonsense=1)),
        await outcome(lock.release),
        await outcome(lambda: lock.locked()),
        await outcome(theirs.holder),
        repr(lock.token),
    ]


async def lost(world: World) -> list[str]:
    """A lock whose key is gone."""
    found = []
    for call in ("extend", "release"):
        lock = world.client.lock("gone")
        await done(lock.acquire())
        world.lose(lock, "gone")
        found += [await outcome(lock.owned), await outcome(getattr(lock, call)), await outcome(lock.check)]
    return found


async def kinds(world: World) -> list[str]:
    """The locks of the other kinds, and the batches."""
    client, other = world.client, world.other
    fenced, again = client.lock("f", fence=True), other.lock("f", fence=True)
    await done(fenced.acquire())
    first = fenced.fence
    await done(fenced.release())
    await done(again.acquire())
    await done(again.release())
    fair, behind = client.fair_lock("fair"), other.fair_lock("fair")
    found = [str(again.fence), str(first > 0), await outcome(fair.acquire)]
    found += [await outcome(lambda: behind.acquire(timeout=0.2)), await outcome(fair.release)]
    documents, theirs = client.rw_lock("doc"), other.rw_lock("doc")
    reader, writer = documents.read(), theirs.write()
    found += [await outcome(reader.acquire), await outcome(lambda: writer.acquire(timeout=0.2))]
    found += [await outcome(reader.holder), await outcome(reader.release), await outcome(writer.acquire)]
    found += [await outcome(lambda: theirs.read().acquire(blocking=False)), await outcome(writer.release)]
    places = [client.semaphore("s", 2), other.semaphore("s", 2), other.semaphore("s", 2)]
    found += [await outcome(partial(place.acquire, blocking=False)) for place in places]
    found += [await outcome(places[0].locked), await outcome(places[0].release), await outcome(places[2].locked)]
    calls = client.rate_limit("calls", 2, 30.0)
    found += [await outcome(partial(each.acquire, blocking=False)) for each in (calls, calls, calls)]
    again = client.rlock("r")
    found += [await outcome(again.acquire), await outcome(again.acquire), await outcome(again.release)]
    found += [await outcome(lambda: other.rlock("r").acquire(blocking=False)), await outcome(again.release)]
    found += [await outcome(again.release)]
    several = client.multi_lock(["m1", "m2"])
    found += [await outcome(several.acquire), await outcome(lambda: enter(other.multi_lock(["m2", "m3"], timeout=0)))]
    found += [await outcome(several.release)]
    batch = await done(client.acquire_many(["b1", "b2", "b1"]))
    found += [str([lock is not None for lock in batch]), await outcome(lambda: other.acquire_many(["b2"]))]
    found += [await outcome(lambda: client.extend_many(batch)), await outcome(lambda: client.release_many(batch))]
    return found


async def meetings(world: World) -> list[str]:
    """Latches and conditions."""
    gate, theirs = world.client.latch("gate", 2), world.other.latch("gate", 2)
    found = [await outcome(lambda: gate.wait(timeout=0.1)), await outcome(gate.count_down)]
    found += [await outcome(theirs.count_down), await outcome(lambda: gate.wait(timeout=5))]
    lock = world.client.lock("talk")
    await enter(lock)
    condition = lock.condition()
    found += [await outcome(lambda: condition.wait(timeout=0.1)), await outcome(condition.notify_all)]
    await leave(lock)
    return [*found, await outcome(condition.notify)]


async def closed(world: World) -> list[str]:
    """A client that was closed with locks, and one that was not."""
    client = world.make()
    lock, waiting = client.lock("kept"), world.other.lock("kept")
    await done(lock.acquire())
    found = [await outcome(lambda: client.close(release=True)), await outcome(lock.check), await outcome(lock.release)]
    found += [
        await outcome(lambda: waiting.acquire(blocking=False)),
        await outcome(lock.acquire),
        client._driver.status.state,
    ]
    return found


Scene = Callable[[World], Coroutine[Any, Any, list[str]]]

SCENES: tuple[Scene, ...] = (plain, lost, kinds, meetings, closed)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Masters]:
    """Three real masters."""
    running = masters(3)
    with running:
        yield running


def on_servers(both: Both, urls: list[str]) -> World:
    def lose(_: Any, key: str) -> None:
        for url in urls:
            with redis.Redis.from_url(url) as server:
                server.delete(key)

    return World(partial(both.real, urls), lose)


def in_memory(both: Both) -> World:
    first = both.memory()
    return World(partial(both.memory, first.memory), lambda lock, _: first.lose(lock))


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_has_the_same_outcomes_in_memory(both: Both, scene: Scene, fleet: Masters) -> None:
    async def play(make: Callable[[], World]) -> list[str]:
        world = make()
        try:
            return await scene(world)
        finally:
            await world.close()

    expected = both.run(play(partial(on_servers, both, fleet.urls)))
    clear(fleet.urls)
    assert both.run(play(partial(in_memory, both))) == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize("face", FACES)
def test_missing_masters_are_reported_alike(face: str, implementation: impl.Implementation) -> None:
    async def play(client: Any, down: contextlib.AbstractContextManager[None]) -> list[str]:
        lock = client.lock("held")
        await done(lock.acquire())
        with down:
            found = [
                await outcome(lambda: client.lock("a").acquire()),
                await outcome(lambda: client.acquire_many(["b", "c"])),
                await outcome(lock.extend),
                await outcome(lock.owned),
                await outcome(lock.release),
                str(client.health().available),
            ]
        await done(client.close())
        return found

    @contextlib.contextmanager
    def killed(running: Masters) -> Iterator[None]:
        running.kill(0)
        running.kill(1)
        yield

    both, running = Both(face), masters(3)
    memory = both.memory()
    with running as urls:

        async def on_real() -> list[str]:
            client = both.real(urls)
            await done(client.connect())
            return await play(client, killed(running))

        expected = both.run(on_real())

    async def on_memory() -> list[str]:
        return await play(memory, memory.break_quorum())

    assert both.run(on_memory()) == expected
    assert expected[0].startswith("QuorumUnavailable")
