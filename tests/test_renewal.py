"""Renewal on real masters, its end, and the report of a loss."""

from __future__ import annotations

import _thread
import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from support.faces import PATIENCE, Face, Faced, ask, await_true, in_thread, wins
from support.masters import Keys
from support.proxy import Proxy
from support.selection import on_one_face

from redlatch import (
    AsyncClient,
    Client,
    ClientClosed,
    ClientUnusable,
    Handoff,
    LockLost,
    QuorumUnavailable,
    WrongLoop,
    impl,
)
from redlatch.drivers import connections, lifetime
from redlatch.locks.lock import BaseLock
from redlatch.locks.reentrant import BaseRLock
from redlatch.locks.with_statement import LossScope
from redlatch.quorum.upkeep_schedule import UpkeepSchedule
from redlatch.testing import embedded

# A ttl that a test can outlive.
SHORT = 0.4
# A ttl for renewed locks: each renewal leaves a second to a process that is stopped.
RENEWED = 1.5


def passed(seconds: float) -> None:
    """Let the given seconds pass."""
    began = time.monotonic()
    await_true(lambda: time.monotonic() - began > seconds)


def delete(urls: list[str], name: str) -> None:
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as master:
            master.delete(name)


# --- renewal ------------------------------------------------------------------------------------------------


def test_a_renewed_lock_outlives_its_ttl(connect: Face, three: list[str], name: str, keys: Keys) -> None:
    lock = connect(three, attempt_timeout=PATIENCE).lock(name, ttl=RENEWED, auto_renew=True)
    assert lock.acquire()
    passed(RENEWED)
    assert lock.remaining() > 0
    assert len(keys(three, name)) == 3
    lock.check()
    lock.release()
    assert not keys(three, name)


def test_row_9_nothing_is_renewed_once_the_lock_is_released(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str, keys: Keys
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=RENEWED, auto_renew=True)
    assert lock.acquire()
    await_true(lambda: extensions(before[0], name) > 1)
    lock.release()
    # The release followed everything that was sent before.
    await_true(lambda: not keys(three, name))
    sent = extensions(before[0], name)
    # The next renewal would have been due.
    passed(RENEWED / 2)
    assert extensions(before[0], name) == sent
    assert not keys(three, name)


def extensions(proxy: Any, name: str) -> int:
    """Count the extensions of that key with the ttl RENEWED, by script or by transaction."""
    return sum(proxy.count(command, name, str(int(RENEWED * 1000))) for command in ("EVALSHA", "PEXPIRE"))


def test_row_8_renewals_that_fail_are_tried_again_until_the_old_deadline(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=0.5)
    lock = client.lock(name, ttl=3.0, auto_renew=True)
    assert lock.acquire()
    deadline = lock.deadline_ns
    await_true(lambda: all(proxy.greeted() for proxy in before))
    for proxy in before:
        proxy.replies.clear()
    await_true(lambda: all(proxy.count(b"EVALSHA", name) > 1 for proxy in before))
    for proxy in before:
        proxy.replies.set()
    await_true(lambda: lock.deadline_ns > deadline)
    assert not lock.lost.is_set()
    lock.release()


def test_a_renewed_lock_ends_with_max_hold(connect: Face, three: list[str], name: str) -> None:
    told = []
    options = {"auto_renew": True, "max_hold": 1.5, "on_lost": lambda lock, why: told.append(why)}
    lock = connect(three, attempt_timeout=PATIENCE).lock(name, ttl=1.0, **options)
    assert lock.acquire()
    began = time.monotonic()
    await_true(lambda: told)
    assert lock.lost.is_set()
    assert 1.0 < time.monotonic() - began
    assert not lock.remaining()
    assert "its max_hold of" in told[0]


def test_row_6_a_renewal_never_brings_a_lost_key_back(connect: Face, three: list[str], name: str, keys: Keys) -> None:
    lock = connect(three, attempt_timeout=PATIENCE).lock(name, ttl=SHORT, auto_renew=True)
    assert lock.acquire()
    delete(three, name)
    await_true(lambda: lock.lost.is_set())
    passed(SHORT)
    assert not keys(three, name)


@on_one_face("asyncio")
def test_a_renewal_is_not_delayed_by_a_lock_that_expires_a_moment_later(
    connect: Face, three: list[str], name: str
) -> None:
    """Before the fix, the search for renewals that are due soon found this lock again and again, and never ended."""
    client = connect(three, attempt_timeout=PATIENCE)
    told: list[float] = []
    renewed = client.lock(f"{name}-renewed", ttl=RENEWED, auto_renew=True)
    other: Faced = client.lock(
        f"{name}-other", ttl=RENEWED / 3 + 0.02, on_lost=lambda *what: told.append(other.remaining())
    )
    assert renewed.acquire()
    assert other.acquire()
    await_true(lambda: bool(told))
    passed(RENEWED)
    assert renewed.remaining() > 0
    renewed.release()


