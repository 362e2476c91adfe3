"""The driver for asyncio: how it performs the effects of a generator, and how it ends one that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.effects import EffectRig
from support.faces import PATIENCE, ask, await_true
from support.proxy import Proxy

from redlatch import AsyncClient, impl
from redlatch.errors import ClientClosed, WrongLoop
from redlatch.masters.listed import masters_of
from redlatch.wire.dial.connect import dial

FOR_EVER = 1 << 62


class Rig(EffectRig):
    """The rig with effects for a generator."""

    def __init__(self, build: impl.Implementation, url: str) -> None:
        super().__init__(build, AsyncClient(url))
        self.closed = False
        self.begun = False

    def steps(self, *effects: Any) -> Iterator[Any]:
        """Yield effects; set `closed` at the end, however it comes."""
        self.begun = True
        try:
            yield from effects
        finally:
            self.closed = True

    def waits(self, what: str) -> Any:
        """Return an effect that lasts for ever."""
        entry = self.new_entry(self.client.lock("x")._hold, FOR_EVER)
        if what == "entry":
            self.driver.queues.join(self.client._quorum, entry, self.clock.now())
            return entry
        return self.effects.Pause(self.clock.now() + 3600 * 10**9)

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run a test in a loop of its own, with a connected client."""

        async def main() -> None:
            await self.client.connect()
            try:
                async with asyncio.timeout(PATIENCE):
                    await test()
            finally:
                await self.client.close()

        asyncio.run(main())


@pytest.fixture
def rig(implementation: impl.Implementation, url: str) -> Rig:
    return Rig(implementation, url)


async def begun(rig: Rig, task: asyncio.Task[Any]) -> None:
    """Wait until a task waits in its first effect."""
    while not rig.begun:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()


def test_a_run_returns_the_answer(rig: Rig) -> None:
    async def test() -> None:
        assert await rig.driver.run(rig.steps(rig.effects.Answer(True))) is True
        assert await rig.driver.run(rig.steps(rig.effects.Answer(False))) is False
        assert await rig.driver.run(rig.steps()) is None

    rig.run(test)


def test_a_generator_goes_on_when_its_ballots_are_decided(rig: Rig, name: str) -> None:
    seen = []

    def steps() -> Iterator[Any]:
        first, second, third = (rig.ballot(f"{name}-{number}") for number in range(3))
        yield first
        seen.append(first.yes)
        yield rig.effects.Send([second, third])
        yield [second, third]
        seen.extend([second.yes, third.yes])

    async def test() -> None:
        await rig.driver.run(steps())

    rig.run(test)
    assert seen == [1, 1, 1]


def test_a_ballot_whose_time_is_over_names_the_silent_masters(
    implementation: impl.Implementation, url: str, proxies: Callable[[list[str]], list[Proxy]], name: str
) -> None:
    [proxy] = proxies([url])
    rig = Rig(implementation, proxy.url)

    async def test() -> None:
        proxy.replies.clear()
        ballot = rig.ballot(name, seconds=0.02)
        await rig.driver.run(rig.steps(ballot))
        assert (ballot.decided, ballot.silent) == (False, (0,))
        proxy.replies.set()

    rig.run(test)


@pytest.mark.parametrize("what", ["pause", "entry"])
def test_closing_the_client_ends_a_wait_and_the_generator(rig: Rig, what: str) -> None:
    async def test() -> None:
        call = asyncio.create_task(rig.driver.run(rig.steps(rig.waits(what), rig.effects.Answer(True))))
        await begun(rig, call)
        await rig.client.close()
        with pytest.raises(ClientClosed):
            await call
        assert rig.closed

    rig.run(test)


@pytest.mark.parametrize("what", ["pause", "entry"])
def test_a_cancelled_task_closes_its_generator(rig: Rig, what: str) -> None:
    async def test() -> None:
        call = asyncio.create_task(rig.driver.run(rig.steps(rig.waits(what))))
        await begun(rig, call)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert rig.closed

    rig.run(test)


def test_an_acquire_that_is_cancelled_leaves_no_key_and_frees_its_lock_object(rig: Rig, url: str, name: str) -> None:
    async def test() -> None:
        lock = rig.client.lock(name)
        steps = rig.client._quorum.acquire(lock._hold, 60_000, None, object())
        call = asyncio.create_task(rig.driver.run(steps))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await lock.acquire(timeout=PATIENCE)
        await lock.release()

    rig.run(test)
    assert not ask(url).exists(name)


def test_another_loop_may_neither_run_nor_close_the_client(rig: Rig) -> None:
    async def test() -> None:
        def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                asyncio.run(rig.client.connect())
            with pytest.raises(WrongLoop):
                asyncio.run(rig.client.close())

        await asyncio.to_thread(elsewhere)
        assert rig.driver.status.state == "1 of 1 connected"

    rig.run(test)


def test_a_connection_that_arrives_after_the_end_is_closed(rig: Rig, url: str) -> None:
    async def test() -> None:
        await rig.client.close()
        connection = dial(masters_of(url)[0], PATIENCE)
        rig.driver.deliver(0, connection)
        assert connection.sock.fileno() == -1

    rig.run(test)


def test_a_coroutine_has_the_name_of_the_public_call(rig: Rig) -> None:
    lock = rig.client.lock("x")
    calls = {
        "AsyncLock.acquire": lock.acquire(),
        "AsyncLock.release": lock.release(),
    }
    for shown, call in calls.items():
        assert call.__qualname__ == shown
        call.close()


def test_the_commands_of_the_first_half_of_the_tasks_are_sent_before_the_second_half_runs(
    implementation: impl.Implementation, url: str, name: str
) -> None:
    count = 8
    names, master, seen = [f"{name}-{number}" for number in range(count)], ask(url), []

    async def work(client: AsyncClient, number: int) -> None:
        lock = client.lock(names[number])
        assert await lock.acquire(blocking=False)
        if number == count - 1:
            # This blocks the loop. So only a write in the middle of this turn can release these locks.
            await_true(lambda: not master.exists(*names[: count // 2]))
            seen.append(master.exists(*names[count // 2 :]))
        await lock.release()

    async def main() -> None:
        async with AsyncClient(url) as client:
            tasks = [asyncio.ensure_future(work(client, number)) for number in range(count)]
            # The tasks run, and then their commands are sent.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # All replies are there before the loop reads the first.
            await_true(lambda: master.exists(*names) == count)
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert seen == [count // 2]
    assert not master.exists(*names)
