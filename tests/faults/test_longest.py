"""Clients that give different `max_ttl`, with real servers (G5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.faces import Face, await_true, wins
from support.selection import on_one_face

from redlatch import Guard, QuorumUnavailable
from redlatch.testing import Masters

LARGER = Guard(max_ttl=300.0)


def test_a_larger_max_ttl_works_while_clients_with_a_smaller_one_go_on(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(3)
    before = connect(masters.urls)
    held = before.lock(f"{name}-held", ttl=50.0)
    assert held.acquire()
    after = connect(masters.urls, guard=LARGER)
    lock = after.lock(name, ttl=120.0)
    assert lock.acquire()
    assert lock.remaining() > 100.0
    held.extend()
    assert held.remaining() > 40.0
    assert not before.lock(name).acquire(timeout=0)
    held.release()
    lock.release()
    assert wins(before.lock(name, ttl=60.0))


@on_one_face("asyncio")
def test_a_longer_ttl_waits_until_all_masters_were_reached(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(3)
    before = connect(masters.urls, guard=Guard(max_ttl=1.0), ttl=0.5)
    assert wins(before.lock(f"{name}-before"))
    masters.kill(2)
    after = connect(masters.urls, guard=Guard(max_ttl=5.0), ttl=0.5)
    assert wins(after.lock(f"{name}-shorter", ttl=1.0))
    with pytest.raises(QuorumUnavailable, match=r"give max_ttl=1: a ttl of 3 s may be used as soon as this client"):
        after.lock(name, ttl=3.0).acquire(timeout=0)
    masters.start(2)
    await_true(lambda: after.health().ready)
    assert wins(after.lock(name, ttl=3.0))


def test_a_client_that_starts_while_a_master_is_down_uses_the_ttls_as_before(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(3)
    before = connect(masters.urls, guard=LARGER)
    assert wins(before.lock(f"{name}-before", ttl=120.0))
    masters.kill(0)
    assert wins(connect(masters.urls, guard=LARGER).lock(name, ttl=120.0))
