"""Rows 60 and 61: a release that is sent again, and a server that never had the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, await_true, wins
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import Guard, LockLost, NotOwned, QuorumUnavailable
from redlatch.testing import Masters

pytestmark = pytest.mark.one_loop

GUARDS = pytest.mark.parametrize("guarded", [True, False], ids=["guard", "no guard"])
KINDS = {
    "plain": lambda client, name: client.lock(name, ttl=60.0),
    "fence": lambda client, name: client.lock(name, ttl=60.0, fence=True),
    "fair": lambda client, name: client.fair_lock(name, ttl=60.0),
    "semaphore": lambda client, name: client.semaphore(name, 1, ttl=60.0),
    "read": lambda client, name: client.rw_lock(name, ttl=60.0).read(),
    "write": lambda client, name: client.rw_lock(name, ttl=60.0).write(),
}


def options(guarded: bool) -> dict[str, Any]:
    return {} if guarded else {"guard": None}


def restart(masters: Masters, *indexes: int) -> None:
    """Kill masters, and start them without their keys."""
    for index in indexes:
        masters.kill(index)
    for index in indexes:
        masters.start(index)


def release_soon(lock: Any) -> None:
    """Release a lock, again while the master is not connected."""

    def released() -> bool:
        try:
            lock.release()
        except QuorumUnavailable:
            return False
        return True

    await_true(released)


def refuse(relay: Proxy) -> None:
    relay.refusing = True
    relay.cut()


def losses(client: Any) -> dict[str, int]:
    return dict(client.stats().lost)


@GUARDS
@pytest.mark.parametrize("kind", KINDS)
def test_row_60_a_release_after_the_master_came_back_empty_is_a_loss(
    kind: str, guarded: bool, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(1)
    client, rival = connect(masters.urls, **options(guarded)), connect(masters.urls, **options(guarded))
    lock = KINDS[kind](client, name)
    assert lock.acquire()
    restart(masters, 0)
    await_true(lambda: wins(rival.lock(name)))
    with pytest.raises(LockLost):
        release_soon(lock)
    assert losses(client) == {"forgotten": 1}
    assert not wins(client.lock(name))


@GUARDS
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "without waiting"])
def test_row_60_the_end_of_a_with_reports_the_loss_once(
    waits: bool,
    guarded: bool,
    connect: Face,
    fleet: Callable[..., Masters],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    masters = fleet(1)
    client = connect(masters.urls, wait_release=waits, **options(guarded))
    rival = connect(masters.urls, **options(guarded))
    lock = client.lock(name, ttl=60.0)
    assert lock.acquire()
    restart(masters, 0)
    await_true(lambda: wins(rival.lock(name)))
    leave = lock.start("__exit__" if connect.name == "threads" else "__aexit__", None, None, None)
    if waits:
        with pytest.raises((LockLost, QuorumUnavailable)) as caught:
            leave.result(PATIENCE)
        if isinstance(caught.value, QuorumUnavailable):
            with pytest.raises(LockLost):
                release_soon(lock)
    else:
        leave.result(PATIENCE)
        # Another thread counts the loss and then logs it.
        said = f"lock '{name}' was lost: a quorum had forgotten it before it was released"
        await_true(lambda: said in caplog.text)
    assert losses(client) == {"forgotten": 1}


@on_one_face("threads")
@GUARDS
def test_row_60_two_of_three_masters_that_came_back_empty_are_a_loss(
    guarded: bool, connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    masters = fleet(3)
    more: Any = {"guard": Guard(max_ttl=2.0)} if guarded else {"guard": None}
    client = connect(masters.urls, ttl=2.0, **more)
    lock = client.lock(name)
    assert lock.acquire()
    for index in (0, 1):
        masters.kill(index)
    with pytest.raises(QuorumUnavailable):
        lock.release()
    for index in (0, 1):
        masters.start(index)

    def all_vote() -> bool:
        # A call makes the client look.
        with contextlib.suppress(QuorumUnavailable):
            client.lock(name + " another").locked()
        return all(master.voting for master in client.health().masters)

    # Under a guard, the masters are kept out at first.
    await_true(all_vote)
    with pytest.raises(LockLost, match="a quorum has forgotten it"):
        lock.release()
    assert losses(client) == {"forgotten": 1}


def test_row_60_two_of_three_masters_that_were_only_out_of_reach_are_no_loss(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    relays = proxies(three)
    lock = connect([relay.url for relay in relays]).lock(name, ttl=60.0)
    assert lock.acquire()
    for relay in relays[:2]:
        refuse(relay)
    with pytest.raises(QuorumUnavailable):
        lock.release()
    for relay in relays[:2]:
        relay.refusing = False
    release_soon(lock)
    with pytest.raises(NotOwned):
        lock.release()


def test_row_60_a_release_whose_answer_is_lost_is_no_loss_if_the_master_remembers(
    connect: Face, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    """The first copy deletes the key, and the master says "no" to the second one."""
    [relay] = proxies([url])
    client = connect([relay.url])
    lock = client.lock(name, ttl=60.0)
    assert lock.acquire()
    relay.replies.clear()
    future = lock.start("release")
    await_true(lambda: ask(url).get(name) is None)
    relay.cut()
    relay.replies.set()
    future.result(PATIENCE)
    assert not losses(client)


def test_row_60_a_key_that_was_deleted_while_the_master_was_out_of_reach_is_a_loss(
    connect: Face, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    """Nothing of the release had left this process before."""
    [relay] = proxies([url])
    client = connect([relay.url])
    lock = client.lock(name, ttl=60.0)
    assert lock.acquire()
    refuse(relay)
    await_true(lambda: not wins(client.lock(name + " another")) and not client.health().masters[0].voting)
    with pytest.raises(QuorumUnavailable):
        lock.release()
    ask(url).delete(name)
    relay.refusing = False
    await_true(lambda: client.health().masters[0].voting)
    with pytest.raises(LockLost):
        lock.release()


def hang(relay: Proxy) -> None:
    """Cut the connections, and let the next handshake wait."""
    relay.requests.clear()
    relay.cut()


def stall(relay: Proxy) -> None:
    relay.requests.clear()


def heal(relay: Proxy) -> None:
    relay.refusing = False
    relay.requests.set()


@on_one_face("asyncio")
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "without waiting"])
@pytest.mark.parametrize("outage", [refuse, hang, stall])
def test_row_60_a_key_that_expired_before_its_release_arrived_is_no_loss(
    outage: Callable[[Proxy], None],
    waits: bool,
    connect: Face,
    url: str,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
) -> None:
    [relay] = proxies([url])
    client = connect([relay.url])
    lock = client.lock(name, ttl=1.0)
    assert lock.acquire()
    outage(relay)
    if waits:
        with pytest.raises(QuorumUnavailable):
            lock.release()
    else:
        lock.release(wait=False)
    await_true(lambda: not ask(url).exists(name))
    heal(relay)
    if waits:
        release_soon(lock)
    else:
        # Its answer has come after that of the release.
        await_true(lambda: wins(client.lock(name)))
    assert not losses(client)


@pytest.mark.parametrize("outage", [hang, stall])
def test_row_60_a_release_that_nobody_waits_for_any_more_when_it_arrives_shows_the_loss(
    outage: Callable[[Proxy], None],
    connect: Face,
    url: str,
    proxies: Callable[[list[str]], list[Proxy]],
    name: str,
) -> None:
    [relay] = proxies([url])
    client = connect([relay.url])
    lock = client.lock(name, ttl=60.0)
    assert lock.acquire()
    outage(relay)
    await_true(lambda: not wins(client.lock(name + " another")) and (outage is stall or not voting(client)))
    with pytest.raises(QuorumUnavailable):
        lock.release()
    ask(url).delete(name)
    heal(relay)
    with pytest.raises(LockLost):
        release_soon(lock)


def voting(client: Any) -> bool:
    return bool(client.health().masters[0].voting)
