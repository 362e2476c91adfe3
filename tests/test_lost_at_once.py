"""Losses that are reported when they happen: the masters push that the key of a held lock is gone (`key_watch`)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, ask, await_true
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import AsyncClient, LockLost, impl
from redlatch.loss import KEPT_OUT, KEY_GONE
from redlatch.quorum import key_watch
from redlatch.testing import embedded

pytestmark = pytest.mark.one_loop

# A lock that would report its loss too late for each of these tests by itself.
LONG = 60.0

Proxies = Callable[[list[str]], list[Proxy]]


def delete(urls: list[str], name: str) -> None:
    for url in urls:
        with ask(url) as master:
            master.delete(name)


def await_keys(urls: list[str], name: str) -> None:
    """Wait for the SET of each master, because an acquire waits for a quorum only.

    A SET after the deletion of the other keys would leave a quorum with the key.
    """
    for url in urls:
        with ask(url) as master:
            await_true(partial(master.keys, f"*{name}*"))


def questions(proxy: Proxy, name: str) -> int:
    """Count the questions of holders whether the key still has their token."""
    note = (b"CLIENT", b"CACHING", b"YES")
    commands = list(proxy.commands)
    asked = itertools.pairwise(commands)
    return sum(first == note and second[0] == b"EVALSHA" and name.encode() in second for first, second in asked)


def await_watch(proxies: list[Proxy], name: str, number: int = 1) -> None:
    """Wait until each master has answered the question about a key for the given time."""
    await_true(lambda: all(questions(proxy, name) >= number and proxy.quiet() for proxy in proxies))


class Told:
    """The reasons of losses, as `on_lost` gets them."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, lock: object, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def told() -> Told:
    return Told()


def watched(connect: Face, before: list[Proxy], name: str, told: Told, **options: Any) -> Any:
    """Acquire a lock through proxies, and return it as soon as its key is watched."""
    lock = connect([proxy.url for proxy in before], **options).lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    await_watch(before, name)
    return lock


# --- keys that are gone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "plain"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "watched"])
def test_a_lock_whose_key_a_majority_deletes_is_reported_at_once(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told, renewed: bool, at_once: bool
) -> None:
    before = proxies(three)
    lock = connect([proxy.url for proxy in before]).lock(name, ttl=LONG, on_lost=told, auto_renew=renewed)
    assert lock.acquire()
    if not at_once:
        await_watch(before, name)
    lost = lock.lost
    await_keys(three, name)
    delete(three[:2], name)
    await_true(lost.is_set)
    await_true(lambda: told.reasons == [KEY_GONE])
    with pytest.raises(LockLost, match=KEY_GONE):
        lock.check()
    with pytest.raises(LockLost):
        lock.release()
    assert told.reasons == [KEY_GONE]


@pytest.mark.parametrize("kind", ["fence", "fair", "write"])
def test_each_kind_with_one_holder_is_watched(
    connect: Face, three: list[str], name: str, told: Told, kind: str
) -> None:
    client = connect(three)
    options = {"ttl": LONG, "on_lost": told}
    if kind == "write":
        lock = client.rw_lock(name, **options).write()
    else:
        lock = client.lock(name, **options, **{kind: True})
    assert lock.acquire()
    await_keys(three, name)
    for url in three:
        with ask(url) as master:
            master.delete(*master.keys(f"*{name}*"))
    await_true(lambda: told.reasons == [KEY_GONE])


def test_a_single_master_is_a_majority(connect: Face, url: str, name: str, told: Told) -> None:
    lock = connect([url]).lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    delete([url], name)
    await_true(lambda: told.reasons == [KEY_GONE])


