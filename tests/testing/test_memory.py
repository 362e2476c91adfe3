"""Clients in memory: each face, and what a test can do to the masters."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, in_thread

from redlatch import (
    ClientClosed,
    ConfigurationError,
    Guard,
    Handoff,
    LockBusy,
    LockLost,
    LockTimeout,
    NotOwned,
    QuorumUnavailable,
    WrongLoop,
    impl,
)
from redlatch.loss import KEY_GONE
from redlatch.testing import AsyncMemoryClient, MemoryClient, MemoryMasters
from testing.both import Both, done, enter, leave


def test_a_timeout_takes_virtual_time_only(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        client.hold("sku:42", owner="batch:7")
        began = client.memory.now()
        assert not await done(client.lock("sku:42").acquire(timeout=500))
        assert client.memory.now() - began == pytest.approx(500, abs=0.01)
        with pytest.raises(LockTimeout, match="held by batch:7 for 1000 s") as caught:
            await enter(client.lock("sku:42", timeout=500))
        assert caught.value.holder is not None and caught.value.holder.owner == "batch:7"
        assert client.memory.now() - began == pytest.approx(1000, abs=0.02)
        await done(client.close())

    both.run(scenario())


def test_time_stands_still_while_nobody_waits(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock = client.lock("a", ttl=10)
        await done(lock.acquire())
        for number in range(200):
            other = client.lock(str(number))
            await enter(other)
            await leave(other)
        assert lock.remaining() == pytest.approx(9.898, abs=0.001)

    both.run(scenario())


def test_a_lock_ends_with_its_ttl(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock, other = client.lock("a", ttl=10), both.memory(client.memory).lock("a")
        await done(lock.acquire())
        await done(client.advance(9.5))
        lock.check()
        assert not await done(other.acquire(blocking=False))
        await done(client.advance(1))
        with pytest.raises(LockLost):
            lock.check()
        assert await done(other.acquire(blocking=False))

    both.run(scenario())


def test_a_waiter_gets_a_lock_when_its_ttl_is_over(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        held = client.hold("a", ttl=30)
        began = client.memory.now()
        assert await done(client.lock("a").acquire())
        assert client.memory.now() - began == pytest.approx(30, abs=0.1)
        assert held.remaining() == 0
        held.release()

    both.run(scenario())


def test_a_renewed_lock_outlives_its_ttl(both: Both) -> None:
    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.lock("a", ttl=3, auto_renew=True, on_lost=lambda *_: lost.append(1))
        await done(lock.acquire())
        await done(client.advance(100))
        lock.check()
        assert not await done(both.memory(client.memory).lock("a").acquire(blocking=False))
        await done(lock.release())
        await done(client.advance(100))
        assert not lost

    both.run(scenario())


def test_max_hold_ends_a_renewal_at_its_time(both: Both) -> None:
    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.lock(
            "a", ttl=3, auto_renew=True, max_hold=20, on_lost=lambda _, why: lost.append((client.memory.now(), why))
        )
        await done(lock.acquire())
        began = client.memory.now()
        await done(client.advance(60))
        [(at, why)] = lost
        assert at - began == pytest.approx(20, abs=0.1)
        assert "max_hold" in why

    both.run(scenario())


@pytest.mark.parametrize("renewed", [True, False])
def test_a_loss_is_learnt_at_once_by_a_lock_that_asks_for_it(both: Both, renewed: bool) -> None:
    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.lock("a", ttl=9, auto_renew=renewed, on_lost=lambda lock, why: lost.append((lock, why)))
        await done(lock.acquire())
        await done(client.advance(1))
        client.lose(lock)
        assert await done(client.lock("a").locked()) is False
        await done(client.advance(0.01))
        [(found, why)] = lost
        assert found is lock and lock.lost.is_set()
        assert why == KEY_GONE

    both.run(scenario())


@pytest.mark.parametrize("which", ["its own", "by name", "of another client"])
@pytest.mark.parametrize("after", [0, 0.02, 1])
def test_row_69_a_loss_is_learnt_without_any_time(both: Both, which: str, after: float) -> None:
    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.lock("a", ttl=9, on_lost=lambda lock, why: lost.append((lock, why)))
        for round in (1, 2, 3):
            await done(lock.acquire())
            await done(client.advance(after))
            event, now = lock.lost, client.memory.now()
            assert not event.is_set()
            loser = both.memory(client.memory) if which == "of another client" else client
            loser.lose(lock if which == "its own" else "a")
            assert lost == [(lock, KEY_GONE)] * round and event.is_set()
            assert client.memory.now() == pytest.approx(now, abs=1e-3)
            with pytest.raises(LockLost, match="its key is gone"):
                lock.check()
            with pytest.raises(LockLost):
                await done(lock.release())

    both.run(scenario())


@pytest.mark.parametrize("renewed", [True, False])
def test_row_69_who_asks_only_after_the_loss_learns_it_at_once_too(both: Both, renewed: bool) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock, other = client.lock("a", auto_renew=renewed), client.lock("b")
        await done(lock.acquire())
        await done(other.acquire())
        client.lose(lock)
        assert lock.lost.is_set() and not other.lost.is_set()

    both.run(scenario())


def test_row_69_a_thread_that_waits_for_the_loss_is_woken() -> None:
    client = MemoryClient()
    lock = client.lock("a")
    lock.acquire()
    client.lose(lock)
    assert lock.lost.wait(2)


def test_row_69_a_task_is_cancelled_by_the_loss_and_another_one_waits_for_it() -> None:
    async def main() -> None:
        client = AsyncMemoryClient()
        lock = client.lock("a", cancel_on_loss=True)
        with pytest.raises(LockLost):
            async with lock:
                waiting = asyncio.ensure_future(lock.lost.wait())
                client.lose(lock)
                await asyncio.sleep(PATIENCE)
        assert await asyncio.wait_for(waiting, PATIENCE)

    asyncio.run(main())


def test_row_69_time_stands_still_in_a_sleep_unless_somebody_waits_in_a_call() -> None:
    client = MemoryClient()
    before = client.memory.now()
    time.sleep(0.05)
    assert client.memory.now() == pytest.approx(before, abs=1e-3)
    holder = client.lock("a")
    holder.acquire()
    waiting = in_thread(lambda: client.lock("a").acquire(timeout=0.1))
    # It is in its call from now on.
    await_true(lambda: client.stats().waiting)
    time.sleep(0.3)
    assert waiting.result(PATIENCE) is False
    assert 0.1 <= client.memory.now() - before < PATIENCE


def test_the_loss_of_a_write_lock_is_learnt_at_once(both: Both) -> None:
    """Its own key is the second one of its script."""

    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.rw_lock("a", ttl=9, on_lost=lambda lock, why: lost.append(why)).write()
        await done(lock.acquire())
        await done(client.advance(1))
        client.lose(lock)
        await done(client.advance(0.01))
        assert lost == [KEY_GONE]

    both.run(scenario())


@pytest.mark.parametrize("renewed", [True, False])
def test_a_loss_is_learnt_by_the_next_renewal_or_at_the_deadline(both: Both, renewed: bool) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock = client.lock("a", ttl=9, auto_renew=renewed)
        await done(lock.acquire())
        client.lose(lock)
        await done(client.advance(2.5))
        assert lock.remaining() > 0
        await done(client.advance(1))
        assert (lock.remaining() > 0) != renewed
        await done(client.advance(6))
        assert not lock.remaining()

    both.run(scenario())


def test_a_loss_is_logged_without_on_lost(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock = client.lock("a", auto_renew=True)
        await done(lock.acquire())
        client.lose(lock)
        await done(client.advance(10))

    with caplog.at_level(logging.WARNING, "redlatch"):
        both.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["lock 'a' was lost: a quorum has forgotten it"]


def test_on_lost_may_use_the_client_and_may_wait() -> None:
    client, won = MemoryClient(), []
    client.hold("other", ttl=20)
    lock = client.lock("a", auto_renew=True, on_lost=lambda *_: won.append(client.lock("other").acquire(timeout=30)))
    lock.acquire()
    client.lose(lock)
    client.advance(10)
    assert won == [True]


@pytest.mark.parametrize("kind", ["fair_lock", "rlock", "semaphore", "read", "multi_lock", "fence"])
def test_the_masters_lose_a_lock_of_any_kind(both: Both, kind: str) -> None:
    def make(client: Any) -> Any:
        if kind == "semaphore":
            return client.semaphore("a", 2)
        if kind == "read":
            return client.rw_lock("a").read()
        if kind == "fence":
            return client.lock("a", fence=True)
        return client.multi_lock(["a", "b"]) if kind == "multi_lock" else getattr(client, kind)("a")

    async def scenario() -> None:
        client = both.memory()
        lock, beside = make(client), make(both.memory(client.memory))
        shared = kind in ("semaphore", "read")
        await done(lock.acquire())
        assert await done(beside.acquire(blocking=False)) == shared
        client.lose(lock)
        # Other holders keep their places.
        await done(beside.release() if shared else beside.acquire(blocking=False))
        with pytest.raises(LockLost):
            await done(lock.release())

    both.run(scenario())


def test_the_masters_lose_all_holders_of_a_name(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory(prefix="app:")
        await done(client.lock("a").acquire())
        await done(client.lock("ab").acquire())
        await done(client.semaphore("s", 1).acquire())
        for name in ("a", "s"):
            client.lose(name)
            with pytest.raises(NotOwned, match=f"nobody holds '{name}'"):
                client.lose(name)
        other = both.memory(client.memory, prefix="app:")
        assert await done(other.lock("a").acquire(blocking=False))
        assert await done(other.semaphore("s", 1).acquire(blocking=False))
        assert not await done(other.lock("ab").acquire(blocking=False))

    both.run(scenario())


def test_a_lock_that_is_not_held_cannot_be_lost(both: Both) -> None:
    client = both.memory()
    for lock in (client.lock("a"), client.rlock("a"), client.multi_lock(["a", "b"])):
        with pytest.raises(NotOwned):
            client.lose(lock)
    for other in (5, None, client.rw_lock("a")):
        with pytest.raises(TypeError, match="a lock or a name is needed"):
            client.lose(other)


def test_somebody_else_holds_a_name_until_the_release(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        with client.hold("a", owner="batch:7") as held:
            await done(client.advance(1000))
            holder = await done(client.lock("a").holder())
            assert (holder.owner, holder.held_for) == ("batch:7", 1000.0)
            assert held.remaining() > 0
            with pytest.raises(LockBusy):
                client.hold("a")
        began = client.memory.now()
        assert await done(client.lock("a").acquire(timeout=5))
        assert client.memory.now() - began < 0.01

    both.run(scenario())


def test_without_a_quorum_calls_fail_at_once_and_keys_stay(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        lock, short = client.lock("a", ttl=10), client.lock("b", ttl=2, auto_renew=True)
        await done(lock.acquire())
        await done(short.acquire())
        began = client.memory.now()
        with client.break_quorum():
            with pytest.raises(QuorumUnavailable, match="of 3 masters 2 failed"):
                await done(client.lock("c").acquire(timeout=5))
            assert not client.health().available
            assert client.memory.now() - began < 0.01
            await done(client.advance(3))
        # No new connection has shown yet that its master has the key.
        assert (client.health().available, client.health().at_risk) == (True, 1)
        await done(lock.extend())
        assert client.health().ready
        assert await done(lock.owned())
        with pytest.raises(LockLost):
            short.check()
        assert await done(client.lock("c").acquire(blocking=False))

    both.run(scenario())


def test_a_lost_quorum_is_ridden_out_for_the_patience_in_virtual_time(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory(patience=20)
        began = client.memory.now()
        with client.break_quorum():
            with pytest.raises(QuorumUnavailable):
                await done(client.lock("a").acquire(timeout=300))
            assert client.memory.now() - began == pytest.approx(20, abs=0.6)
            with pytest.raises(QuorumUnavailable):
                await done(client.multi_lock(["b", "c"]).acquire(timeout=5))
            assert client.memory.now() - began == pytest.approx(25, abs=1.2)
            with pytest.raises(QuorumUnavailable):
                await done(client.lock("d").acquire(blocking=False))
            assert client.memory.now() - began == pytest.approx(25, abs=1.2)

    both.run(scenario())


def test_a_client_can_begin_without_a_quorum(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        with client.break_quorum(), pytest.raises(QuorumUnavailable):
            await done(client.lock("a").acquire())
        assert await done(client.lock("a").acquire(blocking=False))

    both.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"guard": None},
        {"guard": Guard(max_ttl=3600), "ttl": 900.0},
        {"wakeups": "poll"},
        {"scripts": "watch"},
        {"owner": ""},
        {"handoff": Handoff(count=0), "max_waiters": 3, "wait_release": False},
    ],
    ids=str,
)
def test_the_options_of_a_client_work(both: Both, options: dict[str, Any]) -> None:
    async def scenario() -> None:
        client = both.memory(prefix="app:", **options)
        lock = client.lock("a")
        held, began = client.hold("a", ttl=40), client.memory.now()
        assert not await done(lock.acquire(timeout=5))
        await enter(lock)
        assert client.memory.now() - began == pytest.approx(40, abs=1.1)
        assert not held.remaining()
        await leave(lock)
        assert await done(client.lock("a").acquire(blocking=False))

    both.run(scenario())


def test_a_single_master_works_alike(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory(1)
        assert await done(client.lock("a").acquire())
        with client.break_quorum(), pytest.raises(QuorumUnavailable):
            await done(client.lock("b").acquire())
        assert not await done(both.memory(client.memory).lock("a").acquire(blocking=False))

    both.run(scenario())


def test_each_run_sees_the_same_tokens_fences_and_times(both: Both) -> None:
    async def scenario() -> list[Any]:
        client = both.memory(owner="me")
        lock = client.lock("a", fence=True)
        await done(lock.acquire())
        await done(client.advance(7))
        held = client.hold("b")
        assert not await done(client.lock("b").acquire(timeout=3))
        held.release()
        return [lock.token, lock.fence, lock.remaining(), client.memory.now()]

    assert both.run(scenario()) == both.run(scenario())


def test_a_wait_that_nobody_would_end_is_an_error(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        client.hold("a")
        with pytest.raises(RuntimeError, match="nobody would ever go on"):
            await done(client.lock("a").acquire())
        assert await done(client.lock("b").acquire())

    both.run(scenario())


def test_a_long_batch_is_no_trouble(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        names = [f"name-{number:05}-{'x' * 200}" for number in range(3000)]
        locks = await done(client.acquire_many(names))
        assert all(locks)
        assert all(await done(client.release_many(locks)))

    both.run(scenario())


def test_both_faces_share_masters_and_time() -> None:
    client = MemoryClient()

    async def scenario() -> None:
        other = AsyncMemoryClient(client.memory)
        lock = client.lock("a", ttl=10)
        assert lock.acquire()
        assert not await other.lock("a").acquire(timeout=5)
        assert lock.remaining() == pytest.approx(4.9, abs=0.1)
        lock.release()
        async with other.lock("a"):
            assert not client.lock("a").acquire(blocking=False)
        await other.close()

    Both("asyncio").run(scenario())


def test_clearing_frees_all_names(both: Both) -> None:
    async def scenario() -> None:
        client = both.memory()
        await done(client.lock("a").acquire())
        await done(client.semaphore("s", 1).acquire())
        client.memory.clear()
        other = both.memory(client.memory)
        assert await done(other.lock("a").acquire(blocking=False))
        assert await done(other.semaphore("s", 1).acquire(blocking=False))

    both.run(scenario())


def test_a_closed_client_can_do_nothing_and_its_losses_are_reported(both: Both) -> None:
    async def scenario() -> None:
        client, lost = both.memory(), []
        lock = client.lock("a", ttl=10, on_lost=lambda _, why: lost.append(why))
        await done(lock.acquire())
        await done(client.close())
        with pytest.raises(ClientClosed):
            await done(client.lock("b").acquire())
        await done(both.memory(client.memory).advance(20))
        assert len(lost) == 1

    both.run(scenario())


def test_an_asyncio_client_belongs_to_one_loop(implementation: impl.Implementation) -> None:
    client, both = AsyncMemoryClient(), Both("asyncio")
    both.run(client.connect())
    with pytest.raises(WrongLoop):
        both.run(client.connect())
    client.drop()


@pytest.mark.parametrize("count", [0, 16, True, "3", None])
def test_wrong_masters_are_refused(both: Both, count: Any) -> None:
    with pytest.raises(ConfigurationError, match="masters: "):
        both.memory(count)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_goes_forward_only(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="seconds: "):
        MemoryClient().advance(seconds)


def test_what_is_printed_says_what_it_is() -> None:
    client = MemoryClient(1)
    assert repr(client) == "<MemoryClient of memory-0:6379 (not connected)>"
    assert repr(client.memory) == "<MemoryMasters memory-0:6379>"
    assert repr(client.hold("a")).startswith("<Held <Lock 'a' held for ")
    assert isinstance(client.memory, MemoryMasters)
