"""Row 57: a user deletes a key that this process holds. Waiters in this process go on, as with the originals."""

from __future__ import annotations

import asyncio
import gc
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockNotOwnedError
from support.faces import PATIENCE, await_true, in_thread

from redlatch import impl
from redlatch.compat import clients, redis_py
from redlatch.testing import embedded

# Seconds: far below any ttl here.
SOON = 10


@pytest.fixture(scope="module")
def own_masters() -> Iterator[list[str]]:
    """Five masters that these tests may flush."""
    with embedded.masters(5) as urls:
        yield urls


# --- how each client holds a key for an hour, and how it waits for it ----------------------------------


def _module(whose: str, theirs: str, ours: str) -> Any:
    try:
        return importlib.import_module(theirs if whose == "theirs" else f"redlatch.compat.{ours}")
    except Exception as error:
        # aioredlock is installed, but its import fails without aioredis.
        pytest.skip(f"{theirs}: {error}")


class Party:
    """A drop-in or its original, for threads, on the masters of some redis-py clients.

    Attributes:
        key: the key of the lock.
    """

    def __init__(self, client: str, whose: str, servers: list[Any], name: str) -> None:
        self.client, self.servers, self.name = client, servers, name
        self.key = {"redis_py": "{}", "redlock": "{}", "pottery": "redlock:{}", "redis_lock": "lock:{}"}[client]
        self.key = self.key.format(name)
        modules: dict[str, Callable[[], Any]] = {
            "redis_py": lambda: redis.lock if whose == "theirs" else redis_py,
            "redlock": partial(_module, whose, "redlock", "redlock"),
            "pottery": partial(_module, whose, "pottery", "pottery"),
            "redis_lock": partial(_module, whose, "redis_lock", "redis_lock"),
        }
        self.module = modules[client]()

    def hold(self) -> Any:
        """Acquire the lock for an hour; return the object that holds it."""
        if self.client == "redlock":
            won = self.module.Redlock(self.servers).lock(self.name, 3_600_000)
            assert won
            return won
        lock = self._lock(3600)
        assert lock.acquire()
        return lock

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the lock; return whether it was acquired."""
        if self.client == "redlock":
            manager = self.module.Redlock(self.servers, retry_count=int(seconds / 0.05), retry_delay=0.05)
            return bool(manager.lock(self.name, 30_000))
        option = {"redis_py": "blocking_timeout", "pottery": "timeout", "redis_lock": "timeout"}[self.client]
        return bool(self._lock(30).acquire(**{option: seconds}))

    def _lock(self, seconds: float) -> Any:
        if self.client == "pottery":
            return self.module.Redlock(key=self.name, masters=set(self.servers), auto_release_time=seconds)
        if self.client == "redis_py":
            return self.module.Lock(self.servers[0], self.name, timeout=seconds, thread_local=False)
        return self.module.Lock(self.servers[0], self.name, expire=seconds)


# The number of masters of each client.
SIZES = {"redis_py": 1, "redlock": 5, "pottery": 5, "redis_lock": 1}

each = pytest.mark.parametrize("client", list(SIZES))


@pytest.fixture
def parties(implementation: Any, own_masters: list[str], name: str) -> Iterator[Callable[[str, str], Party]]:
    servers = [redis.Redis.from_url(url) for url in own_masters]
    yield lambda client, whose: Party(client, whose, servers[: SIZES[client]], name)
    for server in servers:
        server.close()


def delete_elsewhere(servers: list[Any], key: str) -> None:
    """Delete a key from another process."""
    program = "import redis, sys\n[redis.Redis.from_url(url).delete(sys.argv[1]) for url in sys.argv[2:]]"
    urls = [
        "redis://{host}:{port}".format(**server.connection_pool.connection_kwargs)
        if "host" in server.connection_pool.connection_kwargs
        else "unix://" + server.connection_pool.connection_kwargs["path"]
        for server in servers
    ]
    subprocess.run([sys.executable, "-c", program, key, *urls], check=True)


def on_each(call: Callable[[Any, str], object]) -> Callable[[list[Any], str], None]:
    def run(servers: list[Any], key: str) -> None:
        for server in servers:
            call(server, key)

    return run


# The ways in which users free a key by hand.
DELETIONS = {
    "DEL": on_each(lambda server, key: server.delete(key)),
    "UNLINK": on_each(lambda server, key: server.unlink(key)),
    "FLUSHDB": on_each(lambda server, key: server.flushdb()),
    "PEXPIRE": on_each(lambda server, key: server.pexpire(key, 1)),
    "another process": delete_elsewhere,
}


def watches(servers: list[Any], key: str) -> bool:
    """Return whether a waiter of this process watches the key."""
    return key.encode() in clients.client_of(servers)._quorum.queues.watches.by_key


# --- the tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["theirs", "ours"])
@each
def test_row_57_a_waiter_gets_a_lock_whose_key_was_deleted_before_it_asked(
    client: Any, whose: str, parties: Callable[[str, str], Party]
) -> None:
    party = parties(client, whose)
    held = party.hold()
    DELETIONS["DEL"](party.servers, party.key)
    assert party.wait(SOON)
    assert held is not None


@pytest.mark.parametrize("deletion", list(DELETIONS))
@each
def test_row_57_a_waiter_is_woken_when_the_key_is_deleted(
    client: Any, deletion: Any, parties: Callable[[str, str], Party], no_backstop: None
) -> None:
    party = parties(client, "ours")
    held = party.hold()
    waiting = in_thread(lambda: party.wait(PATIENCE))
    await_true(lambda: watches(party.servers, party.key), SOON)
    DELETIONS[deletion](party.servers, party.key)
    assert waiting.result(SOON)
    assert held is not None


@pytest.mark.parametrize("deletion", list(DELETIONS))
def test_row_57_a_waiter_without_pushes_polls_the_key_again(
    deletion: Any,
    parties: Callable[[str, str], Party],
    monkeypatch: pytest.MonkeyPatch,
    own_masters: list[str],
    name: str,
) -> None:
    monkeypatch.setattr(clients, "ThreadsClient", partial(clients.ThreadsClient, wakeups="poll"))
    # The socket_timeout makes another client of ours.
    with redis.Redis.from_url(own_masters[0], socket_timeout=6) as server:
        party = Party("redis_py", "ours", [server], name)
        held = party.hold()
        waiting = in_thread(lambda: party.wait(PATIENCE))
        await_true(lambda: name.encode() in clients.client_of([server])._quorum.queues.by_key, SOON)
        DELETIONS[deletion]([server], party.key)
        assert waiting.result(SOON)
        assert held is not None


def test_row_57_a_holder_whose_key_was_deleted_has_lost_the_lock(parties: Callable[[str, str], Party]) -> None:
    party = parties("redis_py", "ours")
    first = party.hold()
    DELETIONS["DEL"](party.servers, party.key)
    second = party._lock(30)
    assert second.acquire(blocking_timeout=SOON)
    assert not first.owned()
    with pytest.raises(LockNotOwnedError):
        first.release()
    assert second.owned()
    second.release()


def test_row_57_waiters_behind_the_first_get_the_lock_too(parties: Callable[[str, str], Party]) -> None:
    party = parties("redis_py", "ours")
    held = party.hold()
    got: list[Any] = []

    def cycle() -> None:
        lock = party._lock(30)
        assert lock.acquire(blocking_timeout=PATIENCE)
        got.append(lock)
        lock.release()

    waiting = [in_thread(cycle) for _ in range(8)]
    await_true(lambda: watches(party.servers, party.key), SOON)
    DELETIONS["DEL"](party.servers, party.key)
    for call in waiting:
        call.result(SOON)
    assert len(got) == 8
    assert not party.servers[0].exists(party.key)
    assert held is not None


def looks(server: Any) -> int:
    return int(server.info("commandstats").get("cmdstat_pttl", {}).get("calls", 0))


def test_row_57_a_change_that_keeps_the_key_leaves_the_lock_to_its_holder(
    parties: Callable[[str, str], Party], name: str
) -> None:
    party = parties("redis_py", "ours")
    server = party.servers[0]
    held = party.hold()
    waiting = in_thread(lambda: party.wait(PATIENCE))
    await_true(lambda: watches(party.servers, party.key), SOON)
    for seconds in (7200, 1800, 3600):
        before = looks(server)
        server.expire(party.key, seconds)
        # The waiter has confirmed the key.
        await_true(partial(lambda before: looks(server) >= before + 2, before), SOON)
        await_true(lambda: watches(party.servers, party.key), SOON)
    assert held.owned()
    assert not waiting.done()
    held.release()
    assert waiting.result(SOON)


def test_row_57_a_watching_waiter_gets_the_lock_when_this_process_releases_it(
    parties: Callable[[str, str], Party], no_backstop: None
) -> None:
    party = parties("redis_py", "ours")
    held = party.hold()
    waiting = in_thread(lambda: party.wait(PATIENCE))
    await_true(lambda: watches(party.servers, party.key), SOON)
    held.release()
    assert waiting.result(SOON)


@each
def test_row_57_a_waiter_gets_the_lock_of_a_collected_object_whose_key_is_deleted(
    client: Any, parties: Callable[[str, str], Party]
) -> None:
    party = parties(client, "ours")
    party.hold()
    gc.collect()
    DELETIONS["DEL"](party.servers, party.key)
    assert party.wait(SOON)


def test_row_57_a_waiter_still_watches_the_key_after_the_holding_object_is_collected(
    parties: Callable[[str, str], Party],
) -> None:
    party = parties("redis_py", "ours")
    held = party.hold()
    waiting = in_thread(lambda: party.wait(PATIENCE))
    await_true(lambda: watches(party.servers, party.key), SOON)
    del held
    gc.collect()
    assert not waiting.done()
    DELETIONS["DEL"](party.servers, party.key)
    assert waiting.result(SOON)


def test_row_57_no_state_is_kept_for_collected_locks(parties: Callable[[str, str], Party], name: str) -> None:
    party = parties("redis_py", "ours")
    server = party.servers[0]
    for number in range(500):
        assert redis_py.Lock(server, f"{name}-{number}", timeout=3600).acquire(blocking=False)
    gc.collect()
    heads = clients.client_of(party.servers)._quorum.queues.heads
    assert not [key for key in heads if key.startswith(name.encode())]
    # The server still has the key.
    assert not redis_py.Lock(server, f"{name}-7", timeout=5).acquire(blocking=False)


def test_row_57_a_token_that_was_read_releases_the_lock_after_its_object_is_collected(
    parties: Callable[[str, str], Party],
) -> None:
    party = parties("redis_py", "ours")
    held = party.hold()
    token = held.local.token
    del held
    gc.collect()
    other = party._lock(30)
    other.local.token = token
    other.release()
    assert not party.servers[0].exists(party.key)


# --- the same for asyncio -----------------------------------------------------------------------------

HoldAndWait = tuple[Callable[[], Any], Callable[[float], Any]]


def of_redis_py(whose: str, servers: list[Any], name: str) -> HoldAndWait:
    kind = redis.asyncio.lock.Lock if whose == "theirs" else redis_py.AsyncLock

    async def hold() -> Any:
        lock = kind(servers[0], name, timeout=3600)
        assert await lock.acquire()
        return lock

    return hold, lambda seconds: kind(servers[0], name, timeout=30).acquire(blocking_timeout=seconds)


def of_pottery(whose: str, servers: list[Any], name: str) -> HoldAndWait:
    kind = _module(whose, "pottery", "pottery").AIORedlock

    async def hold() -> Any:
        lock = kind(key=name, masters=set(servers), auto_release_time=3600)
        assert await lock.acquire()
        return lock

    waiter = kind(key=name, masters=set(servers), auto_release_time=30)
    return hold, lambda seconds: waiter.acquire(timeout=seconds)


def of_aioredlock(whose: str, servers: list[Any], name: str) -> HoldAndWait:
    if whose == "theirs":
        pytest.skip("it needs connections of aioredis")
    module = _module(whose, "aioredlock", "aioredlock")

    async def wait(seconds: float) -> bool:
        manager = module.Aioredlock(servers, int(seconds / 0.3) + 2)
        return bool(await manager.lock(name, 30))

    return lambda: module.Aioredlock(servers).lock(name, 3600), wait


TASKS = {
    "redis_py": (of_redis_py, "{}", 1),
    "pottery": (of_pottery, "redlock:{}", 5),
    "aioredlock": (of_aioredlock, "{}", 5),
}

each_task = pytest.mark.parametrize("client", list(TASKS))


def with_tasks(own_masters: list[str], client: str, whose: str, name: str, work: Callable[..., Any]) -> None:
    """Run `work(hold, wait, synchronous clients, asyncio clients, key)` in an event loop."""
    make, key, size = TASKS[client]
    urls = own_masters[:size]

    async def run() -> None:
        servers = [redis.Redis.from_url(url) for url in urls]
        asynchronous = [redis.asyncio.Redis.from_url(url) for url in urls]
        try:
            hold, wait = make(whose, asynchronous, name)
            await work(hold, wait, servers, asynchronous, key.format(name))
        finally:
            for asynchronous_server in asynchronous:
                await asynchronous_server.aclose()
            for server in servers:
                server.close()

    asyncio.run(run())


async def until_watched(servers: list[Any], key: str) -> None:
    async with asyncio.timeout(SOON):
        while key.encode() not in clients.async_client_of(servers)._quorum.queues.watches.by_key:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("whose", ["theirs", "ours"])
@each_task
def test_row_57_a_task_gets_a_lock_whose_key_was_deleted_before_it_asked(
    implementation: impl.Implementation, client: Any, whose: str, own_masters: list[str], name: str
) -> None:
    async def work(hold: Any, wait: Any, servers: list[Any], asynchronous: list[Any], key: str) -> None:
        held = await hold()
        DELETIONS["DEL"](servers, key)
        assert await wait(SOON)
        assert held is not None

    with_tasks(own_masters, client, whose, name, work)


@pytest.mark.parametrize("deletion", list(DELETIONS))
@each_task
def test_row_57_a_task_is_woken_when_the_key_is_deleted(
    implementation: impl.Implementation,
    client: Any,
    deletion: Any,
    own_masters: list[str],
    name: str,
    no_backstop: None,
) -> None:
    async def work(hold: Any, wait: Any, servers: list[Any], asynchronous: list[Any], key: str) -> None:
        held = await hold()
        waiting = asyncio.ensure_future(wait(PATIENCE))
        await until_watched(asynchronous, key)
        DELETIONS[deletion](servers, key)
        assert await asyncio.wait_for(waiting, SOON)
        assert held is not None

    with_tasks(own_masters, client, "ours", name, work)


@each_task
def test_row_57_a_task_gets_the_lock_of_a_collected_object_whose_key_is_deleted(
    implementation: impl.Implementation, client: Any, own_masters: list[str], name: str
) -> None:
    async def work(hold: Any, wait: Any, servers: list[Any], asynchronous: list[Any], key: str) -> None:
        await hold()
        gc.collect()
        DELETIONS["DEL"](servers, key)
        assert await wait(SOON)

    with_tasks(own_masters, client, "ours", name, work)


def test_row_57_a_watching_task_gets_the_lock_when_this_process_releases_it(
    implementation: impl.Implementation, own_masters: list[str], name: str, no_backstop: None
) -> None:
    async def work(hold: Any, wait: Any, servers: list[Any], asynchronous: list[Any], key: str) -> None:
        held = await hold()
        waiting = asyncio.ensure_future(wait(PATIENCE))
        await until_watched(asynchronous, key)
        await held.release()
        assert await asyncio.wait_for(waiting, SOON)

    with_tasks(own_masters, "redis_py", "ours", name, work)
