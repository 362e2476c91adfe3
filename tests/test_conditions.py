"""Conditions on real masters: waiters that holders call, and what happens when one of them dies or gives up."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, ask, await_true, finish, line_of, run_script
from support.interleaving import interrupt, meet
from support.masters import Farm, Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import Client, ClientClosed, ConfigurationError, LockLost, NotOwned, QuorumUnavailable, impl
from redlatch.quorum.claim import FREE
from redlatch.votes import condition_scripts as scripts

pytestmark = pytest.mark.one_loop

LONG = 60.0


@pytest.fixture(params=[1, 3])
def masters(request: pytest.FixtureRequest, farm: Farm) -> list[str]:
    """One master, and three."""
    return farm.urls(request.param)


@pytest.fixture
def no_polls(implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters ask only when they are woken, so that a missed push hangs the test."""
    condition = implementation.module("quorum.condition")
    for name, value in (("KEEP_MS", 60_000), ("POLL_NS", 1 << 60), ("POLL_SHARE", 1), ("ALIVE_SHARE", 1)):
        monkeypatch.setattr(condition, name, value)


def waiters(url: str, name: str) -> list[str]:
    """Return the tickets of the waiters on a master, in their order."""
    with ask(url) as master:
        return sorted(ticket.decode() for ticket in master.zrange(f"{{{name}}}\0cond", 0, -1))


def wait_in(client: Faced, name: str, urls: list[str], timeout: float | None = None, **options: Any) -> tuple[Any, Any]:
    """Let one more holder wait in the condition; return its lock and its call."""
    known = len(waiters(urls[-1], name))
    lock = client.lock(name, ttl=LONG, **options)
    assert lock.acquire(timeout=PATIENCE)
    call = lock.condition().start("wait", timeout)
    await_true(lambda: call.done() or all(len(waiters(url, name)) == known + 1 for url in urls))
    # It waits when it knows that it has released the lock.
    await_true(lambda: call.done() or lock.raw._hold.state == FREE)
    return lock, call


def call_one(client: Faced, name: str, n: int = 1) -> None:
    """Call waiters as a holder of the lock."""
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire(timeout=PATIENCE)
    lock.condition().notify(n)
    lock.release()


def nothing_left(urls: list[str], name: str, keys: Keys) -> None:
    """Wait until no waiter is left on any master, and no key without a ttl."""
    await_true(lambda: not any(waiters(url, name) for url in urls))
    for suffix in ("", "\0cond", "\0cond\0calls"):
        assert all(left > 0 for left in keys(urls, name + suffix).values())


# --- calls -----------------------------------------------------------------------------------------------


def test_a_call_wakes_a_waiter_of_another_client_that_then_has_the_lock(
    connect: Face, masters: list[str], name: str, keys: Keys, no_polls: None
) -> None:
    lock, call = wait_in(connect(masters), name, masters)
    call_one(connect(masters), name)
    assert call.result(PATIENCE / 2) is True
    assert lock.owned()
    lock.release()
    nothing_left(masters, name, keys)


def test_a_call_wakes_a_waiter_of_the_same_client(
    connect: Face, masters: list[str], name: str, keys: Keys, no_polls: None
) -> None:
    client = connect(masters)
    lock, call = wait_in(client, name, masters)
    call_one(client, name)
    assert call.result(PATIENCE / 2) is True
    lock.release()
    nothing_left(masters, name, keys)


def test_waiters_are_called_in_the_order_in_which_they_came(
    connect: Face, masters: list[str], name: str, no_polls: None
) -> None:
    clients = [connect(masters), connect(masters)]
    waiting = [wait_in(clients[number % 2], name, masters) for number in range(4)]
    for number, (lock, call) in enumerate(waiting):
        call_one(clients[0], name)
        assert call.result(PATIENCE / 2) is True
        assert not any(later.done() for _, later in waiting[number + 1 :])
        lock.release()


def test_one_notify_calls_as_many_waiters_as_it_says(
    connect: Face, masters: list[str], name: str, no_polls: None
) -> None:
    clients = [connect(masters), connect(masters)]
    waiting = [wait_in(clients[number % 2], name, masters) for number in range(3)]
    for lock, call in waiting:
        call.add_done_callback(partial(lambda lock, _: lock.start("release"), lock))
    call_one(clients[1], name, 2)
    # Each releases the lock for the other one.
    assert [call.result(PATIENCE / 2) for _, call in waiting[:2]] == [True, True]
    assert not waiting[2][1].done()