# --- a release that was refused, or that never began (row 45) -------------------------------------------------


async def outlives_its_ttl(lock: Any) -> None:
    """Wait until two renewals have moved the deadline of the lock."""
    for _ in range(2):
        deadline = lock.deadline_ns
        async with asyncio.timeout(PATIENCE):
            while lock.deadline_ns <= deadline:
                assert lock.remaining() > 0, "it is not renewed"
                await asyncio.sleep(0.005)


def test_row_45_a_release_that_is_cancelled_before_it_begins_keeps_the_renewal(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.lock(name, ttl=RENEWED, auto_renew=True)
            assert await lock.acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lock.release(), 0)
            await outlives_its_ttl(lock)
            await lock.release()
            assert not await asyncio.to_thread(keys, three, name)

    asyncio.run(main())


def test_row_45_a_release_in_another_event_loop_keeps_the_renewal(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.lock(name, ttl=RENEWED, auto_renew=True)
            assert await lock.acquire()
            for wait in (True, False):
                with pytest.raises(WrongLoop):
                    await asyncio.to_thread(asyncio.run, lock.release(wait))
            await outlives_its_ttl(lock)
            await lock.release()

    asyncio.run(main())


def test_row_45_a_release_in_a_signal_handler_keeps_the_renewal(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    refused: list[BaseException] = []
    with Client([proxy.url for proxy in before], attempt_timeout=PATIENCE) as client:
        lock = client.lock(name, ttl=PATIENCE, auto_renew=True)
        assert lock.acquire()
        lost = lock.lost

        def release(*_: object) -> None:
            try:
                lock.release()
            except ClientUnusable as error:
                refused.append(error)
            for proxy in before:
                proxy.replies.set()

        former = signal.signal(signal.SIGALRM, release)
        try:
            for proxy in before:
                proxy.replies.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            # This is a call that the signal interrupts.
            client.lock(name).locked()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        assert len(refused) == 1
        # The deadline is near, so the lock is renewed at once.
        lock.extend(5.0)
        await_true(lambda: lock.remaining() > 5.0 or lost.is_set() or not lock.remaining())
        assert lock.remaining() > 0
        lock.release()


def test_an_on_lost_that_raises_cancelled_error_ends_no_other_renewal(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    def on_lost(lock: object, reason: str) -> None:
        # The result of a cancelled future raises this.
        raise asyncio.CancelledError

    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            other = client.lock(f"{name}-other", ttl=RENEWED, auto_renew=True)
            lock = client.lock(name, ttl=SHORT, on_lost=on_lost)
            assert await other.acquire()
            assert await lock.acquire()
            first = other.deadline_ns
            await lock.lost.wait()
            while other.deadline_ns == first:
                other.check()
                await asyncio.sleep(0.01)
            await other.release()

    asyncio.run(main())


def test_an_on_lost_that_raises_system_exit_is_logged_and_does_not_hide_other_expired_locks(
    implementation: impl.Implementation, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []

    def on_lost(lock: Any, reason: str) -> None:
        told.append(lock.name)
        raise SystemExit

    with Client(three, on_lost=on_lost) as client:
        locks = client.acquire_many([f"{name}-{number}" for number in range(5)], ttl=SHORT)
        await_true(lambda: len(told) == 5)
        assert {lock.name for lock in locks if lock} == set(told)
        await_true(lambda: sum("on_lost failed" in record.message for record in caplog.records) == 5)


def test_an_on_lost_that_raises_system_exit_does_not_hide_later_losses(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    told: list[str] = []

    def on_lost(lock: object, reason: str) -> None:
        told.append(reason)
        raise SystemExit

    # Masters that push would report the loss before the release.
    with Client(three, on_lost=on_lost, wakeups="poll") as client:
        for number in range(3):
            lock = client.lock(name, ttl=PATIENCE)
            assert lock.acquire()
            delete(three, name)
            lock.release(wait=False)
            await_true(partial(lambda number: len(told) == number + 1, number))


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_row_45_the_loss_of_a_lock_is_reported_although_its_release_was_refused(
    connect: Face, three: list[str], name: str, many: bool
) -> None:
    told: list[str] = []
    client = connect(three, on_lost=lambda lock, reason: told.append(reason))
    (lock,) = client.acquire_many([name], ttl=SHORT)
    lost = lock.lost
    client.close()
    with pytest.raises(ClientClosed):
        if many:
            client.release_many([lock])
        else:
            Faced(lock, client._start).release()
    await_true(lost.is_set)
    await_true(lambda: len(told) == 1)


def test_row_45_the_loss_of_a_multi_lock_is_reported_although_its_release_was_refused(
    connect: Face, three: list[str], name: str
) -> None:
    told: list[str] = []
    client = connect(three, on_lost=lambda lock, reason: told.append(reason))
    lock = client.multi_lock([name, name + "-b"], ttl=SHORT)
    assert lock.acquire()
    client.close()
    with pytest.raises(ClientClosed):
        lock.release()
    await_true(lambda: len(told) == 2)


def test_row_45_a_lock_is_not_renewed_while_its_release_waits_for_replies(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=RENEWED, auto_renew=True)
    lost = lock.lost
    assert lock.acquire()
    for proxy in before:
        proxy.replies.clear()
    sent = extensions(before[0], name)
    call = lock.start("release")
    await_true(lambda: not lock.token)
    passed(RENEWED)
    # One extension may have been in transit when the release began.
    assert extensions(before[0], name) - sent <= 1
    for proxy in before:
        proxy.replies.set()
    call.result(PATIENCE)
    assert not lost.is_set()


@on_one_face("threads")
def test_row_45_a_lease_that_was_passed_on_and_came_back_has_a_new_max_hold(
    connect: Face, three: list[str], name: str
) -> None:
    """The lease comes back with its old token, so the token does not show that the first renewal has ended."""
    client = connect(three, handoff=Handoff(tenure=PATIENCE), attempt_timeout=PATIENCE)
    lock, other = client.lock(name, ttl=1.0, auto_renew=True, max_hold=2.0), client.lock(name, ttl=1.0)
    assert lock.acquire()
    token = lock.token
    passed(1.2)
    for one, next_one in ((lock, other), (other, lock)):
        call = next_one.start("acquire")
        await_true(lambda: bool(client.raw._quorum.queues.by_key))
        one.release()
        assert call.result(PATIENCE)
    assert lock.token == token
    passed(1.4)
    assert lock.remaining() > 0
    lock.release()


# --- loss ---------------------------------------------------------------------------------------------------


def test_row_72_a_check_reads_the_clock_and_not_the_event(
    connect: Face, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever sets the event may be late: a stopped thread, or an event loop that is blocked."""
    monkeypatch.setattr(BaseLock, "_mark_lost", lambda lock, term: None)
    lock = connect(three).lock(name, ttl=0.2)
    assert lock.acquire()
    event = lock.lost
    await_true(lambda: not lock.remaining())
    with pytest.raises(LockLost, match="its validity ran out"):
        lock.check()
    assert not event.is_set()


@pytest.mark.parametrize("renewed", [True, False])
def test_a_loss_is_reported_once_by_event_callback_and_check(
    connect: Face, three: list[str], name: str, renewed: bool
) -> None:
    told: list[tuple[Any, str]] = []
    client = connect(three, attempt_timeout=PATIENCE)
    ttl = RENEWED if renewed else SHORT
    lock = client.lock(name, ttl=ttl, auto_renew=renewed, on_lost=lambda *what: told.append(what))
    assert lock.acquire()
    assert not lock.lost.is_set()
    delete(three, name)
    await_true(lambda: lock.lost.is_set())
    with pytest.raises(LockLost, match=name):
        lock.check()
    await_true(lambda: bool(told))
    with pytest.raises(LockLost):
        lock.release()
    assert [what[0] for what in told] == [lock.raw]
    assert told[0][1] == "a majority of masters reported that its key is gone"


def test_a_loss_is_reported_while_no_master_answers(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], attempt_timeout=0.05)
    lock = client.lock(name, ttl=SHORT, auto_renew=True)
    # An attempt may take longer than 0.05 s.
    await_true(lambda: wins(lock))
    for proxy in before:
        proxy.replies.clear()
    await_true(lambda: lock.lost.is_set())
    assert not lock.remaining()
    for proxy in before:
        proxy.replies.set()


def test_the_clients_callback_reports_locks_of_a_batch(connect: Face, three: list[str], name: str) -> None:
    told: list[str] = []
    client = connect(three, on_lost=lambda lock, reason: told.append(lock.name))
    locks = client.acquire_many([f"{name}-{number}" for number in range(3)], ttl=SHORT)
    assert all(locks)
    await_true(lambda: sorted(told) == [f"{name}-{number}" for number in range(3)])


def test_a_callback_that_raises_is_logged_and_other_losses_are_still_reported(
    connect: Face, three: list[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lock: Any, reason: str) -> None:
        raise ZeroDivisionError(reason)

    client = connect(three)
    locks = [client.lock(f"{name}-{number}", ttl=SHORT, on_lost=fail) for number in range(3)]
    assert all(lock.acquire() for lock in locks)
    await_true(lambda: sum("on_lost failed" in record.message for record in caplog.records) == 3)


def test_a_lock_that_is_acquired_again_after_its_loss_has_another_event(
    connect: Face, three: list[str], name: str
) -> None:
    lock = connect(three).lock(name, ttl=SHORT)
    first = lock.lost
    assert lock.acquire()
    await_true(first.is_set)
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire()
    assert lock.lost is not first
    assert not lock.lost.is_set()
    lock.release()


def test_a_lock_that_was_extended_is_lost_at_its_new_deadline(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three, attempt_timeout=PATIENCE).lock(name, ttl=SHORT)
    lost = lock.lost
    assert lock.acquire()
    lock.extend(PATIENCE)
    passed(2 * SHORT)
    assert not lost.is_set()
    lock.extend(SHORT)
    await_true(lost.is_set, PATIENCE / 2)


def test_the_event_of_a_loss_that_is_asked_for_during_the_acquire_is_set(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock, other = client.lock(name, ttl=SHORT), client.lock(name)
            assert await other.acquire()
            waiting = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0)
            lost = lock.lost
            await other.release()
            assert await waiting
            await asyncio.wait_for(lost.wait(), PATIENCE)
            with pytest.raises(LockLost):
                lock.check()

    asyncio.run(main())


@pytest.mark.parametrize("connected", [False, True])
def test_the_event_that_is_asked_for_before_the_first_step_of_the_acquire_is_set(
    implementation: impl.Implementation, three: list[str], name: str, connected: bool
) -> None:
    async def main() -> None:
        client = AsyncClient(three)
        if connected:
            await client.connect()
        try:
            early, connecting = client.lock(f"{name}-early", ttl=SHORT), client.lock(f"{name}-connecting", ttl=SHORT)
            acquires = [asyncio.create_task(lock.acquire()) for lock in (early, connecting)]
            events = [early.lost]
            await asyncio.sleep(0)
            events.append(connecting.lost)
            assert all(await asyncio.gather(*acquires))
            for event in events:
                await asyncio.wait_for(event.wait(), PATIENCE)
        finally:
            await client.close()

    asyncio.run(main())


def test_the_event_is_set_for_a_lease_won_after_a_handed_off_one_was_given_back(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=0.05, handoff=Handoff(tenure=60)) as client:
            giver, taker = client.lock(name, ttl=0.7), client.lock(name, ttl=1.5)
            assert await giver.acquire()
            waiting = asyncio.create_task(taker.acquire())
            await asyncio.sleep(0.01)
            lost = taker.lost
            delete(three, name)
            await giver.release()
            assert await waiting
            await asyncio.wait_for(lost.wait(), PATIENCE)
            assert not taker.remaining()

    asyncio.run(main())


def test_an_acquire_that_is_interrupted_as_its_care_begins_is_undone(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.lock(name, ttl=60, auto_renew=True)
            monkeypatch.setattr(BaseLock, "_begin_upkeep", strike)
            acquire = lock.acquire()
            with pytest.raises(KeyboardInterrupt):
                await acquire
            monkeypatch.undo()
            assert lock.token is None
            assert await client.lock(name).acquire(timeout=PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["rlock", "cancel_on_loss"])
def test_entering_that_is_interrupted_after_the_acquire_leaves_no_key(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with AsyncClient(three) as client:
            lock: Any = client.rlock(name) if how == "rlock" else client.lock(name, cancel_on_loss=True)
            kind, method = (BaseRLock, "_won") if how == "rlock" else (LossScope, "__init__")
            monkeypatch.setattr(kind, method, strike)
            entry = lock.__aenter__()
            with pytest.raises(KeyboardInterrupt):
                await entry
            monkeypatch.undo()
            assert not lock.remaining()
            assert await client.lock(name).acquire(timeout=PATIENCE)

    asyncio.run(main())


def test_a_busy_loop_has_one_timer_for_held_locks(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_at, timers = loop.call_at, []

        def noted(when: float, callback: Any, *args: Any, **options: Any) -> asyncio.TimerHandle:
            handle = call_at(when, callback, *args, **options)
            if getattr(callback, "__name__", "") == "_attend":
                timers.append(handle)
            return handle

        loop.call_at = noted  # type: ignore[method-assign, assignment]
        async with AsyncClient(three) as client:

            async def busy(number: int) -> None:
                while time.monotonic() < end:
                    async with client.lock(f"{name}-{number}", on_lost=print):
                        time.sleep(0.002)  # a slow turn, so that the timer is often overdue

            end = time.monotonic() + 3
            async with client.lock(name, auto_renew=True):
                await asyncio.gather(*[busy(number) for number in range(8)])
                await asyncio.sleep(0.6)
                now = loop.time()
                assert len([timer for timer in timers if not timer.cancelled() and timer.when() > now]) == 1

    asyncio.run(main())


def test_locks_are_cared_for_after_an_interrupt_as_the_timer_went_off(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def goes_off_in_vain(*_: Any, **__: Any) -> Any:
            return call_at(loop.time() + PATIENCE, lambda: None)

        async with AsyncClient(three) as client:
            first = client.lock(f"{name}-first", ttl=SHORT, auto_renew=True)
            loop.call_at = goes_off_in_vain  # type: ignore[method-assign, assignment]
            lost_first = first.lost
            assert await first.acquire()
            loop.call_at = call_at  # type: ignore[method-assign]
            await asyncio.sleep(1.0)
            second = client.lock(f"{name}-second", ttl=SHORT)
            lost = second.lost
            assert await second.acquire()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            await asyncio.wait_for(lost_first.wait(), PATIENCE)

    asyncio.run(main())


def test_a_slow_on_lost_does_not_delay_the_report_of_another_loss(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    told: list[object] = []
    both = threading.Event()

    def on_lost(lock: Any, reason: str) -> None:
        told.append(lock.name)
        if len(told) == 2:
            both.set()
        assert both.wait(PATIENCE)

    with Client(three, ttl=SHORT, on_lost=on_lost) as client:
        names = [f"{name}-{number}" for number in range(2)]
        locks = client.acquire_many(names)
        assert all(locks)
        assert both.wait(PATIENCE)
        assert sorted(map(str, told)) == names


def test_a_loss_that_cancels_a_body_raises_lock_lost_although_the_client_is_closed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        client = AsyncClient(three)

        async def hold() -> None:
            async with client.lock(name, ttl=SHORT, auto_renew=True, cancel_on_loss=True):
                held.set()
                await asyncio.sleep(PATIENCE)

        held = asyncio.Event()
        task = asyncio.create_task(hold())
        await held.wait()
        await client.close()
        with pytest.raises(LockLost) as caught:
            await task
        assert any("closed" in note for note in caught.value.__notes__)

    asyncio.run(main())


def test_a_renewal_that_is_cancelled_before_it_begins_is_tried_again(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    cancelled: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        if work.__name__ == "_renew" and not cancelled:
            cancelled.append(task)
            task.cancel()
        return task

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(make)
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client, client.lock(name, RENEWED, auto_renew=True):
            await asyncio.sleep(1.2 * RENEWED)

    asyncio.run(main())
    assert cancelled[0].cancelled()


def test_locks_are_renewed_after_an_interrupt_of_the_timer_for_them(
    implementation: impl.Implementation, monkeypatch: pytest.MonkeyPatch, three: list[str], name: str
) -> None:
    own, here = UpkeepSchedule.due, threading.get_ident()

    def strike(schedule: UpkeepSchedule, now_ns: int) -> Any:
        # Clients that other tests have left have threads of their own.
        if threading.get_ident() != here:
            return own(schedule, now_ns)
        monkeypatch.setattr(UpkeepSchedule, "due", own)
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        client = AsyncClient(three, attempt_timeout=PATIENCE)
        lock = client.lock(name, RENEWED, auto_renew=True)
        runner.run(lock.acquire())
        monkeypatch.setattr(UpkeepSchedule, "due", strike)
        with pytest.raises(KeyboardInterrupt):
            runner.run(asyncio.sleep(PATIENCE))
        runner.run(asyncio.sleep(1.2 * RENEWED))
        assert lock.remaining() > 0
        runner.run(client.close())


# --- cancellation -------------------------------------------------------------------------------------------


def test_a_loss_cancels_the_body_and_raises_lock_lost(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            with pytest.raises(LockLost, match=name):
                async with client.lock(name, ttl=SHORT, cancel_on_loss=True):
                    await asyncio.sleep(PATIENCE)
            task = asyncio.current_task()
            assert task is not None and not task.cancelling()
            # Nothing is left to be cancelled.
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_loss_that_is_noticed_after_the_body_cancels_nothing(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            with pytest.raises(LockLost):
                async with client.lock(name, ttl=SHORT, cancel_on_loss=True):
                    # The loop notices the loss only after the body.
                    time.sleep(SHORT + 0.1)
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_the_loss_of_the_outer_lock_ends_both_nested_bodies(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> list[str]:
        ended = []
        async with AsyncClient(three) as client:
            with pytest.raises(LockLost, match="outer"):
                async with client.lock(f"{name}-outer", ttl=SHORT, cancel_on_loss=True):
                    try:
                        async with client.lock(f"{name}-inner", ttl=PATIENCE, cancel_on_loss=True) as inner:
                            await asyncio.sleep(PATIENCE)
                    finally:
                        ended.append("inner")
                        assert inner.token is None
        return ended

    assert asyncio.run(main()) == ["inner"]


def test_a_loss_and_another_cancellation_at_once_leave_the_lock_released(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.lock(name, ttl=SHORT, cancel_on_loss=True)

            async def hold() -> None:
                async with lock:
                    try:
                        await asyncio.sleep(PATIENCE)
                    except asyncio.CancelledError:
                        # The loss cancels the body.
                        task.cancel()

            task = asyncio.create_task(hold())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await lock.acquire(timeout=PATIENCE)
            await lock.release()

    asyncio.run(main())


def test_a_timeout_and_another_cancellation_are_not_changed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client.lock(name, ttl=PATIENCE, cancel_on_loss=True):
                    await asyncio.sleep(PATIENCE)

            async def hold() -> None:
                async with client.lock(name, ttl=PATIENCE, cancel_on_loss=True):
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(hold())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.lock(name).acquire(timeout=PATIENCE)

    asyncio.run(main())


def test_in_a_task_group_a_loss_ends_the_others_as_any_error_does(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:

            async def hold() -> None:
                async with client.lock(name, ttl=SHORT, cancel_on_loss=True):
                    await asyncio.sleep(PATIENCE)

            with pytest.raises(BaseExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(hold())
                    group.create_task(asyncio.sleep(PATIENCE))
            assert [type(error) for error in caught.value.exceptions] == [LockLost]

    asyncio.run(main())


def test_the_error_of_the_body_is_raised_with_a_note_of_the_loss(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            with pytest.raises(ZeroDivisionError) as caught:
                async with client.lock(name, ttl=SHORT, cancel_on_loss=True):
                    try:
                        await asyncio.sleep(PATIENCE)
                    finally:
                        raise ZeroDivisionError
            assert any("LockLost" in note for note in caught.value.__notes__)

    asyncio.run(main())


# --- regressions of a review --------------------------------------------------------------------------------


def test_the_event_is_set_after_a_loss_and_the_callback_is_not_called_again(
    connect: Face, three: list[str], name: str
) -> None:
    told: list[str] = []
    client = connect(three, attempt_timeout=PATIENCE)
    lock = client.lock(name, ttl=SHORT, on_lost=lambda _, reason: told.append(reason))
    assert lock.acquire()
    await_true(lambda: bool(told))
    was_set = lock.lost.is_set()
    passed(0.6)
    assert (len(told), was_set) == (1, True)


def test_the_clients_callback_reports_the_loss_of_a_multi_lock(connect: Face, three: list[str], name: str) -> None:
    told: list[Any] = []
    client = connect(three, on_lost=lambda lock, reason: told.append(lock), attempt_timeout=PATIENCE)
    lock = client.multi_lock([name, name + "-b"], ttl=SHORT)
    assert lock.acquire()
    await_true(lambda: bool(told), 2.0)


def test_a_loss_that_an_extension_finds_sets_the_event(connect: Face, three: list[str], name: str) -> None:
    lock = connect(three).lock(name, ttl=PATIENCE)
    lost = lock.lost
    assert lock.acquire()
    delete(three, name)
    with pytest.raises(LockLost):
        lock.extend()
    assert not lock.remaining()
    await_true(lost.is_set, 2.0)


def test_the_loss_is_reported_at_the_nearer_deadline_of_a_failed_extension(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    lock = connect([proxy.url for proxy in before], attempt_timeout=0.1).lock(name, ttl=PATIENCE)
    lost = lock.lost
    # An attempt may take longer than 0.1 s.
    await_true(lambda: wins(lock))
    for proxy in before:
        proxy.replies.clear()
    with pytest.raises(QuorumUnavailable):
        lock.extend(1.5)
    assert lock.remaining() < 1.5
    try:
        await_true(lost.is_set, PATIENCE / 2)
    finally:
        for proxy in before:
            proxy.replies.set()


def test_the_loss_of_a_lock_whose_client_was_closed_is_reported(connect: Face, three: list[str], name: str) -> None:
    client = connect(three)
    lock = client.lock(name, ttl=0.3, auto_renew=True)
    lost = lock.lost
    assert lock.acquire()
    client.close()
    await_true(lambda: not lock.remaining())
    await_true(lost.is_set, 2.0)


def test_the_loss_of_a_lock_waits_for_no_other_one_that_is_renewed_with_it(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before], guard=None)
    slow, quick = client.lock(name + "-slow", ttl=100.0, auto_renew=True), client.lock(name, ttl=0.9, auto_renew=True)
    assert slow.acquire()
    assert quick.acquire()
    lost = quick.lost
    # Both renewals are due in 0.3 s.
    slow.extend((200 / 3 + 0.31) / 0.99)
    for proxy in before:
        proxy.replies.clear()
    try:
        await_true(lambda: not quick.remaining())
        await_true(lost.is_set, 1.0)
    finally:
        for proxy in before:
            proxy.replies.set()


def test_row_8_a_background_thread_that_cannot_start_a_thread_once_goes_on(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = _thread.start_new_thread
    failed: list[Any] = []

    def fail_once(function: Any, *args: Any) -> Any:
        if not failed and "_renew" in repr((function, args)):
            failed.append(function)
            raise RuntimeError("can't start new thread")
        return start(function, *args)

    with Client(three) as client:
        lock = client.lock(name, ttl=1.0, auto_renew=True)
        lost = lock.lost
        assert lock.acquire()
        monkeypatch.setattr(_thread, "start_new_thread", fail_once)
        await_true(lambda: bool(failed))
        passed(1.5)
        # The next attempt renews the lock, or its loss is reported.
        await_true(lambda: lock.remaining() or lost.is_set())


def test_a_system_exit_in_a_loss_without_a_thread_prevents_no_other_renewal(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = _thread.start_new_thread, time.monotonic()

    def fail(function: Any, *args: Any) -> Any:
        if "report_losses" in repr((function, args)):
            raise RuntimeError("can't start new thread")
        return start(function, *args)

    # Block the thread that attends until the loss of one lock and the renewal of the other are due.
    def hold_up(*_: Any) -> None:
        time.sleep(max(0.0, begun + 1.2 - time.monotonic()))

    def leave(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(_thread, "start_new_thread", fail)
    with Client(three) as client:
        renewed = client.lock(f"{name}-renewed", ttl=2.4, auto_renew=True)
        assert renewed.acquire()
        deadline_ns = renewed.deadline_ns
        slow, lost = (
            client.lock(f"{name}-slow", ttl=0.3, on_lost=hold_up),
            client.lock(f"{name}-lost", ttl=0.6, on_lost=leave),
        )
        assert slow.acquire()
        assert lost.acquire()
        await_true(lambda: renewed.deadline_ns > deadline_ns or not renewed.remaining())
        assert renewed.remaining()
        assert not (slow.remaining() or lost.remaining())


def test_a_loss_without_a_thread_is_reported_although_another_one_raises_system_exit(
    implementation: impl.Implementation, three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = _thread.start_new_thread

    def leave(_: Any) -> None:
        if not (lost.remaining() or event.is_set()):
            raise SystemExit

    def fail(function: Any, *args: Any) -> Any:
        if "report_losses" in repr((function, args)) or "leave" in repr((function, args)):
            raise RuntimeError("can't start new thread")
        return start(function, *args)

    with Client(three) as client:
        lost, renewed = client.lock(name, ttl=0.6), client.lock(f"{name}-renewed", ttl=60, auto_renew=True)
        event = lost.lost
        deleted = client.lock(f"{name}-deleted", ttl=60)
        assert deleted.acquire()
        assert renewed.acquire()
        assert lost.acquire()
        monkeypatch.setattr(_thread, "start_new_thread", fail)
        # The `on_lost` of a lock that is found lost there can do this.
        monkeypatch.setattr(connections.Connections, "notify_lost", leave)
        delete(three, f"{name}-deleted")
        deleted.release(wait=False)
        assert event.wait(PATIENCE)
        monkeypatch.undo()


def test_a_slow_on_lost_of_an_unawaited_release_delays_no_renewal(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def hold_up(*_: Any) -> None:
        began.set()
        may_end.wait(PATIENCE)

    # Masters that push would report the loss before the release.
    with Client(three, on_lost=hold_up, wakeups="poll") as client:
        deleted = client.lock(f"{name}-deleted", ttl=60)
        renewed = client.lock(f"{name}-renewed", ttl=2.4, auto_renew=True)
        assert deleted.acquire()
        assert renewed.acquire()
        delete(three, f"{name}-deleted")
        deleted.release(wait=False)
        try:
            assert began.wait(PATIENCE)
            deadline_ns = renewed.deadline_ns
            await_true(lambda: renewed.deadline_ns > deadline_ns or not renewed.remaining())
            assert renewed.remaining()
        finally:
            may_end.set()


def test_a_client_that_was_unusable_for_a_while_renews_its_locks_again(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    before = set(lifetime._all_connections)
    with Client([url]) as client:
        client.connect()
        # The compiled driver does not show its connections.
        [mine] = set(lifetime._all_connections) - before
        lost = client.lock(f"{name}-lost", ttl=0.5)
        event = lost.lost
        assert lost.acquire()
        mine.lifecycle.usable = False
        assert event.wait(PATIENCE)
        passed(0.1)
        mine.lifecycle.usable = True
        # There is one master, so no reply is missing that would wake the background thread.
        renewed = client.lock(name, ttl=1.5, auto_renew=True)
        assert renewed.acquire()
        deadline_ns = renewed.deadline_ns
        await_true(lambda: renewed.deadline_ns > deadline_ns or not renewed.remaining())
        assert renewed.remaining()


def test_two_threads_that_ask_for_the_event_at_once_get_the_same(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Client(three) as client:
            for _ in range(3000):
                lock = client.lock(name)
                barrier = threading.Barrier(2)

                def ask(lock: Any = lock, barrier: Any = barrier) -> Any:
                    barrier.wait()
                    return lock.lost

                one, two = in_thread(ask), in_thread(ask)
                assert one.result(PATIENCE) is two.result(PATIENCE)
    finally:
        sys.setswitchinterval(interval)


def test_a_loss_names_the_reason_of_the_last_failed_renewal(connect: Face, name: str) -> None:
    reasons: list[str] = []
    with embedded.masters(1) as [url]:
        ask(url).execute_command("ACL", "SETUSER", "few", "reset", "on", ">s3cr3t", "~*", "&*", "+@all", "-pttl")
        client = connect(url.replace("//", "//few:s3cr3t@"), guard=None)
        lock = client.lock(name, ttl=RENEWED, auto_renew=True, on_lost=lambda _, reason: reasons.append(reason))
        assert lock.acquire()
        await_true(lambda: bool(reasons))
        assert reasons[0].startswith("its validity ran out; its last renewal failed: ")
        assert "'pttl'" in reasons[0]
        with pytest.raises(LockLost, match="its last renewal failed"):
            lock.check()


@on_one_face("asyncio")
def test_a_short_lock_is_renewed_in_time_beside_a_long_one(connect: Face, three: list[str], name: str) -> None:
    # The renewal is due before 0.25 s, earlier than the regular look at all locks. The rest of the ttl is for a slow
    # machine.
    ttl = 0.7
    client = connect(three, attempt_timeout=PATIENCE)
    beside = client.lock(name + "-long", ttl=PATIENCE, auto_renew=True)
    lock = client.lock(name, ttl=ttl, auto_renew=True)
    lost = lock.lost
    assert beside.acquire()
    assert lock.acquire()
    passed(4 * ttl + 0.3)
    assert not lost.is_set()
    lock.release()


def test_a_lock_that_was_extended_often_is_renewed_once_at_a_time(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    client = connect([proxy.url for proxy in before])
    assert client.lock(name + " first").acquire()
    await_true(lambda: all(proxy.greeted() for proxy in before))
    lock = client.lock(name, ttl=0.6, auto_renew=True)
    assert lock.acquire()
    for _ in range(20):
        lock.extend()
    # The other masters were a quorum; some of these may not have reached the first one yet.
    await_true(lambda: before[0].count(b"EVALSHA", name, b"600") >= 20)
    began, sent = time.monotonic(), before[0].count(b"EVALSHA", name, b"600")
    # Time for four renewals, one each fifth of a second.
    passed(0.9)
    renewals = before[0].count(b"EVALSHA", name, b"600") - sent
    assert renewals <= (time.monotonic() - began) / 0.2 + 2
    lock.release()


@on_one_face("threads")
def test_an_extension_is_sent_although_one_renewal_follows_another(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)
    lock = connect([proxy.url for proxy in before], attempt_timeout=PATIENCE).lock(name, ttl=3.0, auto_renew=True)
    assert lock.acquire()

    def late(command: tuple[bytes, ...], reply: bytes) -> bytes:
        if command[0] == b"EVALSHA" and name.encode() in command:
            # This is longer than a third of the ttl, after which the lock is renewed.
            time.sleep(1.1)
        return reply

    for proxy in before:
        proxy.spoil = late
    # A renewal is on its way.
    await_true(lambda: before[0].count(name, b"3000") > 1)
    lock.extend(5.0)
    # The other masters were a quorum.
    await_true(lambda: before[0].count(name, b"5000"))
    # No renewal has begun since.
    assert before[0].count(name, b"3000") == 2
    assert before[0].count(name, b"5000") == 1
    lock.release()
