"""One master that forgets (R1 to R3, FE1): it is used on at once, and each holder learns that its lock is in doubt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import Face, ask, await_true, wins
from support.selection import on_one_face

from redlatch import Guard, LockLost
from redlatch.testing import Masters

pytestmark = pytest.mark.one_loop

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
MARKER = b"\0guard"


def flush(masters: Masters) -> None:
    ask(masters.urls[0]).flushall()


def restart(masters: Masters) -> None:
    masters.kill(0)
    masters.start(0)


FORGETS = [flush, restart]


@pytest.mark.parametrize("forget", FORGETS)
def test_the_next_acquire_succeeds(forget: Any, connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    masters = fleet(1)
    client, other = connect(masters.urls), connect(masters.urls)
    client.connect()
    other.connect()
    forget(masters)
    for each in (client, other):
        lock = each.lock(name)
        # An asyncio client may have tried to connect while the master was down. It tries again within a second.
        await_true(partial(wins, lock))
        assert lock.remaining() > 0
        lock.release()


@pytest.mark.parametrize("forget", FORGETS)
def test_a_lock_of_a_master_that_forgot_it_is_in_doubt_and_lost(
    forget: Any, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    owner, rival = connect(masters.urls), connect(masters.urls)
    lock = owner.lock(name)
    assert lock.acquire()
    forget(masters)
    await_true(lambda: wins(rival.lock(name)))
    # The owner uses its connection, and learns of it.
    await_true(lambda: wins(owner.lock(name + " another")))
    assert lock.remaining() == 0
    with pytest.raises(LockLost, match="may have forgotten it"):
        lock.check()
    with pytest.raises(LockLost, match="forgotten"):
        lock.extend()


def test_a_lock_that_a_restarted_master_has_kept_is_held_on_after_an_extension(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1, config=ALWAYS)
    owner, rival = connect(masters.urls), connect(masters.urls)
    lock = owner.lock(name)
    assert lock.acquire()
    restart(masters)
    await_true(lambda: wins(owner.lock(name + " another")))
    assert lock.remaining() == 0
    assert not wins(rival.lock(name))
    lock.extend()
    assert lock.remaining() > 0
    lock.release()
    assert wins(rival.lock(name))


@pytest.mark.parametrize("forget", FORGETS)
@pytest.mark.parametrize("how", ["auto_renew", "on_lost"])
def test_a_holder_with_a_renewal_or_a_callback_is_told_by_itself(
    how: str, forget: Any, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    told: list[str] = []
    lock = connect(masters.urls).lock(
        name, ttl=20.0, auto_renew=how == "auto_renew", on_lost=lambda lock, why: told.append(why)
    )
    assert lock.acquire()
    forget(masters)
    await_true(lambda: told)
    assert lock.remaining() == 0
    assert ask(masters.urls[0]).get(name) is None


@pytest.mark.parametrize("how", ["auto_renew", "on_lost"])
def test_a_lock_that_the_master_has_kept_is_verified_by_itself(
    how: str, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1, config=ALWAYS)
    told: list[str] = []
    lock = connect(masters.urls).lock(
        name, ttl=60.0, auto_renew=how == "auto_renew", on_lost=lambda lock, why: told.append(why)
    )
    assert lock.acquire()
    before = ask(masters.urls[0]).get(MARKER)
    restart(masters)
    await_true(lambda: ask(masters.urls[0]).get(MARKER) not in (before, None))
    await_true(lambda: lock.remaining() > 0)
    assert not told
    lock.release()


@pytest.mark.parametrize("forget", FORGETS)
def test_fences_grow_although_the_master_has_forgotten_them(
    forget: Any, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    fences = []
    for _ in range(3):
        # Each time a client that knows no earlier number.
        lock = connect(masters.urls).lock(name, fence=True)
        assert lock.acquire()
        fences.append(lock.fence)
        forget(masters)
    assert fences == sorted(set(fences))


def test_fences_grow_although_their_counter_was_deleted(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    """Found by an attack: the second client began where the first one had, soon after the masters were new."""
    [url] = fleet(1).urls
    first, second = [connect([url]).lock(name, fence=True) for _ in range(2)]
    fences = []
    for lock in (first, first, first, second):
        if lock is second:
            for key in ask(url).scan_iter(f"*{name}*"):
                ask(url).delete(key)
        assert lock.acquire()
        fences.append(lock.fence)
        lock.release()
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("fair", [False, True])
def test_a_waiter_behind_a_holder_of_another_client_wins_after_a_flush(
    fair: bool, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    owner, waiter = connect(masters.urls), connect(masters.urls)
    waiter.connect()
    assert owner.lock(name, ttl=50.0, fair=fair).acquire()
    asked = attempts(masters)
    waiting = waiter.lock(name, fair=fair).start("acquire")
    await_true(lambda: attempts(masters) > asked)
    flush(masters)
    assert waiting.result(20)


def attempts(masters: Masters) -> int:
    """Return how many commands that may acquire the master has run."""
    stats = ask(masters.urls[0]).info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("set", "eval", "evalsha"))


@on_one_face("asyncio")
def test_a_replica_that_was_promoted_is_used_on_and_what_it_has_is_held_on(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(2)
    old, new = masters.urls
    port = int(old.rpartition(":")[2])
    client = connect([new])
    lock = client.lock(name)
    assert lock.acquire()
    # The server takes over the keys of another one, which does not know the lock, and is promoted again.
    ask(new).replicaof("127.0.0.1", port)
    await_true(lambda: ask(new).info("replication").get("master_link_status") == "up")
    ask(new).replicaof("NO", "ONE")
    await_true(lambda: wins(client.lock(name + " another")))
    assert lock.remaining() == 0
    with pytest.raises(LockLost):
        lock.extend()


@pytest.mark.parametrize("fair", [False, True])
def test_the_client_that_had_the_lock_may_have_it_again(
    fair: bool, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    """As after a flush between two tests, of which the first one has released nothing."""
    masters = fleet(1)
    client = connect(masters.urls)
    for _ in range(3):
        left = client.lock(name, ttl=50.0, fair=fair)
        await_true(partial(wins, left))
        flush(masters)
        # The client learns of the flush.
        await_true(lambda: wins(client.lock(name + " another", ttl=1.0)))
    assert left.remaining() == 0


@pytest.mark.parametrize("fair", [False, True])
def test_a_waiter_behind_a_holder_of_its_own_client_wins_after_a_flush(
    fair: bool, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    client = connect(masters.urls)
    left = client.lock(name, ttl=50.0, fair=fair)
    assert left.acquire()
    waiting = [client.lock(name, ttl=1.0, fair=fair).start("acquire") for _ in range(2)]
    flush(masters)
    assert [each.result(20) for each in waiting] == [True, True]
    with pytest.raises(LockLost):
        left.extend()


def test_a_waiter_behind_a_holder_of_its_own_client_waits_if_the_master_has_kept_the_lock(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1, config=ALWAYS)
    client = connect(masters.urls)
    left = client.lock(name, ttl=50.0)
    assert left.acquire()
    restart(masters)
    await_true(lambda: wins(client.lock(name + " another", ttl=1.0)))
    waiting = client.lock(name).start("acquire")
    left.extend()
    assert left.remaining() > 0
    assert not wins(client.lock(name))
    assert not waiting.done()
    left.release()
    assert waiting.result(20)


def test_with_strict_nobody_has_a_lock_for_the_longest_ttl(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    client = connect(masters.urls, guard=Guard(strict=True))
    client.connect()
    flush(masters)
    assert not wins(client.lock(name))
    assert not wins(client.lock(name))
