"""`close(release=True)`: locks of every kind are free at once, and their holders know it first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, ask, at_once, await_true, in_thread, run_script
from support.forked import in_child
from support.masters import Keys
from support.proxy import Proxy

from redlatch import (
    AsyncClient,
    Client,
    ClientClosed,
    ConfigurationError,
    LockLost,
    NotOwned,
    impl,
)
from redlatch.drivers.lifetime import HeldLocks

# Far longer than a test: a lock that is free before its end was released.
TTL = 60.0

RELEASED = "released by close"

# How a client makes a lock of each kind.
KINDS: dict[str, Callable[[Any, str], Any]] = {
    "plain": lambda client, name: client.lock(name, TTL),
    "renewed": lambda client, name: client.lock(name, TTL, auto_renew=True),
    "fenced": lambda client, name: client.lock(name, TTL, fence=True),
    "fair": lambda client, name: client.fair_lock(name, TTL),
    "reader": lambda client, name: client.rw_lock(name, TTL).read(),
    "writer": lambda client, name: client.rw_lock(name, TTL).write(),
    "semaphore": lambda client, name: client.semaphore(name, 1, TTL),
    "multi": lambda client, name: client.multi_lock([name, name + "-too"], TTL),
}
# What waits while a lock of the kind is held.
RIVALS = KINDS | {"reader": KINDS["writer"]}

every_kind = pytest.mark.parametrize("kind", KINDS)


def keys_of(url: str, name: str) -> list[bytes]:
    """Return the keys of a lock on one master, except the counter of fences, which stays."""
    return [key for key in ask(url).keys(f"*{name}*") if not key.endswith(b"fence")]


@every_kind
def test_a_lock_is_free_at_once_and_its_holder_knows(connect: Face, urls: list[str], name: str, kind: str) -> None:
    client, rival = connect(urls), connect(urls)
    lock = KINDS[kind](client, name)
    assert lock.acquire()
    waiting = RIVALS[kind](rival, name).start("acquire")
    client.close(release=True)
    assert waiting.result(PATIENCE)
    assert lock.remaining() == 0
    with pytest.raises(LockLost, match=RELEASED):
        lock.check()


@every_kind
def test_no_key_of_a_released_lock_is_left(connect: Face, three: list[str], name: str, kind: str) -> None:
    client = connect(three)
    assert KINDS[kind](client, name).acquire()
    client.close(release=True)
    assert [keys_of(url, name) for url in three] == [[], [], []]


def test_without_release_the_key_stays_until_its_ttl_is_over(connect: Face, url: str, name: str, keys: Keys) -> None:
    client = connect(url)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    client.close()
    assert keys([url], name)
    lock.check()


def test_a_batch_is_released(connect: Face, three: list[str], name: str) -> None:
    names = [f"{name}-{number}" for number in range(2000)]
    # A busy machine answers 1,024 names late.
    client = connect(three, attempt_timeout=PATIENCE)
    first, second = client.acquire_many(names[:1500], TTL), client.acquire_many(names[1500:], TTL)
    assert all([*first, *second])
    client.release_many(first[:700])
    client.close(release=True)
    assert [keys_of(url, name) for url in three] == [[], [], []]
    for lock in [*first[700:], *second]:
        with pytest.raises(LockLost, match=RELEASED):
            lock.check()


def test_a_lock_whose_object_is_gone_is_released(connect: Face, url: str, name: str, keys: Keys) -> None:
    client = connect(url)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    del lock
    gc.collect()
    client.close(release=True)
    assert keys([url], name) == {}


def test_a_reentrant_lock_is_released_however_often_it_was_acquired(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    client = Client(three)
    lock = client.rlock(name, TTL)
    assert lock.acquire() and lock.acquire()
    in_thread(client.close, True).result(PATIENCE)
    assert keys(three, name) == {}
    with pytest.raises(LockLost, match=RELEASED):
        lock.check()
    with pytest.raises(LockLost, match=RELEASED):
        lock.acquire()
    lock.release()
    with pytest.raises(LockLost, match=RELEASED):
        lock.release()


def test_the_task_with_a_reentrant_lock_knows_that_it_is_lost(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        client = AsyncClient(three)
        lock = client.rlock(name, TTL)
        with pytest.raises(LockLost, match=RELEASED):
            async with lock, lock:
                await client.close(release=True)
                with pytest.raises(LockLost, match=RELEASED):
                    lock.check()
        assert keys(three, name) == {}

    asyncio.run(main())


# --- what a holder sees --------------------------------------------------------------------------------


def test_the_loss_is_reported_once_with_its_reason(connect: Face, url: str, name: str) -> None:
    reported: list[tuple[Any, str]] = []
    done = threading.Event()

    def on_lost(lock: Any, reason: str) -> None:
        reported.append((lock, reason))
        done.set()

    client = connect(url)
    lock = client.lock(name, TTL, auto_renew=True, on_lost=on_lost)
    assert lock.acquire()
    client.close(release=True)
    assert lock.lost.is_set()
    assert done.wait(PATIENCE)
    client.close()
    assert [(each is lock.raw, reason) for each, reason in reported] == [(True, "released by close(release=True)")]


def test_a_thread_may_ask_for_the_event_later(implementation: impl.Implementation, url: str, name: str) -> None:
    client = Client(url)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    client.close(release=True)
    assert lock.lost.wait(PATIENCE)


def test_a_task_may_ask_for_the_event_later(implementation: impl.Implementation, url: str, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(url)
        lock = client.lock(name, TTL)
        assert await lock.acquire()
        await client.close(release=True)
        async with asyncio.timeout(PATIENCE):
            await lock.lost.wait()

    asyncio.run(main())


def test_the_holder_knows_before_the_release_can_reach_a_master(
    connect: Face, url: str, name: str, proxies: Callable[[list[str]], list[Proxy]], keys: Keys
) -> None:
    [proxy] = proxies([url])
    client = connect(proxy.url)
    watched, plain = client.lock(name, TTL), client.lock(name + "-plain", TTL)
    assert watched.acquire() and plain.acquire()
    lost = watched.lost
    await_true(proxy.quiet)
    proxy.requests.clear()
    closing = client.start("close", release=True, timeout=PATIENCE)
    await_true(lost.is_set)
    assert plain.remaining() == watched.remaining() == 0
    assert keys([url], name) and keys([url], name + "-plain")
    proxy.requests.set()
    closing.result(PATIENCE)
    assert keys([url], name) == keys([url], name + "-plain") == {}


@pytest.mark.parametrize("wait", [True, False])
def test_a_release_after_it_says_that_the_lock_was_lost(connect: Face, url: str, name: str, wait: bool) -> None:
    client = connect(url)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    client.close(release=True)
    with pytest.raises(LockLost, match=RELEASED):
        lock.release(wait)
    with pytest.raises(ClientClosed):
        lock.release(wait)
    with pytest.raises(NotOwned):
        lock.check()


def test_a_release_of_many_names_after_it_says_that_they_were_lost(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock = client.multi_lock([name, name + "-too"], TTL)
    assert lock.acquire()
    client.close(release=True)
    with pytest.raises(LockLost, match=RELEASED):
        lock.release()


def test_the_end_of_a_with_says_that_the_lock_was_lost_unless_the_body_has_raised(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    client = Client(url)
    with pytest.raises(LockLost, match=RELEASED), client.lock(name, TTL):
        in_thread(client.close, True).result(PATIENCE)
    client = Client(url)
    with pytest.raises(ZeroDivisionError) as raised, client.lock(name, TTL):
        in_thread(client.close, True).result(PATIENCE)
        raise ZeroDivisionError
    assert [note for note in raised.value.__notes__ if RELEASED in note]


def test_a_body_with_cancel_on_loss_is_cancelled(implementation: impl.Implementation, url: str, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(url)
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock(name, TTL, cancel_on_loss=True):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        await client.close(release=True)
        with pytest.raises(LockLost, match=RELEASED):
            await task

    asyncio.run(main())


def test_a_close_that_is_cancelled_has_sent_its_releases(
    implementation: impl.Implementation, url: str, name: str, keys: Keys
) -> None:
    async def main(turns: int) -> None:
        client = AsyncClient(url)
        lock = client.lock(name, TTL)
        assert await lock.acquire()
        closing = asyncio.create_task(client.close(release=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(LockLost, match=RELEASED):
            lock.check()

    for turns in (1, 2):
        asyncio.run(main(turns))
        await_true(lambda: keys([url], name) == {})


AT_EXIT = """
import atexit, sys, threading, redlatch
url, name = sys.argv[1:]
client = redlatch.Client(url)
atexit.register(client.close, release=True)
lock = client.lock(name, ttl=60.0, auto_renew=True, on_lost=lambda lock, reason: None)
held = threading.Event()

