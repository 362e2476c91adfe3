"""Row 51: an AsyncClient that becomes garbage without `close`, while its event loop runs on."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, descriptors
from support.masters import Keys
from support.proxy import Proxy

from redlatch import AsyncClient, impl
from redlatch.wire.dial.connect import Dialler

LONG = 60.0


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Any:
    """Run a coroutine function in a loop of each kind; a hang or a warning fails the test."""
    loops = pytest.importorskip("uvloop") if request.param == "uvloop" else asyncio

    def bounded(main: Any) -> None:
        async def within() -> None:
            async with asyncio.timeout(PATIENCE):
                await main()

        with warnings.catch_warnings(), asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
            warnings.simplefilter("error")
            runner.run(within())
            gc.collect()

    return bounded


@pytest.fixture
def loop(implementation: impl.Implementation) -> Iterator[Any]:
    """An event loop that the test runs piece by piece, and closes; a warning fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = asyncio.new_event_loop()
        yield loop
        loop.close()
        gc.collect()


async def come_true(condition: Any) -> None:
    """Collect garbage until a condition is true; `run` limits the time."""
    while not condition():
        gc.collect()
        await asyncio.sleep(0.005)


async def used(client: Any, name: Any) -> None:
    lock = client.lock(name, ttl=LONG)
    assert await lock.acquire(timeout=PATIENCE)
    await lock.release()


@pytest.mark.parametrize("where", ["here", "in another thread"])
def test_row_51_a_forgotten_client_is_collected_and_its_sockets_are_closed(
    where: str, run: Any, three: list[str], name: str
) -> None:
    async def main() -> None:
        # Sockets of other tests are not counted.
        gc.collect()
        before = descriptors()
        for number in range(5):
            client = AsyncClient(three)
            await used(client, f"{name}-{number}")
            driver = weakref.ref(client._driver)
            assert descriptors() > before
            del client
            if where == "here":
                gc.collect()
            else:
                await asyncio.get_running_loop().run_in_executor(None, gc.collect)
            await come_true(lambda driver=driver: driver() is None)
        await come_true(lambda: descriptors() <= before)
        # The new client reuses the descriptors.
        async with AsyncClient(three) as client:
            await used(client, name)

    run(main)


def test_row_51_a_forgotten_client_stops_dialling(
    run: Any, closed_ports: Callable[[int], list[str]], three: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialling = []
    make = Dialler.__init__

    def note(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        # One for each of its threads.
        dialling.append(self._pauses)

    async def main() -> None:
        client = AsyncClient([*three, *closed_ports(2)], guard=None)
        await used(client, name)
        [threads] = dialling
        await come_true(lambda: len(threads) == 2)
        driver = weakref.ref(client._driver)
        del client
        await come_true(lambda: driver() is None)
        await come_true(lambda: not threads)

    monkeypatch.setattr(Dialler, "__init__", note)
    run(main)


@pytest.mark.parametrize("how", ["plain", "renewed", "watched"])
def test_row_51_a_forgotten_client_that_holds_a_lock_is_collected(
    how: str, run: Any, three: list[str], name: str
) -> None:
    async def main() -> None:
        client = AsyncClient(three, on_lost=(lambda lock, reason: None) if how == "watched" else None)
        lock = client.lock(name, ttl=LONG, auto_renew=how == "renewed")
        assert await lock.acquire(timeout=PATIENCE)
        driver = weakref.ref(client._driver)
        del client, lock
        await come_true(lambda: driver() is None)

    run(main)


def test_row_51_a_lock_keeps_its_client_alive_and_is_renewed(run: Any, three: list[str], name: str) -> None:
    async def main() -> None:
        lock = AsyncClient(three, attempt_timeout=PATIENCE).lock(name, ttl=3.0, auto_renew=True)
        assert await lock.acquire(timeout=PATIENCE)
        gc.collect()
        first = lock.deadline_ns
        # The collector would make this loop slow.
        while lock.deadline_ns <= first:
            await asyncio.sleep(0.01)
        assert await lock.owned()
        await lock.release()

    run(main)


def test_row_51_a_waiting_task_keeps_a_client_alive_that_has_no_other_reference(
    run: Any, three: list[str], name: str
) -> None:
    async def main() -> None:
        async with AsyncClient(three) as other:
            held = other.lock(name, ttl=LONG)
            assert await held.acquire(timeout=PATIENCE)
            client = AsyncClient(three, attempt_timeout=PATIENCE)
            driver = weakref.ref(client._driver)
            # This task watches the masters. Its attempts end with its ttl, also if this process stands still for long.
            first = asyncio.create_task(client.lock(name, ttl=5.0).acquire())
            # This task queues behind the first.
            second = asyncio.create_task(client.lock(name, ttl=1.0).acquire())
            del client
            for _ in range(10):
                gc.collect()
                await asyncio.sleep(0.01)
            assert not (first.done() or second.done())
            await held.release()
            assert await first
            # The first lock has to expire first.
            assert await second
            await come_true(lambda: driver() is None)

    run(main)


def test_row_51_a_call_that_has_not_begun_keeps_its_client_alive(run: Any, three: list[str], name: str) -> None:
    async def main() -> None:
        calls = [AsyncClient(three).lock(f"{name}-0").acquire(timeout=PATIENCE)]
        client = AsyncClient(three)
        await client.connect()
        calls.append(client.lock(f"{name}-1").acquire(timeout=PATIENCE))
        driver = weakref.ref(client._driver)
        del client
        for _ in range(10):
            gc.collect()
            await asyncio.sleep(0.005)
        assert driver() is not None
        while calls:
            assert await calls.pop()
        await come_true(lambda: driver() is None)

    run(main)


def test_row_51_an_unawaited_release_arrives_although_its_client_is_forgotten(
    run: Any, three: list[str], name: str, keys: Keys
) -> None:
    async def main() -> None:
        client = AsyncClient(three)
        lock = client.lock(name, ttl=LONG)
        assert await lock.acquire(timeout=PATIENCE)
        await lock.release(wait=False)
        driver = weakref.ref(client._driver)
        del client, lock
        await come_true(lambda: driver() is None)
        await come_true(lambda: not keys(three, name))

    run(main)


def test_row_51_a_client_that_is_forgotten_while_its_loop_is_stopped_leaves_nothing(
    loop: Any, three: list[str], name: str
) -> None:
    async def main() -> None:
        await used(AsyncClient(three), name)

    gc.collect()
    before = descriptors()
    loop.run_until_complete(main())
    await_true(lambda: gc.collect() == 0)
    # The next turn of the loop would have closed the sockets, but it never comes.
    loop.close()
    await_true(lambda: descriptors() < before)


def test_row_51_connections_that_are_made_after_their_loop_has_ended_are_closed(
    loop: Any, proxies: Callable[[list[str]], list[Proxy]], three: list[str]
) -> None:
    before = proxies(three)
    forgotten = [AsyncClient([proxy.url for proxy in before])]

    async def main() -> None:
        connecting = asyncio.ensure_future(forgotten[0].connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])

    for proxy in before:
        proxy.replies.clear()
    loop.run_until_complete(main())
    await_true(lambda: all(proxy.commands for proxy in before))
    opened = descriptors()
    for proxy in before:
        proxy.replies.set()
    # The handshakes are over.
    await_true(lambda: all(proxy.quiet() for proxy in before))
    loop.close()
    forgotten.clear()
    await_true(lambda: gc.collect() == 0)
    await_true(lambda: descriptors() <= opened - len(three))