def test_a_lock_is_not_lost_whose_key_a_minority_deletes(
    connect: Face, urls: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(urls)
    lock = watched(connect, before, name, told)
    delete(urls[:2], name)
    await_true(lambda: sum(len(proxy.pushes) for proxy in before) == 2)
    # A quorum has the key, so no question follows. The next deletion makes a quorum impossible.
    assert not told.reasons
    assert lock.owned()
    assert all(questions(proxy, name) == 1 for proxy in before)
    delete(urls[2:3], name)
    await_true(lambda: told.reasons == [KEY_GONE])


def test_keys_that_other_clients_only_touch_cost_questions_and_no_lock(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(three)
    lock = watched(connect, before, name, told)
    masters = [ask(url) for url in three]
    for _ in range(300):
        for master in masters:
            assert master.persist(name)
            assert master.pexpire(name, 60_000)
    await_true(lambda: all(questions(proxy, name) > 1 for proxy in before))
    asked = [questions(proxy, name) for proxy in before]
    # Far fewer questions than changes: each pause is twice as long as the one before.
    assert max(asked) < 20
    assert not told.reasons
    assert lock.owned()
    # The loss is reported after the pause.
    delete(three, name)
    await_true(lambda: told.reasons == [KEY_GONE])
    for master in masters:
        master.close()


@pytest.mark.usual(
    "both faces share the watch of keys",
    {"connect": "asyncio"},
    {"connect": "threads", "guarded": True, "flushed": 2},
)
@pytest.mark.parametrize("guarded", [False, True], ids=["without a guard", "guarded"])
@pytest.mark.parametrize("flushed", [3, 2])
def test_a_flush_of_a_majority_is_reported_before_the_deadline(
    connect: Face, fleet: Callable[..., embedded.Masters], name: str, told: Told, guarded: bool, flushed: int
) -> None:
    urls = fleet().urls
    client = connect(urls) if guarded else connect(urls, guard=None)
    lock = client.lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    lost = lock.lost
    await_keys(urls, name)
    for url in urls[:flushed]:
        with ask(url) as master:
            master.flushall()
    await_true(lost.is_set)
    await_true(lambda: told.reasons == [KEPT_OUT if guarded else KEY_GONE])


def test_a_flush_of_another_database_is_no_loss(
    connect: Face, fleet: Callable[..., embedded.Masters], proxies: Proxies, name: str, told: Told
) -> None:
    urls = fleet().urls
    before = proxies(urls)
    lock = watched(connect, before, name, told, guard=None)
    for url in urls:
        with redis.Redis.from_url(url, db=1) as master:
            master.flushdb()
    await_watch(before, name, 2)
    assert lock.owned()
    assert not told.reasons


def test_a_flush_with_many_held_locks_reports_each_of_them(
    connect: Face, fleet: Callable[..., embedded.Masters], proxies: Proxies, name: str, told: Told
) -> None:
    urls = fleet().urls
    before = proxies(urls)
    client = connect([proxy.url for proxy in before], guard=None, on_lost=told)
    locks = client.acquire_many([f"{name}-{number}" for number in range(2000)], ttl=LONG)
    assert all(locks)
    await_true(lambda: before[0].count("CACHING") > 2000)
    for url in urls:
        with ask(url) as master:
            master.flushall()
    await_true(lambda: len(told.reasons) == 2000)
    assert set(told.reasons) == {KEY_GONE}


def test_an_eviction_is_reported(connect: Face, fleet: Callable[..., embedded.Masters], name: str, told: Told) -> None:
    masters = fleet(1)
    lock = connect(masters.urls, guard=None).lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    with ask(masters.urls[0]) as master:
        # The lock is the only key with a ttl.
        master.config_set("maxmemory-policy", "volatile-lru")
        master.config_set("maxmemory", master.info("memory")["used_memory"] + (1 << 20))
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for number in range(1000):
                master.set(f"filler-{number}", b"x" * 10_000)
    await_true(lambda: told.reasons == [KEY_GONE])


# --- renewals, releases, other holders ------------------------------------------------------------------------


@on_one_face("threads")
def test_a_key_is_watched_again_after_each_renewal(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    """A server stops tracking a key that we extend, and pushes nothing for that."""
    before = proxies(three)
    lock = connect([proxy.url for proxy in before]).lock(name, ttl=3.0, auto_renew=True, on_lost=told)
    assert lock.acquire()
    await_watch(before, name, 3)
    lock.extend(LONG)
    number = questions(before[0], name)
    await_watch(before, name, number + 1)
    assert not any(proxy.pushes for proxy in before)
    delete(three, name)
    await_true(lambda: told.reasons == [KEY_GONE])


def test_a_key_that_is_deleted_while_a_renewal_is_under_way_is_lost_once(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=3.0, auto_renew=True, on_lost=told)
    assert lock.acquire()
    await_watch(before, name)
    for proxy in before:
        proxy.requests.clear()
    renewing = lambda: lock.raw._upkeep.term.renewing  # noqa: E731
    await_true(renewing)
    delete(three, name)
    await_true(lambda: all(proxy.pushes for proxy in before))
    for proxy in before:
        proxy.requests.set()
    await_true(lambda: bool(told.reasons))
    with pytest.raises(LockLost):
        lock.release()
    assert len(told.reasons) == 1
    assert told.reasons[0] in (KEY_GONE, "a quorum has forgotten it")


def test_pushes_after_a_release_cause_nothing(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    lock = client.lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    await_watch(before, name)
    for proxy in before:
        proxy.deaf = True
    delete(three, name)
    await_true(lambda: all(proxy.pushes for proxy in before))
    with pytest.raises(LockLost):
        lock.release()
    for proxy in before:
        proxy.deaf = False
        proxy.deliver()
    other = client.lock(f"{name}-other", ttl=LONG, on_lost=told)
    assert other.acquire()
    await_watch(before, f"{name}-other")
    assert not told.reasons
    assert all(questions(proxy, name) == 1 for proxy in before)
    other.release()


def test_the_loss_of_an_earlier_holder_is_not_that_of_the_next_one(
    connect: Face, three: list[str], proxies: Proxies, name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    first, second = Told(), Told()
    one, other = client.lock(name, ttl=LONG, on_lost=first), client.lock(name, ttl=LONG, on_lost=second)
    assert one.acquire()
    await_watch(before, name)
    for proxy in before:
        proxy.deaf = True
    delete(three, name)
    await_true(lambda: all(proxy.pushes for proxy in before))
    with pytest.raises(LockLost):
        one.release()
    assert other.acquire()
    await_watch(before, name, 2)
    for proxy in before:
        proxy.deaf = False
        proxy.deliver()
    # The late pushes may cost a question.
    assert other.owned()
    assert not first.reasons and not second.reasons
    delete(three, name)
    await_true(lambda: second.reasons == [KEY_GONE])
    assert not first.reasons


def test_a_lease_that_was_handed_off_is_watched_for_its_new_holder(
    connect: Face, three: list[str], proxies: Proxies, name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    first, second = Told(), Told()
    one, other = client.lock(name, ttl=LONG, on_lost=first), client.lock(name, ttl=LONG, on_lost=second)
    assert one.acquire()
    call = other.start("acquire")
    await_true(lambda: bool(client.raw._quorum.queues.by_key))
    token = one.token
    one.release()
    assert call.result(PATIENCE)
    assert other.token == token
    number = questions(before[0], name)
    await_watch(before, name, number + 1)
    delete(three, name)
    await_true(lambda: second.reasons == [KEY_GONE])
    assert not first.reasons


def test_a_key_is_watched_again_on_new_connections(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(three)
    lock = watched(connect, before, name, told)
    for proxy in before:
        proxy.cut()
        await_watch(before, name, questions(before[0], name) + 1)
    await_watch(before, name, 4)
    assert not told.reasons
    assert lock.owned()
    delete(three, name)
    await_true(lambda: told.reasons == [KEY_GONE])


def test_a_lock_is_watched_from_the_moment_at_which_somebody_asks(
    connect: Face, three: list[str], proxies: Proxies, name: str
) -> None:
    before = proxies(three)
    lock = connect([proxy.url for proxy in before]).lock(name, ttl=LONG)
    assert lock.acquire()
    assert not questions(before[0], name)
    lost = lock.lost
    await_watch(before, name)
    delete(three, name)
    await_true(lost.is_set)


# --- cost -----------------------------------------------------------------------------------------------------


def test_a_lock_that_does_not_ask_sends_no_command_more(
    connect: Face, three: list[str], proxies: Proxies, name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    with_renewal = client.lock(f"{name}-renewed", ttl=3.0, auto_renew=True)
    without = client.lock(name, ttl=3.0)
    assert with_renewal.acquire() and without.acquire()
    deadline = with_renewal.deadline_ns
    await_true(lambda: with_renewal.deadline_ns > deadline)
    without.release()
    with_renewal.release()
    for proxy in before:
        await_true(proxy.quiet)
        named = [command[0] for command in proxy.commands if any(name.encode() in word for word in command)]
        # One SET for each lock, and one release. There are as many extensions as renewals.
        assert named.count(b"SET") == 2
        assert set(named) <= {b"SET", b"EVALSHA", b"DELIFEQ", b"DELEX"}
        assert not questions(proxy, name)
        # Only the handshake uses it.
        assert proxy.count("CACHING") == proxy.accepted


def test_a_lock_that_is_released_soon_asks_nothing(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_watch, "FIRST_NS", int(PATIENCE * 1e9))
    monkeypatch.setattr("redlatch.quorum.upkeep.FIRST_NS", int(PATIENCE * 1e9))
    before = proxies(three)
    client = connect([proxy.url for proxy in before], on_lost=told)
    for _ in range(100):
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire()
        lock.release()
    assert not any(questions(proxy, name) for proxy in before)
    assert not told.reasons


@pytest.mark.parametrize("kind", ["semaphore", "read"])
def test_a_lock_with_several_holders_is_not_watched(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told, kind: str
) -> None:
    """Its key changes with each of them, so pushes would come all the time."""
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    options = {"ttl": LONG, "on_lost": told}
    shared = client.semaphore(name, 2, **options) if kind == "semaphore" else client.rw_lock(name, **options).read()
    beside = client.lock(f"{name}-beside", ttl=LONG, on_lost=told)
    assert shared.acquire() and beside.acquire()
    await_watch(before, f"{name}-beside")
    assert all(proxy.count("CACHING") == proxy.accepted + 1 for proxy in before)
    shared.release()
    beside.release()


def test_a_client_that_polls_asks_nothing(
    connect: Face, three: list[str], proxies: Proxies, name: str, told: Told
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], wakeups="poll")
    lock = client.lock(name, ttl=1.0, on_lost=told)
    assert lock.acquire()
    delete(three, name)
    await_true(lambda: told.reasons == ["its validity ran out"])
    assert not any(questions(proxy, name) for proxy in before)


# --- cancel_on_loss -------------------------------------------------------------------------------------------


def test_a_loss_cancels_the_body_at_once(implementation: impl.Implementation, three: list[str], name: str) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            with pytest.raises(LockLost, match=KEY_GONE):
                async with client.lock(name, ttl=LONG, auto_renew=True, cancel_on_loss=True):
                    await asyncio.to_thread(delete, three, name)
                    await asyncio.sleep(PATIENCE)
                    pytest.fail("it was not cancelled")

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < PATIENCE


# --- threads --------------------------------------------------------------------------------------------------


@pytest.fixture
def client_threads(implementation: impl.Implementation) -> Iterator[Face]:
    face = Face("threads")
    yield face
    face.close()


def test_a_loss_is_reported_while_other_threads_use_the_client(
    client_threads: Face, three: list[str], name: str, told: Told
) -> None:
    client = client_threads(three)
    lock = client.lock(name, ttl=LONG, on_lost=told)
    assert lock.acquire()
    busy: Any = client.raw.lock(f"{name}-busy", ttl=LONG)
    deleted = False
    deadline = time.monotonic() + PATIENCE
    number = 0
    while not told.reasons:
        assert time.monotonic() < deadline
        with busy:
            number += 1
        if number == 200 and not deleted:
            delete(three, name)
            deleted = True
    assert told.reasons == [KEY_GONE]
