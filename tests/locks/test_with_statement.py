"""The error of a lock that was not won in time, and the scope that cancels the body of an ``async with``."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.faces import PATIENCE, Face, Faced, ask, await_true
from support.proxy import Proxy

from redlatch import Client, LockBusy, LockTimeout
from redlatch.locks.with_statement import LossScope


@pytest.mark.parametrize("timeout", [0, 2.5])
def test_the_error_says_when_another_call_may_succeed(client: Any, held: Any, name: str, timeout: float) -> None:
    """The time that is left if this client has the lock, and else the longest pause of `Retry`."""
    error = client.lock(name, timeout=timeout)._refusal().ask()
    assert held.remaining() <= error.retry_after <= 60
    assert client.lock(f"{name}-other", timeout=timeout)._refusal().ask().retry_after == 0.05


def test_the_time_until_another_call_is_never_0(client: Any, name: str) -> None:
    lock = client.lock(name, ttl=0.02)
    assert lock.acquire()
    assert client.lock(name)._refusal().ask().retry_after >= 0.05


@pytest.mark.parametrize(("timeout", "kind"), [(0, LockBusy), (None, LockBusy), (2.5, LockTimeout)])
def test_a_with_that_did_not_win_says_how_long_it_waited(client: Any, name: str, timeout: Any, kind: Any) -> None:
    error = client.lock(name, timeout=timeout)._refusal().ask()
    assert type(error) is kind and error.name == name
    assert kind is LockBusy or error.elapsed == 2.5


# --- who has it --------------------------------------------------------------------------------------

LONG = 60.0
WAIT = 0.3

Maker = Callable[..., Any]

# What another client holds, and what this client cannot have for that reason.
PAIRS: dict[str, tuple[Maker, Maker]] = {
    "plain": (lambda client, name: client.lock(name, LONG), lambda client, name: client.lock(name, timeout=WAIT)),
    "fair": (
        lambda client, name: client.fair_lock(name, LONG),
        lambda client, name: client.fair_lock(name, timeout=WAIT),
    ),
    "fenced": (
        lambda client, name: client.lock(name, LONG, fence=True),
        lambda client, name: client.lock(name, timeout=WAIT, fence=True),
    ),
    "reentrant": (lambda client, name: client.lock(name, LONG), lambda client, name: client.rlock(name, timeout=WAIT)),
    "multi": (
        lambda client, name: client.lock(name, LONG),
        lambda client, name: client.multi_lock([f"{name}-2", name], timeout=WAIT),
    ),
    "writer behind a writer": (
        lambda client, name: client.rw_lock(name, LONG).write(),
        lambda client, name: client.rw_lock(name, timeout=WAIT).write(),
    ),
    "reader behind a writer": (
        lambda client, name: client.rw_lock(name, LONG).write(),
        lambda client, name: client.rw_lock(name, timeout=WAIT).read(),
    ),
}


def refused(client: Faced, lock: Any) -> Any:
    """Return the error of a ``with`` that does not get the lock."""
    enter = lock.__enter__ if hasattr(lock, "__enter__") else lock.__aenter__
    with pytest.raises((LockTimeout, LockBusy)) as caught:
        client._start(enter).result(PATIENCE)
    return caught.value


def asking(client: Faced, lock: Any) -> Any:
    """Return the error of a lock whose timeout has passed."""
    refusal = lock._refusal()
    return refusal.ask() if isinstance(client.raw, Client) else client._start(refusal.ask_async).result(PATIENCE)


@pytest.mark.one_loop
@pytest.mark.usefixtures("patient_question")
@pytest.mark.parametrize("pair", PAIRS)
def test_a_timeout_names_the_holder(connect: Face, three: list[str], pair: str, name: str) -> None:
    held, wanted = PAIRS[pair]
    client, other = connect(three), connect(three, owner="worker-7")
    lock = Faced(held(other.raw, name), other._start)
    assert lock.acquire()
    error = refused(client, wanted(client.raw, name))
    assert isinstance(error, LockTimeout) and error.elapsed == WAIT and error.name == name
    assert re.search(r"was not acquired within 0\.3 s: held by worker-7 for \d+ s, \d\d s left$", str(error))
    found: Any = error.holder
    assert found.owner == "worker-7"
    assert LONG - PATIENCE < found.ttl_left <= LONG
    assert 0 <= found.held_for < PATIENCE
    assert found.fence == (lock.fence if pair == "fenced" else None)
    assert lock.token.decode()[:32] not in str(error)
    lock.release()


@pytest.mark.one_loop
def test_a_semaphore_and_a_writer_behind_readers_name_nobody(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three), connect(three)
    slot, reader = other.semaphore(name, 1, ttl=LONG), other.rw_lock(name, ttl=LONG).read()
    assert slot.acquire() and reader.acquire()
    for wanted in (client.raw.semaphore(name, 1, timeout=0.1), client.raw.rw_lock(name, timeout=0.1).write()):
        error = refused(client, wanted)
        assert str(error) == f"{name!r} was not acquired within 0.1 s: another holder has it"
        assert error.holder is None
    slot.release()
    reader.release()


@pytest.mark.one_loop
@pytest.mark.usefixtures("patient_question")
def test_a_full_queue_names_the_holder(connect: Face, three: list[str], name: str) -> None:
    client, other = connect(three, max_waiters=1), connect(three, owner="worker-7")
    holder = other.lock(name, LONG)
    assert holder.acquire()
    # The first one asks the masters, the second one waits behind it, and the queue is full.
    locks = [client.lock(name, LONG) for _ in range(2)]
    waiting = [lock.start("acquire") for lock in locks]
    await_true(lambda: client.raw._quorum.queues.by_key)
    with pytest.raises(LockBusy, match=r"1 waiters queued .* \(max_waiters=1\); held by worker-7 for \d+ s") as caught:
        client.lock(name).acquire()
    assert caught.value.holder is not None and caught.value.holder.owner == "worker-7"
    assert caught.value.depth == 1
    holder.release()
    await_true(lambda: any(each.done() for each in waiting))
    # Now a lock object of this client has it, and no master must be asked.
    with pytest.raises(LockBusy, match=r"; held by .*:\d+ for \d+ s, \d\d s left$") as local:
        client.lock(name).acquire()
    assert local.value.holder is not None and local.value.holder.owner != "worker-7"
    for _ in locks:
        await_true(lambda: any(lock.token for lock in locks))
        [held] = [lock for lock in locks if lock.token]
        held.release()


def calls(url: str) -> int:
    """Return how many commands a server has run, without those that only ask about it."""
    with ask(url) as server:
        stats = server.info("commandstats")
    return sum(value["calls"] for command, value in stats.items() if command in ("cmdstat_evalsha", "cmdstat_set"))


@pytest.mark.one_loop
def test_one_attempt_asks_nobody(connect: Face, url: str, name: str) -> None:
    client, other = connect(url), connect(url)
    assert other.lock(name, LONG).acquire()
    assert not client.lock(name).acquire(blocking=False)
    before = calls(url)
    error = refused(client, client.raw.lock(name, timeout=0))
    assert isinstance(error, LockBusy) and error.holder is None
    assert "another holder has it" in str(error)
    # The attempt is one command, which was refused, so there is nothing to undo.
    assert calls(url) - before == 1


@pytest.mark.one_loop
def test_masters_that_are_silent_delay_the_error_by_a_tenth_of_the_timeout(
    connect: Face, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    between = proxies(three)
    client, other = connect([proxy.url for proxy in between]), connect(three)
    assert other.lock(name, LONG).acquire()
    assert not client.lock(name).acquire(blocking=False)
    for proxy in between:
        proxy.replies.clear()
    began = time.monotonic()
    error = asking(client, client.raw.lock(name, timeout=0.5))
    assert 0.045 <= time.monotonic() - began < 0.4
    assert str(error) == f"{name!r} was not acquired within 0.5 s: another holder has it"
    for proxy in between:
        proxy.replies.set()


@pytest.mark.one_loop
def test_a_client_that_is_closed_meanwhile_still_says_that_the_time_is_over(
    connect: Face, three: list[str], name: str
) -> None:
    client = connect(three)
    client.connect()
    lock = client.raw.lock(name, timeout=0.5)
    client.close()
    error = asking(client, lock)
    assert isinstance(error, LockTimeout) and error.holder is None


# --- the scope -----------------------------------------------------------------------------------------


async def left(body: Callable[[LossScope], Coroutine[Any, Any, None]]) -> tuple[bool, BaseException | None]:
    """Run a body in a scope; return what `leave` returned and the exception of the body."""
    scope = LossScope()
    try:
        await body(scope)
    except BaseException as error:
        return await scope.leave(error), error
    return await scope.leave(None), None


def task_of(scope: LossScope) -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_a_scope_needs_a_task() -> None:
    async def main() -> None:
        made: asyncio.Future[LossScope] = asyncio.get_running_loop().create_future()

        def call() -> None:
            try:
                made.set_result(LossScope())
            except RuntimeError as error:
                made.set_exception(error)

        asyncio.get_running_loop().call_soon(call)
        with pytest.raises(RuntimeError, match=r"^cancel_on_loss: "):
            await made

    asyncio.run(main())


def test_a_loss_cancels_the_body_once_and_is_all_there_is_to_report() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        scope.cancel()
        assert task_of(scope).cancelling() == 1
        await asyncio.sleep(3600)

    async def main() -> None:
        alone, error = await left(body)
        assert alone and isinstance(error, asyncio.CancelledError)
        # The code after the scope is not cancelled.
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_request_that_comes_as_the_body_ends_does_not_reach_the_code_after_it() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()

    async def main() -> None:
        assert await left(body) == (True, None)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_an_error_of_the_body_is_reported_and_not_the_loss() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        raise ValueError("mine")

    async def main() -> None:
        alone, error = await left(body)
        assert not alone and isinstance(error, ValueError)
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_cancellation_by_others_beside_the_loss_goes_on(ended: bool) -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        task_of(scope).cancel()
        if not ended:
            await asyncio.sleep(3600)

    async def main() -> None:
        if ended:
            # The body has no exception that could carry the cancellation.
            with pytest.raises(asyncio.CancelledError):
                await left(body)
        else:
            alone, error = await left(body)
            assert not alone and isinstance(error, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 1

    asyncio.run(main())


def test_a_request_from_before_the_scope_is_not_taken_for_one_of_others() -> None:
    async def body(scope: LossScope) -> None:
        scope.cancel()
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        # This code cleans up after a cancellation that will go on afterwards.
        alone, _ = await left(body)
        assert alone
        assert task.cancelling() == 1

    asyncio.run(main())


def test_nested_scopes_tell_their_requests_apart() -> None:
    async def main() -> None:
        outer = LossScope()

        async def body(inner: LossScope) -> None:
            outer.cancel()
            await asyncio.sleep(3600)

        inner = LossScope()
        try:
            await body(inner)
        except asyncio.CancelledError as error:
            assert not inner.lost and outer.lost
            assert await outer.leave(error)

    asyncio.run(main())