def test_a_call_without_a_waiter_is_lost(connect: Face, masters: list[str], name: str) -> None:
    client = connect(masters)
    call_one(client, name)
    lock = client.lock(name, ttl=LONG)
    assert lock.acquire()
    assert lock.condition().wait(0.05) is False
    assert lock.owned()


def test_a_wait_whose_timeout_passes_has_the_lock_and_leaves_no_waiter(
    connect: Face, masters: list[str], name: str, keys: Keys
) -> None:
    lock = connect(masters).lock(name, ttl=LONG)
    assert lock.acquire()
    assert lock.condition().wait(0) is False
    assert lock.owned()
    nothing_left(masters, name, keys)


def test_waiters_poll_where_masters_push_nothing(connect: Face, masters: list[str], name: str) -> None:
    lock, call = wait_in(connect(masters, wakeups="poll"), name, masters)
    call_one(connect(masters), name)
    assert call.result(PATIENCE) is True
    lock.release()


def test_conditions_with_different_names_are_independent(connect: Face, url: str, name: str, no_polls: None) -> None:
    client = connect(url)
    full, free = client.lock(name, ttl=LONG), client.lock(name, ttl=LONG)
    calls = []
    for lock, which in ((full, "full"), (free, "free")):
        assert lock.acquire(timeout=PATIENCE)
        calls.append(lock.condition(which).start("wait"))
        await_true(lambda: client.raw._quorum.queues.watches.by_key)
    notifier = client.lock(name, ttl=LONG)
    assert notifier.acquire(timeout=PATIENCE)
    notifier.condition("free").notify_all()
    notifier.release()
    assert calls[1].result(PATIENCE / 2) is True
    assert not calls[0].done()


