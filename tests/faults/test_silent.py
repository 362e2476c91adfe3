"""Row 42: a minority of stopped masters beside a quorum that answers, under contention and with long ttls."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, at_once, await_true
from support.proxy import Command, Proxy

from redlatch import AsyncClient, Guard, QuorumUnavailable, impl
from redlatch.drivers.connections import Connections
from redlatch.testing import embedded
from redlatch.votes.family_scripts import WRITE_RELEASE
from redlatch.votes.units import UNBOUNDED

pytestmark = pytest.mark.one_loop

# Version 0.1.0 waited for 5 % of the ttl in each round, which is longer than a test may take.
LONG = 600.0
GUARD = Guard(max_ttl=LONG)
# For each of the clients.
CYCLES = 20

KINDS = {
    "plain": lambda client, name: client.lock(name),
    "fenced": lambda client, name: client.lock(name, fence=True),
    "fair": lambda client, name: client.fair_lock(name),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "writer": lambda client, name: client.rw_lock(name).write(),
    "multi": lambda client, name: client.multi_lock([name, name + "-2"]),
}


@pytest.mark.usual(
    "the kinds differ in their commands, and the faces in who sends them",
    {"connect": "threads", "count": 5, "stopped": 2},
    {"connect": "asyncio", "count": 3, "stopped": 1},
    {"connect": "asyncio", "count": 5, "kind": "fair"},
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "stopped"), [(3, 1), (5, 1), (5, 2)])
def test_row_42_a_contended_lock_makes_progress_beside_stopped_masters(
    connect: Face, kind: Any, count: Any, stopped: Any, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(count)
    clients = [connect(masters.urls, ttl=LONG, guard=GUARD) for _ in range(3)]
    for client in clients:
        client.connect()
    for index in range(stopped):
        masters.pause(index)

    def work(client: Any) -> None:
        for _ in range(CYCLES):
            lock = KINDS[kind](client, name)
            assert lock.acquire(timeout=PATIENCE)
            lock.release()

    try:
        at_once([partial(work, client) for client in clients])
    finally:
        for index in range(stopped):
            masters.resume(index)


def test_row_42_a_reader_that_another_master_let_in_is_woken_when_no_writer_waits(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, no_backstop: None
) -> None:
    """The second master lets the reader in beside another one, and then sends it no push when it has left again.

    So the reader depends on the push of the first master, where a writer waits.
    """
    masters = fleet(3)
    client = connect(masters.urls, ttl=LONG, guard=GUARD)
    client.connect()
    keys = [f"{{{name}}}\0rw", f"{{{name}}}\0rw\0writer", f"{{{name}}}\0rw\0waits"]
    over = (time.time() + LONG) * 1000
    with ask(masters.urls[0]) as first, ask(masters.urls[1]) as second:
        for server, key in ((first, keys[2]), (second, keys[0])):
            server.zadd(key, {"another": over})
            server.pexpire(key, int(LONG * 1000))
        masters.pause(2)
        try:
            waiting = client.rw_lock(name).read().start("acquire")
            await_true(lambda: first.info("stats")["tracking_total_keys"] and second.zcard(keys[0]) == 1)
            first.eval(WRITE_RELEASE.text.decode(), 3, *keys, "", "another")
            assert waiting.result(PATIENCE)
        finally:
            masters.resume(2)


@pytest.mark.parametrize("kind", KINDS)
def test_row_42_a_short_timeout_is_kept_beside_a_stopped_quorum(
    connect: Face, kind: Any, fleet: Callable[..., embedded.Masters], name: str
) -> None:
    masters = fleet(3)
    client = connect(masters.urls, ttl=LONG, guard=GUARD)
    client.connect()
    masters.pause(0)
    masters.pause(1)
    lock = KINDS[kind](client, name)
    try:
        with pytest.raises(QuorumUnavailable) as caught:
            lock.acquire(timeout=0.1)
    finally:
        masters.resume(0)
        masters.resume(1)
    # Version 0.1.0 waited for 5 % of the ttl.
    assert caught.value.elapsed < PATIENCE / 10
    stopped = {url.removeprefix("redis://") for url in masters.urls[:2]}
    # The third master may be late.
    assert set(caught.value.causes) >= stopped


def test_a_far_master_still_votes_if_a_near_one_has_a_key_without_a_holder(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    """A process that was killed between two votes leaves such a key."""
    [far] = proxies(three[2:])

    def late(command: Command, reply: bytes) -> bytes:
        time.sleep(0.03)
        return reply

    far.spoil = late
    with ask(three[0]) as near:
        near.set(name, "nobody's", px=60_000)
    client = connect([*three[:2], far.url])
    assert client.lock(name).acquire(timeout=PATIENCE)


def test_a_task_that_was_sent_nothing_does_not_wait_for_a_silent_master(
    implementation: impl.Implementation,
    fleet: Callable[..., embedded.Masters],
    proxies: Callable[[list[str]], list[Proxy]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Found by an attack: no reply came that armed the timer for silent masters, so the attempt failed."""
    near = fleet(3).urls
    [silent] = proxies(near[2:])
    client = AsyncClient([*near[:2], silent.url])
    [connections] = [each for each in gc.get_referents(client._driver) if isinstance(each, Connections)]

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)

    timers: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def record(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
            timers.append(callback.__name__)
            return call_later(delay, callback, *args)

        async with client:
            silent.refusing = True
            silent.cut()
            # Two masters store the longer ttl.
            assert await client.lock(f"{name}-1", ttl=60).acquire(blocking=False)
            silent.refusing = False
            await until(lambda: all(master.voting for master in client.health().masters))
            # The pulses of this second go ahead of this attempt.
            assert await client.lock(f"{name}-2").acquire(blocking=False)
            await until(lambda: silent.quiet() and connections.fleet.silence.due_ns == UNBOUNDED)
            silent.replies.clear()
            monkeypatch.setattr(loop, "call_later", record)
            attempt = asyncio.create_task(client.lock(f"{name}-3", ttl=60).acquire(blocking=False))
            for _ in range(3):
                await asyncio.sleep(0)
            assert "_hurry_up" in timers
            assert await attempt
            silent.replies.set()

    asyncio.run(main())
