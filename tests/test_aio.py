"""The asyncio face: many tasks that share one client, another event loop, and the end of the client or its loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, descriptors
from support.masters import Farm, Keys
from support.proxy import Proxy

from redlatch import AlreadyHeld, AsyncClient, ClientClosed, LockBusy, LockTimeout, NotOwned, WrongLoop, impl
from redlatch.votes import commands

LONG = 60.0


def run(coroutine: Any) -> Any:
    """Run a coroutine in a new loop; fail if it hangs."""

    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await coroutine

    return asyncio.run(bounded())


@pytest.mark.parametrize("count", [1, 3, 5])
def test_tasks_of_one_client_exclude_each_other(
    count: int, implementation: impl.Implementation, farm: Farm, name: str, keys: Keys
) -> None:
    urls = farm.urls(count)
    counter = 0

    async def main() -> None:
        async def work() -> None:
            nonlocal counter
            for _ in range(10):
                async with client.lock(name, ttl=LONG):
                    before = counter
                    await asyncio.sleep(0)
                    counter = before + 1

        async with AsyncClient(urls) as client:
            await asyncio.gather(*(work() for _ in range(10)))

    run(main())
    assert counter == 10 * 10
    assert not keys(urls, name)


def test_a_waiter_times_out_although_another_task_ended_the_loop_in_its_last_look(
    three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, for example: it comes out of the loop, which then runs on."""
    monkeypatch.setattr(impl, "current", impl.load("python"))
    loop = asyncio.new_event_loop()
    client, other = AsyncClient(three), AsyncClient(three)
    driver: Any = other._driver
    look = driver._look

    def end_the_loop() -> None:
        monkeypatch.setattr(driver, "_look", look)
        look()
        raise SystemExit

    async def wait() -> bool:
        await other.lock(f"{name}-free").acquire()
        monkeypatch.setattr(driver, "_look", end_the_loop)
        return await other.lock(name).acquire(timeout=0.3)

    assert loop.run_until_complete(client.lock(name, ttl=LONG).acquire())
    waiter = loop.create_task(wait())
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.sleep(PATIENCE))
    assert loop.run_until_complete(asyncio.wait_for(waiter, PATIENCE)) is False
    for each in (client, other):
        loop.run_until_complete(each.close())
    loop.close()


def test_clients_of_two_loops_exclude_each_other(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    from support.faces import at_once

    counter = [0]

    async def main() -> None:
        async with AsyncClient(three) as client:
            for _ in range(20):
                async with client.lock(name, ttl=LONG):
                    before = counter[0]
                    await asyncio.sleep(0)
                    counter[0] = before + 1

    at_once([lambda: run(main())] * 4)
    assert counter == [4 * 20]


def test_many_tasks_on_names_of_their_own_all_go_on(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async def work(number: Any) -> None:
            for _ in range(5):
                lock = client.lock(f"{name}-{number}", ttl=LONG)
                assert await lock.acquire(blocking=False)
                await lock.extend()
                assert await lock.owned()
                await lock.release()

        async with AsyncClient(three) as client:
            await asyncio.gather(*(work(number) for number in range(200)))

    run(main())
    assert not any(keys(three, f"{name}-{number}") for number in range(0, 200, 20))


def test_tasks_that_start_with_an_unconnected_client_connect_it_once(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)

    async def main() -> None:
        client = AsyncClient([proxy.url for proxy in before])
        await asyncio.gather(*(client.lock(f"{name}-{number}").acquire() for number in range(16)))
        # Two of the masters are a quorum already.
        await asyncio.to_thread(await_true, lambda: all(proxy.accepted for proxy in before))
        await client.close()

    run(main())
    assert [proxy.accepted for proxy in before] == [1, 1, 1]


def test_one_lock_object_acquired_by_two_tasks_is_refused_to_one(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as client:
            lock = client.lock(name, ttl=LONG)
            ends = await asyncio.gather(*(lock.acquire() for _ in range(4)), return_exceptions=True)
            assert [end for end in ends if end is True] == [True]
            assert sum(isinstance(end, AlreadyHeld) for end in ends) == 3
            assert await lock.owned()
            await lock.release()
            with pytest.raises(NotOwned):
                await lock.release()

    run(main())


def test_close_ends_every_wait_with_client_closed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as other, other.lock(name, ttl=LONG):
            client = AsyncClient(three)
            await client.connect()
            waiting = [asyncio.ensure_future(client.lock(name, ttl=LONG).acquire()) for _ in range(8)]
            await asyncio.sleep(0.02)
            await client.close()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(end, ClientClosed) for end in ends), ends

    run(main())


def test_close_while_masters_are_silent_ends_every_call(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)

    async def main() -> None:
        client = AsyncClient([proxy.url for proxy in before], attempt_timeout=PATIENCE)
        await client.connect()
        await asyncio.to_thread(await_true, lambda: all(proxy.greeted() for proxy in before))
        for proxy in before:
            proxy.replies.clear()
        waiting = [asyncio.ensure_future(client.lock(f"{name}-{n}", ttl=LONG).acquire()) for n in range(4)]
        await asyncio.to_thread(await_true, lambda: all(proxy.count("SET") == 4 for proxy in before))
        await client.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, ClientClosed) for end in ends), ends

    run(main())


