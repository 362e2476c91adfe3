"""The drop-in for aioredlock: the examples of its documentation, and the differences. Its distribution has no tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from support.faces import PATIENCE, ask

from redlatch import impl
from redlatch.compat import aioredlock
from redlatch.compat.aioredlock import Aioredlock, Lock, LockAcquiringError, LockError, LockRuntimeError, Sentinel


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_the_examples_of_its_documentation_work(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock(three)
        assert not await manager.is_locked(name)
        lock: Any = await manager.lock(name, lock_timeout=10)
        assert lock.valid
        assert [ask(url).get(name) for url in three] == [lock.id.encode()] * 3
        assert await manager.is_locked(name)
        assert await manager.is_locked(lock)
        assert await manager.get_active_locks() == [lock]
        with pytest.raises(LockAcquiringError):
            await Aioredlock(three, retry_count=1).lock(name, lock_timeout=10)
        await manager.extend(lock, lock_timeout=20)
        assert 10_000 < ask(three[0]).pttl(name) <= 20_000
        # An extension to 10 s shortens the validity, but never the ttl of the key (row 39).
        await lock.extend()
        assert lock._lease.remaining() < 10
        assert 10_000 < ask(three[0]).pttl(name) <= 20_000
        await manager.unlock(lock)
        assert not lock.valid
        assert not await manager.is_locked(name)
        async with await manager.lock(name) as held:
            assert held.valid is True
            await held.extend()
        lock = held
        assert lock.valid is False
        await manager.destroy()

    run(work())


def test_a_lock_without_a_timeout_is_renewed(implementation: impl.Implementation, three: list[str], name: str) -> None:
    async def work() -> None:
        manager = Aioredlock(three, internal_lock_timeout=1.5)
        lock = await manager.lock(name)
        await asyncio.sleep(2)
        assert await lock.is_locked()
        for url in three:
            ask(url).delete(name)
        # The next renewal finds the loss.
        while lock.valid:
            await asyncio.sleep(0.01)
        assert await manager.get_active_locks() == []
        with pytest.raises(RuntimeError, match="not valid"):
            await manager.extend(lock)

    run(work())


def test_an_extension_does_not_bring_back_a_deleted_key(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock(three)
        lock = await manager.lock(name, 10)
        for url in three:
            ask(url).delete(name)
        with pytest.raises(LockAcquiringError):
            await manager.extend(lock)
        assert not lock.valid
        assert not any(ask(url).exists(name) for url in three)

    run(work())


def test_unlocking_a_deleted_key_is_an_error_only_if_another_client_has_it(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock(three)
        lock = await manager.lock(name, 10)
        for url in three:
            ask(url).delete(name)
        await manager.unlock(lock)
        lock = await manager.lock(name, 10)
        for url in three:
            ask(url).set(name, "another", px=60_000)
        with pytest.raises(LockAcquiringError):
            await manager.unlock(lock)

    run(work())


def test_an_identifier_is_the_token_and_gets_the_lock_again(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock(three, retry_count=1)
        lock = await manager.lock(name, 10, "me")
        assert ask(three[0]).get(name) == b"me"
        again = await manager.lock(name, 20, "me")
        assert (again.id, again.valid) == ("me", True)
        assert 10_000 < ask(three[0]).pttl(name) <= 20_000
        with pytest.raises(LockAcquiringError):
            await manager.lock(name, 10, "you")
        await manager.unlock(lock)
        assert not await manager.is_locked(name)

    run(work())


def test_a_lock_that_an_identifier_gets_again_is_renewed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock(three, internal_lock_timeout=1)
        for url in three:
            ask(url).set(name, "me", px=2000)
        lock = await manager.lock(name, lock_identifier="me")
        await asyncio.sleep(3)
        assert lock.valid
        assert ask(three[0]).get(name) == b"me"
        await lock.release()

    run(work())


def test_unlocking_a_lost_lock_keeps_its_successor_active(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        # A single try asks the masters.
        manager = Aioredlock(three, retry_count=1)
        lost = await manager.lock(name, 10)
        for url in three:
            ask(url).delete(name)
        successor = await manager.lock(name, 10)
        with pytest.raises(LockAcquiringError):
            await manager.unlock(lost)
        assert await manager.get_active_locks() == [successor]
        with pytest.raises(ValueError, match="ttl"):
            await manager.extend(successor, 0.001)
        await manager.destroy()
        assert not any(ask(url).exists(name) for url in three)

    run(work())


def test_a_lock_of_another_process_is_found_extended_and_released(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def work() -> None:
        for url in three:
            ask(url).set(name, "theirs", px=60_000)
        manager = Aioredlock(three)
        lock = await manager.get_lock(name, "theirs")
        assert isinstance(lock, Lock)
        assert (lock.valid, 58 <= (lock.lock_timeout or 0) <= 60) == (True, True)
        with pytest.raises(LockAcquiringError):
            await manager.get_lock(name, "mine")
        await lock.extend()
        await lock.release()
        assert not await manager.is_locked(name)

    run(work())


def test_too_few_servers_raise_an_error_of_their_own(
    implementation: impl.Implementation, three: list[str], closed_ports: Callable[[int], list[str]], name: str
) -> None:
    async def work() -> None:
        manager = Aioredlock([three[0], *closed_ports(2)], retry_count=2, retry_delay_max=0.1)
        with pytest.raises(LockRuntimeError) as caught:
            await manager.lock(name, 10)
        assert isinstance(caught.value, LockError)
        with pytest.raises(LockRuntimeError):
            await manager.is_locked(name)
        with pytest.raises(LockRuntimeError):
            await manager.get_lock(name, "theirs")
        assert not ask(three[0]).exists(name)
        one_down = Aioredlock([*three[:2], *closed_ports(1)])
        async with await one_down.lock(name, 10):
            pass

    run(work())


def test_a_release_wakes_a_waiter(
    implementation: impl.Implementation, three: list[str], name: str, no_backstop: None
) -> None:
    async def work() -> None:
        manager = Aioredlock(three, retry_count=1000)
        lock = await manager.lock(name, 60)
        waiting = asyncio.create_task(manager.lock(name, 60))
        await asyncio.sleep(0.1)
        await manager.unlock(lock)
        await manager.unlock(await waiting)

    run(work())


def test_connections_of_every_form_are_accepted(implementation: impl.Implementation, url: str, name: str) -> None:
    port = int(url.rpartition(":")[2])
    theirs = redis.asyncio.Redis.from_url(url)
    forms = [("127.0.0.1", port), {"host": "127.0.0.1", "port": port, "minsize": 2}, url, theirs]

    async def work() -> None:
        for form in forms:
            manager = Aioredlock([form])
            async with await manager.lock(name, 10):
                assert ask(url).exists(name)
            assert (await manager.lock(name, 10, "x")).id == "x"
            await (await manager.get_lock(name, "x")).release()
        await theirs.aclose()

    run(work())
    manager = Aioredlock([{"host": "h", "password": "secret"}, "redis://:secret@h:1/2", "redis://h/2?password=secret"])
    assert "secret" not in repr(manager)


@pytest.mark.parametrize(
    "options", [{"retry_count": 0}, {"retry_delay_min": 0}, {"retry_delay_max": -1}, {"internal_lock_timeout": 0}]
)
def test_numbers_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="must be greater"):
        Aioredlock(**options)


def test_a_timeout_of_zero_is_refused(implementation: impl.Implementation, three: list[str], name: str) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match="greater than 0"):
            await Aioredlock(three).lock(name, 0)
        with pytest.raises(TypeError):
            await Aioredlock(three).is_locked(5)  # type: ignore[arg-type]

    run(work())


def test_a_sentinel_names_its_master() -> None:
    for made in (
        Sentinel(("localhost", 26379), master="leader", db=3),
        Sentinel("redis://localhost:26379/3?master=leader"),
        Sentinel({"host": "localhost", "port": 26379, "master": "leader", "db": 3}),
        Sentinel([("localhost", 26379)], "leader", db=3),
    ):
        assert (made.connection, made.master) == ([("localhost", 26379)], "leader")
        pool: Any = made._settings().connection_pool
        assert (pool.service_name, pool.connection_kwargs["db"]) == ("leader", 3)
    with pytest.raises(aioredlock.SentinelConfigError):
        Sentinel(("localhost", 26379))
    with pytest.raises(aioredlock.SentinelConfigError):
        Sentinel(5, master="leader")


def test_threads_with_loops_of_their_own_do_not_share_connections(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    manager, errors = Aioredlock(three, retry_count=1000), []

    def work() -> None:
        async def cycles() -> None:
            for _ in range(20):
                async with await manager.lock(name, 60):
                    pass

        try:
            run(cycles())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