def test_only_a_holder_may_wait_or_call(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock = client.lock(name, ttl=LONG)
    condition = lock.condition()
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(NotOwned):
            call()
    assert lock.acquire()
    hold = lock.raw._hold
    hold.shorten(hold.lease.token, 1)
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(LockLost):
            call()
    assert waiters(url, name) == []


def test_a_lock_that_is_lost_before_the_release_ends_the_wait(connect: Face, url: str, name: str, keys: Keys) -> None:
    lock = connect(url).lock(name, ttl=LONG)
    assert lock.acquire()
    with ask(url) as master:
        master.delete(name)
    with pytest.raises(LockLost):
        lock.condition().wait()
    assert lock.remaining() == 0
    nothing_left([url], name, keys)


def test_a_renewed_lock_is_renewed_again_after_the_wait(connect: Face, url: str, name: str) -> None:
    client = connect(url)
    lock = client.lock(name, ttl=0.6, auto_renew=True)
    assert lock.acquire()
    condition = lock.condition()
    for _ in range(2):
        assert condition.wait(0.05) is False
    before = lock.raw.deadline_ns
    await_true(lambda: lock.raw.deadline_ns > before)
    lock.check()
    lock.release()


@pytest.mark.parametrize("kind", ["semaphore", "reader"])
def test_locks_that_several_may_hold_have_no_condition(connect: Face, url: str, name: str, kind: str) -> None:
    client = connect(url)
    lock = client.semaphore(name, 2) if kind == "semaphore" else client.rw_lock(name).read()
    with pytest.raises(ConfigurationError, match="only an exclusive lock has a condition"):
        lock.condition()


@pytest.mark.parametrize("kind", ["fair", "fenced", "writer"])
def test_every_exclusive_lock_has_a_condition(connect: Face, url: str, name: str, kind: str) -> None:
    client = connect(url)
    make: dict[str, Callable[[], Any]] = {
        "fair": lambda: client.fair_lock(name, ttl=LONG),
        "fenced": lambda: client.lock(name, ttl=LONG, fence=True),
        "writer": lambda: client.rw_lock(name, ttl=LONG).write(),
    }
    lock, other = make[kind](), make[kind]()
    assert lock.acquire()
    call = lock.condition().start("wait")
    assert other.acquire(timeout=PATIENCE)
    other.condition().notify()
    other.release()
    assert call.result(PATIENCE) is True
    lock.release()


# --- failures of masters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["down", "silent"])
def test_one_master_that_is_down_or_silent_costs_no_call(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str, no_polls: None, fault: str
) -> None:
    before = proxies(farm.urls(3))
    urls = [proxy.url for proxy in before]
    clients = [connect(urls) for _ in range(3)]
    for client in clients:
        client.connect()
    await_true(lambda: all(proxy.greeted(3) for proxy in before))
    lock, call = wait_in(clients[0], name, farm.urls(3))
    if fault == "silent":
        before[1].replies.clear()
    else:
        before[1].refusing = True
        before[1].cut()
    other, other_call = wait_in(clients[1], name, [farm.urls(3)[0]])
    for waiting, waits in ((lock, call), (other, other_call)):
        call_one(clients[2], name)
        assert waits.result(PATIENCE / 2) is True
        waiting.release()
    before[1].replies.set()


def test_a_waiter_on_two_masters_is_called_although_one_of_them_dies_after_the_call(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    """The master that dies is the only one that knew the waiter and took the call."""
    urls = farm.urls(3)
    of_waiter, of_caller = proxies(urls), proxies(urls)
    of_waiter[2].refusing = of_caller[0].refusing = True
    waiter, caller = connect([proxy.url for proxy in of_waiter]), connect([proxy.url for proxy in of_caller])
    lock, call = wait_in(waiter, name, urls[:2])
    # The middle master takes the call, and the waiter does not hear of it.
    of_waiter[1].replies.clear()
    call_one(caller, name)
    of_waiter[1].refusing = of_caller[1].refusing = True
    of_waiter[1].cut()
    of_caller[1].cut()
    # From now on the waiter reaches the first and the third master.
    of_waiter[2].refusing = False
    assert call.result(PATIENCE) is True
    lock.release()


@on_one_face("asyncio")
def test_without_a_quorum_a_wait_ends_and_the_lock_is_not_held(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    before = proxies(farm.urls(3))
    client = connect([proxy.url for proxy in before], guard=None)
    lock, call = wait_in(client, name, farm.urls(3))
    for proxy in before[:2]:
        proxy.refusing = True
        proxy.cut()
    with pytest.raises(QuorumUnavailable, match="acquire"):
        call.result(PATIENCE)
    with pytest.raises(NotOwned):
        lock.check()


def test_without_a_quorum_a_waiter_cannot_enter_and_goes_on_holding_the_lock(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    before = proxies(farm.urls(3))
    lock = connect([proxy.url for proxy in before]).lock(name, ttl=LONG)
    assert lock.acquire()
    for proxy in before[:2]:
        proxy.refusing = True
        proxy.cut()
    for call in (lock.condition().wait, lock.condition().notify):
        with pytest.raises(QuorumUnavailable) as failure:
            call()
        assert len(failure.value.causes) >= 2
        lock.check()


def test_a_master_that_forgets_all_wakes_its_waiters(connect: Face, name: str, farm: Farm) -> None:
    """The call may have been forgotten, so the waiter looks for itself."""
    [url] = farm.urls(1)
    lock, call = wait_in(connect(url), name, [url])
    with ask(url) as master:
        master.flushall()
    assert call.result(PATIENCE) is True
    lock.release()


def test_a_waiter_whose_connections_broke_is_not_woken_by_that(
    connect: Face, proxies: Callable[[list[str]], list[Proxy]], farm: Farm, name: str
) -> None:
    before = proxies(farm.urls(3))
    client = connect([proxy.url for proxy in before])
    lock, call = wait_in(client, name, farm.urls(3))
    asked = [proxy.count(scripts.CALL_WAIT.sha) for proxy in before]
    for proxy in before:
        proxy.cut()
    await_true(
        lambda: all(proxy.count(scripts.CALL_WAIT.sha) > known for proxy, known in zip(before, asked, strict=True))
    )
    assert not call.done()
    call_one(connect(farm.urls(3)), name)
    assert call.result(PATIENCE) is True
    lock.release()


# --- waiters and callers that end ------------------------------------------------------------------------

WAITING = """
import sys
from redlatch import Client
client = Client(sys.argv[2:])
lock = client.lock(sys.argv[1], ttl=60.0)
with lock:
    print("in", flush=True)
    lock.condition().wait()
"""

CALLING = """
import sys
from redlatch import Client
client = Client(sys.argv[3:])
lock = client.lock(sys.argv[1], ttl=1.0)
client.connect()
print("connected", flush=True)
sys.stdin.readline()
lock.acquire()
if sys.argv[2] == "calls":
    lock.condition().notify()
print("in", flush=True)
sys.stdin.read()
"""


def caller(name: str, what: str, masters: list[str]) -> subprocess.Popen[str]:
    """Start a process that will take the lock when `go_on` says so."""
    process = run_script(CALLING, impl.current.name, name, what, *masters, wait=False)
    assert line_of(process) == "connected\n"
    return process


def go_on(process: subprocess.Popen[str]) -> None:
    """Let the process take the lock, and call a waiter if it does."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert line_of(process) == "in\n"


@on_one_face("threads")
def test_the_call_of_a_waiter_that_was_killed_goes_to_the_next_one(
    connect: Face, masters: list[str], name: str
) -> None:
    process = run_script(WAITING, impl.current.name, name, *masters, wait=False)
    assert line_of(process) == "in\n"
    await_true(lambda: all(waiters(url, name) for url in masters))
    lock, call = wait_in(connect(masters), name, masters)
    process.kill()
    # For the masters the dead waiter still lives, so it gets the call first.
    call_one(connect(masters), name)
    assert call.result(PATIENCE) is True
    lock.release()
    finish(process)


@on_one_face("threads")
def test_the_call_of_a_notifier_that_was_killed_afterwards_counts(connect: Face, masters: list[str], name: str) -> None:
    process = caller(name, "calls", masters)
    lock, call = wait_in(connect(masters), name, masters)
    go_on(process)
    process.kill()
    # The waiter has the lock when that of the dead process is over.
    assert call.result(PATIENCE) is True
    lock.release()
    finish(process)


@on_one_face("asyncio")
def test_a_notifier_that_was_killed_before_its_call_calls_nobody(connect: Face, masters: list[str], name: str) -> None:
    process = caller(name, "holds", masters)
    lock, call = wait_in(connect(masters), name, masters, timeout=4.0)
    go_on(process)
    process.kill()
    # The timeout ends the wait, and the lock of the dead process ends with its ttl.
    assert call.result(PATIENCE) is False
    assert lock.owned()
    lock.release()
    finish(process)


def test_a_waiter_that_closes_its_client_passes_its_call_on(connect: Face, masters: list[str], name: str) -> None:
    leaving = connect(masters)
    _, first = wait_in(leaving, name, masters)
    lock, call = wait_in(connect(masters), name, masters)
    leaving.close()
    with pytest.raises(ClientClosed):
        first.result(PATIENCE)
    call_one(connect(masters), name)
    assert call.result(PATIENCE) is True
    lock.release()


@pytest.mark.parametrize("face", ["asyncio", "uvloop"])
def test_a_cancelled_waiter_passes_its_call_on_and_has_no_lock(
    implementation: impl.Implementation,
    proxies: Callable[[list[str]], list[Proxy]],
    farm: Farm,
    name: str,
    face: str,
    no_polls: None,
) -> None:
    connect = Face(face)
    try:
        before = proxies(farm.urls(3))
        deaf = connect([proxy.url for proxy in before])
        first, first_call = wait_in(deaf, name, farm.urls(3))
        lock, call = wait_in(connect(farm.urls(3)), name, farm.urls(3))
        for proxy in before:
            proxy.deaf = True
        call_one(connect(farm.urls(3)), name)
        # The masters have called the first waiter, and it does not know.
        assert not first_call.done() and not call.done()
        first_call.cancel()
        assert call.result(PATIENCE / 2) is True
        lock.release()
        with pytest.raises(NotOwned):
            first.check()
    finally:
        connect.close()


def test_an_exception_in_the_wait_leaves_the_with_without_a_release(
    implementation: impl.Implementation, farm: Farm, name: str, strike: Any
) -> None:
    urls = farm.urls(3)
    with Client(urls) as client, Client(urls) as other:
        with pytest.raises(KeyboardInterrupt), client.lock(name, ttl=LONG) as lock:
            strike(0.3)
            lock.condition().wait()
        await_true(lambda: not any(waiters(url, name) for url in urls))
        assert other.lock(name).acquire(blocking=False)


def test_a_wait_that_is_interrupted_anywhere_leaves_no_waiter(
    implementation: impl.Implementation, farm: Farm, name: str, strike: Any
) -> None:
    urls = farm.urls(3)
    with Client(urls) as client:
        for number in range(40):
            lock = client.lock(name, ttl=LONG)
            try:
                with lock:
                    strike(0.0002 * (number + 1))
                    lock.condition().wait(0.02)
            except KeyboardInterrupt:
                pass
            strike.off()
        await_true(lambda: not any(waiters(url, name) for url in urls))
        assert client.lock(name).acquire(timeout=PATIENCE)


def test_a_wait_that_is_interrupted_while_its_watch_ends_leaves_no_watch(
    farm: Farm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the pure build, because nothing can be put into compiled methods.
    monkeypatch.setattr(impl, "current", impl.load("python"))
    with Client(farm.urls(3)) as client:
        lock = client.lock(name, ttl=LONG)
        assert lock.acquire()
        meet(monkeypatch, impl.current.module("quorum.waiting.watches").Watches, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.condition().wait(0)
        # `close` waits for the end of every watch.
        assert not client._quorum.queues.watches.by_key


# --- many processes --------------------------------------------------------------------------------------

CONSUMER = """
import sys
import redis
from redlatch import Client
name, items, url, *urls = sys.argv[1:]
client, store = Client(urls), redis.Redis.from_url(url)
lock = client.lock(name, ttl=10.0)
ready = lock.condition("ready")
print("in", flush=True)
taken = 0
while taken < int(items):
    with lock:
        while not store.llen(name + "-items"):
            ready.wait()
        store.lpop(name + "-items")
        taken += 1
print(taken, flush=True)
"""


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_consumers_in_other_processes_take_all_that_a_producer_calls_them_for(
    implementation: impl.Implementation, farm: Farm, name: str, face: str
) -> None:
    urls = farm.urls(3)
    processes = [run_script(CONSUMER, implementation.name, name, "10", urls[0], *urls, wait=False) for _ in range(2)]
    assert [line_of(process) for process in processes] == ["in\n"] * 2
    connect = Face(face)
    try:
        lock = connect(urls).lock(name, ttl=10.0)
        ready = lock.condition("ready")
        with ask(urls[0]) as store:
            for number in range(20):
                assert lock.acquire(timeout=PATIENCE)
                store.rpush(f"{name}-items", number)
                ready.notify()
                lock.release()
            assert [finish(process)[0] for process in processes] == ["10\n"] * 2
            assert store.llen(f"{name}-items") == 0
    finally:
        connect.close()


@on_one_face("asyncio")
def test_a_stopped_waiter_looks_for_itself_when_it_goes_on(connect: Face, farm: Farm, name: str) -> None:
    """While it stood still, its call may have gone to another waiter, or may have expired."""
    urls = farm.urls(3)
    process = run_script(WAITING, impl.current.name, name, *urls, wait=False)
    assert line_of(process) == "in\n"
    await_true(lambda: all(waiters(url, name) for url in urls))
    process.send_signal(signal.SIGSTOP)
    lock, call = wait_in(connect(urls), name, urls)
    call_one(connect(urls), name)
    assert call.result(PATIENCE) is True
    lock.release()
    call_one(connect(urls), name)
    process.send_signal(signal.SIGCONT)
    assert finish(process)[1] == ""
    assert process.returncode == 0


async def _both(client: Any, name: str) -> list[bool]:
    async def wait() -> bool:
        async with client.lock(name, ttl=LONG) as lock:
            return bool(await lock.condition().wait())

    tasks = [asyncio.ensure_future(wait()) for _ in range(50)]
    while not all(key in client._quorum.queues.watches.by_key for key in [f"{{{name}}}\0cond".encode()]):
        await asyncio.sleep(0)
    while len(client._quorum.queues.watches.by_key[f"{{{name}}}\0cond".encode()]) < 50:
        await asyncio.sleep(0)
    async with client.lock(name, ttl=LONG) as lock:
        await lock.condition().notify_all()
    return list(await asyncio.gather(*tasks))


def test_a_call_of_all_wakes_fifty_tasks_of_one_client(
    implementation: impl.Implementation, farm: Farm, name: str, no_polls: None
) -> None:
    from redlatch import AsyncClient

    async def run() -> list[bool]:
        async with AsyncClient(farm.urls(3)) as client:
            return await asyncio.wait_for(_both(client, name), PATIENCE)

    assert asyncio.run(run()) == [True] * 50