def test_close_closes_connections_that_broke_just_before(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)

    async def main() -> None:
        opened = descriptors()
        client = AsyncClient([proxy.url for proxy in before], attempt_timeout=PATIENCE, guard=None)
        await client.connect()
        # The last command of a handshake without a guard.
        last = b"INFO", b"memory"
        await asyncio.to_thread(await_true, lambda: all(last in proxy.answered for proxy in before))
        for proxy in before:
            proxy.replies.clear()
        waiting = asyncio.ensure_future(client.lock(name, ttl=LONG).acquire())
        await asyncio.to_thread(await_true, lambda: all(proxy.count("SET") == 1 for proxy in before))
        there = descriptors()
        for proxy in before:
            proxy.cut(abrupt=True)
            proxy.replies.set()
        # The loop does not turn meanwhile, so the client has not noticed the cut.
        await_true(lambda: descriptors() <= there - 6)
        await client.close()
        with pytest.raises(ClientClosed):
            await waiting
        await_true(lambda: descriptors() <= opened)
        # The client lives until here, so the garbage collector has closed no connection.
        assert client is not None

    run(main())


def test_close_ends_a_connect_that_waits_for_silent_masters(implementation: impl.Implementation) -> None:
    async def main() -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        client = AsyncClient([f"redis://127.0.0.1:{each.getsockname()[1]}" for each in listeners])
        connecting = asyncio.ensure_future(client.connect())
        await asyncio.sleep(0.05)
        await client.close()
        began = time.monotonic()
        with pytest.raises(ClientClosed):
            await connecting
        # Without the close it would have waited for 4 s.
        assert time.monotonic() - began < 3
        for each in listeners:
            each.close()

    run(main())