def work():
    lock.acquire()
    held.set()
    threading.Event().wait()

threading.Thread(target=work, daemon=True).start()
held.wait()
"""


def test_a_lock_of_a_daemon_thread_is_released_at_exit(
    implementation: impl.Implementation, url: str, name: str, keys: Keys
) -> None:
    process = run_script(AT_EXIT, implementation.name, url, name)
    assert process.returncode == 0
    assert keys([url], name) == {}


FORGETFUL = """
import asyncio, sys, redis, redlatch
url, name = sys.argv[1:]
server = redis.Redis.from_url(url)
"""

RELEASED_LAST = {
    "threads": """
lock = redlatch.Client(url).lock(name, ttl=60.0)
assert lock.acquire()
server.script_flush()
lock.release(wait=False)
server.close()
""",
    "asyncio": """
client = redlatch.AsyncClient(url)
async def use():
    lock = client.lock(name, ttl=60.0)
    assert await lock.acquire()
    server.script_flush()
    await lock.release(wait=False)
asyncio.run(use())
server.close()
""",
}


@pytest.mark.parametrize("text", list(RELEASED_LAST.values()), ids=list(RELEASED_LAST))
def test_a_release_at_exit_brings_its_script_if_the_master_has_forgotten_it(
    text: str, implementation: impl.Implementation, url: str, name: str, keys: Keys
) -> None:
    process = run_script(FORGETFUL + text, implementation.name, url, name)
    assert process.returncode == 0
    assert keys([url], name) == {}


def test_an_on_lost_that_raises_does_not_keep_a_lock(connect: Face, url: str, name: str, keys: Keys) -> None:
    def on_lost(lock: Any, reason: str) -> None:
        raise ZeroDivisionError

    client = connect(url)
    assert client.lock(name, TTL, on_lost=on_lost).acquire()
    other = client.lock(name + "-too", TTL)
    assert other.acquire()
    client.close(release=True)
    assert keys([url], name) == keys([url], name + "-too") == {}


def test_a_holder_that_releases_as_soon_as_it_knows_leaves_no_key(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases have ended, and the holder releases its lock before `close` has sent the releases."""
    send_releases = HeldLocks.release
    raised: list[LockLost] = []

    def release(self: HeldLocks, send: Callable[[list[Any]], object]) -> bool:
        if not raised:
            with pytest.raises(LockLost, match=RELEASED) as caught:
                lock.release()
            raised.append(caught.value)
        return send_releases(self, send)

    client = Client(three)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    monkeypatch.setattr(HeldLocks, "release", release)
    client.close(release=True)
    assert raised
    assert keys(three, name) == {}


