"""Row 73: a held lock gets back the vote of a master that has lost its key, with real servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import Face, Faced, ask, await_true, wins
from support.proxy import Proxy

from redlatch import Guard, LockLost, QuorumUnavailable
from redlatch.testing import Masters
from redlatch.votes.kinds import FENCED, READER

pytestmark = pytest.mark.one_loop

TTL = 20.0

KINDS: dict[str, Callable[[Faced, str], Any]] = {
    "plain": lambda client, name: client.lock(name, ttl=TTL),
    "fenced": lambda client, name: client.lock(name, ttl=TTL, fence=True),
    "fair": lambda client, name: client.fair_lock(name, ttl=TTL),
    "reader": lambda client, name: client.rw_lock(name, ttl=TTL).read(),
    "writer": lambda client, name: client.rw_lock(name, ttl=TTL).write(),
    "semaphore": lambda client, name: client.semaphore(name, 3, ttl=TTL),
    "multi": lambda client, name: client.multi_lock([name, name + "-other"], ttl=TTL),
}
WITHOUT_SCRIPTS = ("plain", "fenced", "multi")

# Clients without a guard take a master that has lost its keys for one that somebody has unlocked: it votes at once.
SHORT = Guard(max_ttl=2.0)


def content(url: str, name: str) -> dict[bytes, Any]:
    """Return what a master has of a lock; of sets with times the members alone."""
    with ask(url) as server:
        found: dict[bytes, Any] = {}
        for key in server.keys(f"*{name}*"):
            kind = server.type(key)
            if kind == b"zset":
                found[key] = set(server.zrange(key, 0, -1))
            else:
                found[key] = server.get(key) if kind == b"string" else server.hgetall(key)
        return found


def has(url: str, name: str, what: dict[bytes, Any]) -> bool:
    return content(url, name) == what


def forget(url: str, name: str) -> None:
    """Delete all keys of a lock on a master."""
    with ask(url) as server:
        server.delete(*server.keys(f"*{name}*"))


def acquired_on_all(client: Faced, lock: Any, urls: list[str], name: str) -> None:
    client.connect()
    await_true(lambda: all(each.voting for each in client.health().masters))
    assert lock.acquire()
    await_true(lambda: all(content(url, name) == content(urls[0], name) for url in urls))


@pytest.mark.usual(
    "the kinds differ in their commands, and the faces in who sends them",
    {"connect": "asyncio"},
    {"connect": "threads", "kind": "fenced"},
)
@pytest.mark.parametrize(
    ("kind", "scripts"), [*[(kind, "auto") for kind in KINDS], *[(kind, "watch") for kind in WITHOUT_SCRIPTS]]
)
def test_an_extension_sets_the_key_again_where_it_is_missing(
    connect: Face, fleet: Callable[..., Masters], name: str, kind: str, scripts: Any
) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None, scripts=scripts)
    lock = KINDS[kind](client, name)
    acquired_on_all(client, lock, urls, name)
    before = content(urls[2], name)
    for url in urls:
        forget(url, name)
        lock.extend(TTL / 2)
        await_true(partial(has, url, name, before))
    lock.release()
    # A fence counter stays.
    await_true(
        lambda: all(set(content(url, name)) <= {key for key in before if key.endswith(b"\0fence")} for url in urls)
    )


def test_the_locks_of_a_batch_and_the_holds_of_a_thread_are_repaired_too(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    client.connect()
    names = [f"{name}-{number}" for number in range(300)]
    locks = client.acquire_many(names, TTL)
    await_true(lambda: ask(urls[1]).exists(*names) == 300)
    ask(urls[1]).flushdb()
    client.extend_many(locks, TTL)
    await_true(lambda: ask(urls[1]).exists(*names) == 300)
    client.release_many(locks)
    await_true(lambda: not ask(urls[1]).exists(*names))


def test_a_repaired_fence_counter_keeps_the_order_of_the_numbers(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    lock = client.lock(name, ttl=TTL, fence=True)
    _, counter = FENCED.keys_of(name.encode())
    acquired_on_all(client, lock, urls, name)
    fence = lock.fence
    for url in urls[:2]:
        forget(url, name)
        lock.extend(TTL)
        await_true(partial(ask(url).get, counter))
        assert int(ask(url).get(counter)) >= fence
    lock.release()


def test_a_rival_keeps_the_vote_that_it_has(connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, urls, name)
    ask(urls[0]).set(name, "of a rival", px=60_000)
    lock.extend()
    time.sleep(0.1)
    assert ask(urls[0]).get(name) == b"of a rival"
    lock.release()
    assert ask(urls[0]).get(name) == b"of a rival"


def test_a_reader_does_not_come_back_beside_a_writer(connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    reader = client.rw_lock(name, ttl=TTL).read()
    acquired_on_all(client, reader, urls, name)
    forget(urls[0], name)
    writer = connect(urls[:1], guard=None).rw_lock(name, ttl=TTL).write()
    assert writer.acquire()
    having = content(urls[0], name)
    reader.extend()
    time.sleep(0.1)
    assert content(urls[0], name) == having
    writer.release()
    # A writer that waits there waits for this reader.
    readers, _, waiting = READER.keys_of(name.encode())
    with ask(urls[0]) as server:
        server.zadd(waiting, {"a writer": (time.time() + TTL) * 1000})
    reader.extend()
    await_true(lambda: reader.raw.token in server.zrange(readers, 0, -1))
    reader.release()


def test_without_a_quorum_no_key_comes_back(connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, urls, name)
    for url in urls[:2]:
        forget(url, name)
    with pytest.raises(LockLost):
        lock.extend()
    time.sleep(0.1)
    assert [content(url, name) for url in urls[:2]] == [{}, {}]
    assert wins(connect(urls[:1], guard=None).lock(name))


def test_a_vote_that_comes_late_is_followed_by_a_repair_unless_the_lock_was_released(
    connect: Face, fleet: Callable[..., Masters], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    urls = fleet(3).urls
    before = proxies(urls)
    client = connect([proxy.url for proxy in before], guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, urls, name)
    for released in (False, True):
        forget(urls[2], name)
        before[2].requests.clear()
        lock.extend()
        if released:
            lock.release()
        before[2].requests.set()
        if released:
            await_true(lambda: not ask(urls[1]).exists(name))
            await_true(lambda: before[2].quiet())
            assert not ask(urls[2]).exists(name)
        else:
            await_true(lambda: ask(urls[2]).exists(name))


def test_a_token_that_was_given_out_is_not_set_again(connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    """Another process may release it, and a repair could come after that."""
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, urls, name)
    lock.raw._hold.token_exposed = True
    forget(urls[0], name)
    lock.extend()
    time.sleep(0.1)
    assert not ask(urls[0]).exists(name)
    lock.release()


@pytest.mark.usual(
    "both faces share the renewal", {"connect": "threads", "way": "flush"}, {"connect": "asyncio", "way": "restart"}
)
@pytest.mark.parametrize("way", ["restart", "flush"])
def test_a_renewed_lock_outlives_that_all_masters_forget_it_one_after_another(
    connect: Face, fleet: Callable[..., Masters], name: str, way: str
) -> None:
    masters = fleet(3)
    client, rival = connect(masters.urls, ttl=1.0, guard=SHORT), connect(masters.urls, ttl=1.0, guard=SHORT)
    lock = client.lock(name, auto_renew=True)
    acquired_on_all(client, lock, masters.urls, name)
    for index in range(3):
        assert client.health().ready
        if way == "restart":
            masters.kill(index)
            masters.start(index)
        else:
            ask(masters.urls[index]).flushall()
        await_true(lambda: not client.health().ready)
        # A rival tries all the time.
        await_true(lambda: not wins(rival.lock(name)) and client.health().ready)
        assert lock.remaining() > 0
        assert all(ask(url).exists(name) for url in masters.urls)
    assert client.health().at_risk == 0
    lock.release()
    await_true(lambda: wins(rival.lock(name)))


def test_a_client_knows_which_of_its_locks_one_more_failure_would_end(
    connect: Face, fleet: Callable[..., Masters], name: str
) -> None:
    urls = fleet(3).urls
    client = connect(urls, guard=None)
    locks = [client.lock(f"{name}-{number}", ttl=TTL) for number in range(3)]
    for number, lock in enumerate(locks):
        acquired_on_all(client, lock, urls, f"{name}-{number}")
    assert (client.health().ready, client.health().at_risk) == (True, 0)
    for lock in locks[:2]:
        ask(urls[0]).set(lock.name, "of a rival", px=60_000)
        lock.extend()
        # The last vote may come after the others.
        await_true(lambda: client.lock(f"{name}-another").locked() is False)
    await_true(lambda: client.health().at_risk == 2)
    health = client.health()
    assert (health.available, health.ready, health.as_dict()["at_risk"]) == (True, False, 2)
    forget(urls[0], f"{name}-0")
    # The key is set again, and the next extension finds it.
    locks[0].extend()
    await_true(lambda: ask(urls[0]).get(f"{name}-0") != b"of a rival" and ask(urls[0]).exists(f"{name}-0"))
    locks[0].extend()
    await_true(lambda: client.health().at_risk == 1)
    locks[1].release()
    assert client.health().at_risk == 0


def test_a_lock_that_a_new_connection_has_not_confirmed_is_at_risk(
    connect: Face, fleet: Callable[..., Masters], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    urls = fleet(3).urls
    before = proxies(urls)
    client = connect([proxy.url for proxy in before], guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, urls, name)
    before[0].cut()
    # With threads, what a client knows is as fresh as its last call.
    await_true(lambda: client.lock(f"{name}-another").locked() is False and client.health().at_risk)
    await_true(lambda: client.health().masters[0].voting)
    assert client.health().at_risk == 1
    lock.extend()
    await_true(lambda: client.health().at_risk == 0)


@pytest.mark.parametrize("masters", [1, 2])
def test_no_lock_is_at_risk_where_each_failure_ends_all(
    connect: Face, fleet: Callable[..., Masters], name: str, masters: int
) -> None:
    client = connect(fleet(masters).urls, guard=None)
    lock = client.lock(name, ttl=TTL)
    assert lock.acquire()
    await_true(lambda: client.health().ready)
    assert client.health().at_risk == 0


def test_a_lost_quorum_repairs_nothing(connect: Face, fleet: Callable[..., Masters], name: str) -> None:
    masters = fleet(3)
    client = connect(masters.urls, guard=None)
    lock = client.lock(name, ttl=TTL)
    acquired_on_all(client, lock, masters.urls, name)
    masters.kill(0)
    masters.kill(1)
    forget(masters.urls[2], name)
    with pytest.raises(QuorumUnavailable):
        lock.extend()
    assert not ask(masters.urls[2]).exists(name)