def test_a_cancelled_close_still_closes_the_client(
    implementation: impl.Implementation, three: list[str], proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    before = proxies(three)

    async def main() -> None:
        client = AsyncClient([proxy.url for proxy in before], attempt_timeout=PATIENCE)
        lock = client.lock(name, ttl=LONG)
        await client.connect()
        await asyncio.to_thread(await_true, lambda: all(proxy.greeted() for proxy in before))
        await lock.acquire()
        for proxy in before:
            proxy.replies.clear()
        releasing = asyncio.ensure_future(lock.release())
        await asyncio.to_thread(await_true, lambda: all(proxy.count("DELIFEQ") for proxy in before))
        opened = descriptors()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.close()
        # Three sockets and a pipe.
        assert descriptors() <= opened - 5
        async with asyncio.timeout(PATIENCE / 2):
            with pytest.raises(ClientClosed):
                await releasing

    run(main())


@pytest.mark.parametrize("turns", range(5))
def test_close_in_the_loop_turn_of_a_split_vote_leaves_no_key(
    turns: Any, implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        async with AsyncClient(three[:1], guard=None) as first, AsyncClient(three[1:2], guard=None) as second:
            async with first.lock(name, ttl=LONG), second.lock(name, ttl=LONG):
                client = AsyncClient(three, guard=None)
                await client.connect()
                acquiring = asyncio.ensure_future(client.lock(name, ttl=LONG).acquire())
                # One turn submits the attempt, the next one sends it.
                for _ in range(2):
                    await asyncio.sleep(0)
                # The votes arrive before the loop looks.
                time.sleep(0.05)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await client.close()
                await asyncio.gather(acquiring, return_exceptions=True)

    run(main())
    assert not keys(three, name)


def test_another_loop_is_refused(implementation: impl.Implementation, three: list[str], name: str) -> None:
    client = AsyncClient(three)

    async def first() -> None:
        await client.connect()
        async with client.lock(name, ttl=LONG):
            pass

    async def second() -> None:
        for call in (client.connect, client.close, client.lock(name).acquire):
            with pytest.raises(WrongLoop):
                await call()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    run(second())
    loop.run_until_complete(client.close())
    loop.close()


def test_a_closed_client_refuses_everything_and_can_be_closed_again(
    implementation: impl.Implementation, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        client = AsyncClient(three, attempt_timeout=PATIENCE)
        lock = client.lock(name, ttl=1.0)
        assert await lock.acquire()
        await client.close()
        await client.close()
        for call in (lock.release, lock.extend, lock.owned, lock.locked, client.lock("x").acquire, client.connect):
            with pytest.raises(ClientClosed):
                await call()

    run(main())
    await_true(lambda: not keys(three, name))


def test_a_client_that_was_never_used_can_be_closed(implementation: impl.Implementation, three: list[str]) -> None:
    async def main() -> None:
        client = AsyncClient(three)
        await client.close()
        with pytest.raises(ClientClosed):
            await client.lock("x").acquire()

    run(main())


@pytest.mark.parametrize("where", ["in its loop", "after its loop"])
def test_clients_that_are_forgotten_leave_neither_warnings_nor_descriptors(
    where: str, implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def use() -> None:
        client = AsyncClient(three)
        await client.lock(name, ttl=LONG).acquire(blocking=False)
        if where == "in its loop":
            del client
            gc.collect()

    run(use())
    gc.collect()
    before = descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            run(use())
        gc.collect()

    def closed() -> Any:
        # Collect again: a thread that was still dialling kept a client alive, as part of a reference cycle.
        gc.collect()
        return descriptors() <= before

    await_true(closed)


def test_a_loop_that_ends_with_a_client_open_can_be_closed(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    clients = []

    async def use() -> None:
        client = AsyncClient(three, attempt_timeout=PATIENCE)
        clients.append(client)
        assert await client.lock(name, ttl=1.0).acquire(timeout=PATIENCE)

    for _ in range(2):
        run(use())
    clients.clear()
    gc.collect()


def test_closed_clients_leave_no_descriptors(implementation: impl.Implementation, three: list[str], name: str) -> None:
    async def use() -> None:
        async with AsyncClient(three) as client, client.lock(name, ttl=LONG):
            pass

    run(use())
    before = descriptors()
    for _ in range(10):
        run(use())
    await_true(lambda: descriptors() <= before)


def test_a_held_lock_makes_a_busy_with_and_a_timed_one_fail(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client, client.lock(name, ttl=LONG):
            with pytest.raises(LockBusy):
                async with client.lock(name, timeout=0):
                    raise AssertionError("the body ran without the lock")
            with pytest.raises(LockTimeout):
                async with client.lock(name, timeout=1.0):
                    raise AssertionError("the body ran without the lock")

    run(main())


def test_a_loop_that_was_blocked_longer_than_the_validity_has_not_won(
    implementation: impl.Implementation, three: list[str], name: str
) -> None:
    import time

    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.lock(name, ttl=0.3)
            acquiring = asyncio.ensure_future(lock.acquire(blocking=False))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # A blocking call stops the loop. The replies have arrived, but they are too old.
            time.sleep(0.4)
            assert await acquiring is False
            assert lock.remaining() == 0.0

    run(main())


def test_a_connection_that_arrives_at_a_closed_client_is_closed(
    implementation: impl.Implementation, three: list[str]
) -> None:
    async def use(turn: int) -> None:
        client = AsyncClient(three)
        connecting = asyncio.create_task(client.connect())
        await asyncio.sleep(turn * 0.0005)
        await client.close()
        with contextlib.suppress(ClientClosed):
            await connecting

    before = descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for turn in range(40):
            asyncio.run(use(turn % 20))
        gc.collect()
        await_true(lambda: descriptors() <= before)


# The warning comes from a coroutine that awaits when it is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_release_by_the_garbage_collector_inside_an_operation_is_sent_after_it(
    monkeypatch: pytest.MonkeyPatch, three: list[str], name: str, keys: Keys
) -> None:
    monkeypatch.setattr(impl, "current", impl.load("python"))

    async def hold(client: Any, held: Any) -> None:
        async with client.lock(f"{name}-forgotten", ttl=LONG):
            held.set()
            # No other object refers to this future, so the task is garbage.
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with AsyncClient(three, attempt_timeout=PATIENCE) as client:
            lock = client.lock(name, ttl=LONG / 2)
            assert await lock.acquire()
            held = asyncio.Event()
            forgotten = asyncio.create_task(hold(client, held))
            await held.wait()
            await asyncio.sleep(0.05)
            gc.collect()
            gc.disable()
            del forgotten
            payload = commands.Extend.payload
            inside: list[bool] = []
            driver: Any = client._driver

            def collecting(self: Any, dialect: Any) -> Any:
                if not inside:
                    inside.append(driver._fleet.torn)
                    gc.collect()
                return payload(self, dialect)

            monkeypatch.setattr(commands.Extend, "payload", collecting)
            await lock.extend(LONG)
            assert inside == [True]
            await asyncio.to_thread(await_true, lambda: all(pttl > LONG * 700 for pttl in keys(three, name).values()))
            await asyncio.to_thread(await_true, lambda: not keys(three, f"{name}-forgotten"))
            assert all(link.up for link in driver._fleet.links)
            await lock.release()

    try:
        run(main())
    finally:
        gc.enable()