def test_a_lock_that_had_run_out_keeps_its_own_reason(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock = client.lock(name, 0.05)
    assert lock.acquire()
    await_true(lambda: lock.remaining() == 0)
    client.close(release=True)
    with pytest.raises(LockLost, match="ran out"):
        lock.check()


def test_extend_after_it_is_refused(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    client.close(release=True)
    with pytest.raises(ClientClosed):
        lock.extend()
    assert lock.remaining() == 0


# --- calls that are under way --------------------------------------------------------------------------


def test_callers_that_wait_get_client_closed_and_leave_nothing(
    connect: Face, three: list[str], name: str, keys: Keys
) -> None:
    client = connect(three)
    lock = client.lock(name, TTL)
    assert lock.acquire()
    waiting = [client.lock(name, TTL).start("acquire") for _ in range(3)]
    await_true(lambda: len(client.raw._quorum.queues.everybody()) == 3)
    client.close(release=True)
    for call in waiting:
        with pytest.raises(ClientClosed):
            call.result(PATIENCE)
    assert keys(three, name) == {}


@pytest.mark.parametrize("call", ["acquire", "extend"])
def test_a_call_whose_answer_is_late_leaves_no_lock(
    connect: Face, url: str, name: str, call: str, proxies: Callable[[list[str]], list[Proxy]], keys: Keys
) -> None:
    [proxy] = proxies([url])
    client = connect(proxy.url)
    lock = client.lock(name, TTL)
    if call == "extend":
        assert lock.acquire()
    else:
        client.connect()
    await_true(proxy.quiet)
    proxy.replies.clear()
    before = len(proxy.commands)
    going = lock.start(call)
    await_true(lambda: len(proxy.commands) > before)
    closing = client.start("close", release=True)
    await_true(lambda: client.raw._driver.status.state == "closed")
    proxy.replies.set()
    closing.result(PATIENCE)
    with pytest.raises((ClientClosed, LockLost, NotOwned)):
        going.result(PATIENCE)
    await_true(lambda: keys([url], name) == {})
    assert lock.remaining() == 0


def test_a_batch_of_which_some_names_are_won_leaves_no_lock(
    connect: Face, url: str, name: str, proxies: Callable[[list[str]], list[Proxy]], keys: Keys
) -> None:
    [proxy] = proxies([url])
    client = connect(proxy.url)
    client.connect()
    await_true(proxy.quiet)
    names = [f"{name}-{number}" for number in range(300)]
    answers = threading.Event()

    def stop_at_the_last(command: tuple[bytes, ...], reply: bytes) -> bytes:
        if command[:2] == (b"SET", names[-1].encode()):
            assert answers.wait(PATIENCE)
        return reply

    proxy.spoil = stop_at_the_last
    going = client.start("acquire_many", names, ttl=TTL)
    await_true(lambda: proxy.count("SET", names[-1]) and len(proxy.answered) == len(proxy.commands) - 1)
    closing = client.start("close", release=True)
    # What was won is undone although the last answer is missing.
    await_true(lambda: len(keys([url], name)) == 0)
    answers.set()
    closing.result(PATIENCE)
    with pytest.raises(ClientClosed):
        going.result(PATIENCE)
    assert keys([url], name) == {}


def test_a_waiter_that_finds_its_lease_late_leaves_no_lock(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    """A thread has handed its lease off, and is stopped before it wakes the waiter."""
    client = Client(three)
    driver: Any = client._driver
    lock = client.lock(name, TTL)
    assert lock.acquire()
    waiting = in_thread(client.lock(name, TTL).acquire)
    await_true(lambda: len(driver.queues.everybody()) == 1)
    now_ns = client._quorum.clock.now()
    lock._hold.begin_release(now_ns)
    assert driver.queues.hand_off(client._quorum, lock._hold, now_ns)
    lock._hold.free()
    closing = in_thread(lambda: client.close(release=True))
    await_true(lambda: driver.status.state == "closed")
    time.sleep(0.1)
    driver.wake_called()
    closing.result(PATIENCE)
    with contextlib.suppress(ClientClosed):  # the background thread may have woken it before
        waiting.result(PATIENCE)
    assert keys(three, name) == {}


@pytest.mark.parametrize("kind", ["plain", "reader"])
def test_a_thread_that_undoes_its_acquire_leaves_no_lock(
    implementation: impl.Implementation, three: list[str], name: str, kind: str
) -> None:
    """It is stopped between its decision to undo and the undo."""
    client = Client(three)
    driver, lock = client._driver, KINDS[kind](client, name)
    client.connect()
    hold, ticket = lock._hold, object()
    assert driver.run(client._quorum.acquire(hold, lock._ttl_ms, 0.0, ticket))
    undo = hold.undoing(ticket)
    closing = in_thread(lambda: client.close(release=True))
    await_true(lambda: driver.status.state == "closed")
    time.sleep(0.1)
    driver.send([undo])
    client._quorum.leave_queue(driver, hold)
    hold.end_undoing(ticket)
    closing.result(PATIENCE)
    assert [keys_of(url, name) for url in three] == [[], [], []]


def makers_of(client: Any, names: list[str]) -> list[Callable[[], Any]]:
    """Return six functions that make locks of several kinds on the same names."""
    readwrite = client.rw_lock(names[0], TTL)
    return [
        partial(client.lock, names[0], TTL),
        partial(client.lock, names[0], TTL, auto_renew=True),
        partial(client.semaphore, names[0], 2, TTL),
        partial(client.multi_lock, names, TTL),
        readwrite.read,
        readwrite.write,
    ]


def test_threads_that_use_locks_all_the_time_leave_none(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    for trial in range(10):
        client, going = Client(three), threading.Barrier(7)
        names = [f"{name}-{trial}-{number}" for number in range(3)]

        def work(client: Client, going: threading.Barrier, make: Callable[[], Any]) -> None:
            going.wait(PATIENCE)
            with pytest.raises((ClientClosed, LockLost)):
                while True:
                    with make() as lock:
                        lock.remaining()

        makers = makers_of(client, names)
        with ThreadPoolExecutor(6) as pool:
            working = [pool.submit(work, client, going, make) for make in makers]
            going.wait(PATIENCE)
            client.close(release=True)
            for each in working:
                each.result(PATIENCE)
        assert [keys_of(url, f"{name}-{trial}") for url in three] == [[], [], []]


def test_tasks_that_use_locks_all_the_time_leave_none(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work(make: Callable[[], Any], turns: list[None]) -> None:
        while True:
            async with make():
                turns.append(None)

    async def main(trial: int) -> None:
        client, turns = AsyncClient(three), list[None]()
        names = [f"{name}-{trial}-{number}" for number in range(3)]
        tasks = [asyncio.create_task(work(make, turns)) for make in makers_of(client, names)]
        while len(turns) < 50 + trial:
            await asyncio.sleep(0)
        await client.close(release=True)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, (ClientClosed, LockLost))
        assert [keys_of(url, f"{name}-{trial}") for url in three] == [[], [], []]

    for trial in range(10):
        asyncio.run(main(trial))


# --- limits --------------------------------------------------------------------------------------------


def test_masters_that_do_not_answer_end_the_wait_and_are_reported(
    connect: Face,
    three: list[str],
    name: str,
    proxies: Callable[[list[str]], list[Proxy]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = proxies(three)
    client = connect([proxy.url for proxy in silent])
    lock, other = client.lock(name, TTL), client.lock(name + "-too", TTL)
    assert lock.acquire() and other.acquire()
    for proxy in silent:
        proxy.requests.clear()
    with caplog.at_level(logging.WARNING, "redlatch"):
        client.close(release=True, timeout=0.2)
    assert "2 of 2 locks may stay until their ttl is over" in caplog.text
    assert lock.remaining() == other.remaining() == 0


def test_a_minority_that_does_not_answer_is_not_reported(
    connect: Face,
    three: list[str],
    name: str,
    proxies: Callable[[list[str]], list[Proxy]],
    caplog: pytest.LogCaptureFixture,
    keys: Keys,
) -> None:
    silent, *others = proxies(three)
    client = connect([proxy.url for proxy in (silent, *others)])
    client.connect(require="all")
    assert client.lock(name, TTL).acquire()
    await_true(lambda: len(keys(three, name)) == 3 and silent.quiet())
    silent.requests.clear()
    with caplog.at_level(logging.WARNING, "redlatch"):
        client.close(release=True, timeout=0.2)
    assert "may stay" not in caplog.text
    assert list(keys(three, name)) == three[:1]


def test_a_forked_child_releases_nothing(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    with Client(three) as client, client.lock(name, TTL) as lock:
        in_child(lambda: client.close(release=True))
        lock.check()
        assert len(keys(three, name)) == 3


def test_several_closes_at_once_release_once(connect: Face, three: list[str], name: str, keys: Keys) -> None:
    client = connect(three)
    assert client.lock(name, TTL).acquire()
    at_once([lambda: client.close(release=True)] * 3)
    assert keys(three, name) == {}


def test_a_client_that_was_never_used_can_be_closed(connect: Face, url: str) -> None:
    client = connect(url)
    client.close(release=True)
    with pytest.raises(ClientClosed):
        client.lock("name").acquire()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"release": 1}, TypeError, "release: True or False is needed"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"timeout": -1.0}, ConfigurationError, "timeout"),
        ({"timeout": float("inf")}, ConfigurationError, "timeout: a finite number"),
    ],
)
def test_an_invalid_argument_is_refused_and_closes_nothing(
    connect: Face, url: str, name: str, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    client = connect(url)
    with pytest.raises(error, match=text):
        client.close(**arguments)
    assert client.lock(name).acquire()


def test_a_client_that_closes_keeps_what_it_holds_while_a_master_is_being_dialled(
    connect: Face, farm: Any, name: str, proxies: Any
) -> None:
    urls = farm.urls(3)
    behind = proxies(urls)
    client = connect([proxy.url for proxy in behind])
    assert client.lock(f"{name}-0").acquire()
    # The next handshake does not end, so the commands for this master wait.
    behind[2].replies.clear()
    behind[2].cut()
    # A client for threads notices it in a call.
    await_true(lambda: client.lock(f"{name}-0").locked() and not client.stats().masters[2].voting)
    held = [client.lock(f"{name}-1"), client.semaphore(f"{name}-2", 1), client.lock(f"{name}-3", fence=True)]
    assert all(lock.acquire() for lock in held)
    client.close()
    assert all(lock.remaining() for lock in held)
    for url in urls[:2]:
        server = ask(url)
        assert server.exists(f"{name}-1", f"{{{name}-2}}\0slots", f"{name}-3") == 3
    behind[2].replies.set()
