"""What a call costs on a cluster: as many commands as on one server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import Face, Faced, ask
from support.shards import Shards

from redlatch.testing import embedded

LONG = 20.0

# Of connections, of the guard, and of this test. A script sends PEXPIRE if a millisecond has passed.
NOT_OF_LOCKS = {
    "info",
    "pexpire",
    "config|resetstat",
    "config|get",
    "hello",
    "auth",
    "ping",
    "keys",
    "pttl",
    "asking",
    "time",
    "cluster|slots",
    "cluster|nodes",
    "cluster|info",
    "client|setname",
    "client|setinfo",
    "client|tracking",
    "script|load",
}


def cycle(make: Callable[[Faced, str], Faced]) -> Callable[[Faced, str], None]:
    def call(client: Faced, name: str) -> None:
        lock = make(client, name)
        assert lock.acquire()
        lock.release()

    return call


def refused(make: Callable[[Faced, str], Faced]) -> Callable[[Faced, str], None]:
    def call(client: Faced, name: str) -> None:
        lock = make(client, name)
        assert lock.acquire()
        assert not make(client, name).acquire(blocking=False)
        lock.release()

    return call


def plain(client: Faced, name: str) -> Faced:
    return client.lock(name, ttl=LONG)


def extended(client: Faced, name: str) -> None:
    lock = plain(client, name)
    assert lock.acquire()
    lock.extend(LONG)
    assert lock.owned() and lock.locked()
    assert lock.holder() is not None
    lock.release()


def batch(client: Faced, name: str) -> None:
    locks = client.acquire_many([f"{{{name}}}-{number}" for number in range(20)], ttl=LONG)
    assert all(client.extend_many(locks, LONG))
    assert all(client.release_many(locks))


def several(client: Faced, name: str) -> None:
    lock = client.multi_lock([f"{{{name}}}-{number}" for number in range(3)], ttl=LONG)
    assert lock.acquire()
    lock.release()


def latch(client: Faced, name: str) -> None:
    gate = client.latch(name, 2, ttl=LONG)
    gate.count_down()
    gate.count_down()
    assert gate.wait()


CALLS: dict[str, Callable[[Faced, str], None]] = {
    "plain": cycle(plain),
    "fenced": cycle(lambda client, name: client.lock(name, ttl=LONG, fence=True)),
    "fair": cycle(lambda client, name: client.lock(name, ttl=LONG, fair=True)),
    "read": cycle(lambda client, name: client.rw_lock(name, ttl=LONG).read()),
    "write": cycle(lambda client, name: client.rw_lock(name, ttl=LONG).write()),
    "semaphore": cycle(lambda client, name: client.semaphore(name, 2, ttl=LONG)),
    "refused": refused(plain),
    "extended": extended,
    "batch": batch,
    "multi-lock": several,
    "latch": latch,
}

TIMES = 5


def counted(server_calls: dict[str, int]) -> dict[str, int]:
    calls = {name.removeprefix("cmdstat_"): number for name, number in server_calls.items()}
    return {name: number for name, number in sorted(calls.items()) if name not in NOT_OF_LOCKS}


@pytest.mark.parametrize("call", list(CALLS))
def test_a_call_costs_the_same_commands_as_on_one_server(
    connect: Face, shards: Shards, fleet: Callable[..., embedded.Masters], names: list[str], call: str
) -> None:
    [url] = fleet(1).urls
    figures: list[dict[str, int]] = []
    places: dict[str, Callable[[], dict[str, int]]] = {url: partial(stats, url), shards.url: shards.calls}
    for where, read in places.items():
        client = connect(where)
        # The first calls send the text of each script, and the guard's pulses.
        for name in names:
            CALLS[call](client, name)
        before: Any = counted(read())
        for _ in range(TIMES):
            for name in names:
                CALLS[call](client, name)
        client.close()
        after = counted(read())
        figures.append({name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)})
    assert figures[1] == figures[0]


def stats(url: str) -> dict[str, int]:
    with ask(url) as server:
        return {name: numbers["calls"] for name, numbers in server.info("commandstats").items()}
