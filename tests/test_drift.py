"""A hundred thousand cycles leave no block of memory, no reference to shared objects, and no descriptor."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from support.builds import builds

from redlatch import AsyncClient, Client, impl

pytestmark = [
    pytest.mark.timeout(1000),
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc"),
    pytest.mark.skipif("PYTHONMALLOC" in os.environ, reason="blocks are counted by Python's own allocator"),
]

# They run in a process of their own, where no other objects come and go.
ALONE = "REDLATCH_DRIFT"
alone = pytest.mark.skipif(ALONE not in os.environ, reason="runs in a process of its own")

CYCLES = {"c": 100_000, "python": 20_000}
WARM = 2_000

# The counts may differ by this by chance, whatever the number of cycles: the engine frees some memory only now and
# then, tokens are drawn by the hundred, and the interpreter has its own lists of free objects.
CHANCE = 400

# After this many seconds nothing of a cycle is kept: a ballot stays among the deadlines until its time is over.
SETTLED = 0.7


def counts(client: Any) -> dict[str, int]:
    """Count blocks, descriptors, and references to the objects that every cycle uses."""
    gc.collect()
    shared: list[Any] = [None, True, False, 0, 1, b"OK", type(client.lock("x")), client]
    found = {f"references to {one!r:.40}": sys.getrefcount(one) for one in shared}
    del shared
    return found | {"blocks": sys.getallocatedblocks(), "descriptors": len(os.listdir("/proc/self/fd"))}


def assert_no_drift(before: dict[str, int], after: dict[str, int]) -> None:
    drifted = {what: after[what] - count for what, count in before.items() if abs(after[what] - count) > CHANCE}
    assert not drifted
    assert before["descriptors"] == after["descriptors"]


@alone
def test_cycles_of_a_thread_leave_nothing(implementation: impl.Implementation, url: str, name: str) -> None:
    with Client(url) as client:

        def cycle(number: int) -> None:
            lock = client.lock(name, fence=number % 10 == 0, fair=number % 10 == 1)
            assert lock.acquire(blocking=False)
            if number % 10 == 2:
                lock.extend()
            if number % 10 == 3:
                assert not client.lock(name).acquire(blocking=False)
            lock.release()

        seen = []
        for cycles in (WARM, CYCLES[implementation.name]):
            for number in range(cycles):
                cycle(number)
            time.sleep(SETTLED)
            cycle(0)
            seen.append(counts(client))
    assert_no_drift(*seen)


@alone
def test_cycles_of_tasks_leave_nothing(implementation: impl.Implementation, url: str, name: str) -> None:
    async def cycle(client: AsyncClient, number: int) -> None:
        lock = client.lock(f"{name}-{number % 4}", fence=number % 10 == 0, fair=number % 10 == 1)
        acquiring = asyncio.ensure_future(lock.acquire())
        if number % 10 == 2:
            await asyncio.sleep(0)
            acquiring.cancel()
        try:
            assert await acquiring
        except asyncio.CancelledError:
            return
        await lock.release()

    async def main() -> None:
        async with AsyncClient(url) as client:

            async def some(cycles: int) -> None:
                await asyncio.gather(*(several(cycles // 20, first) for first in range(20)))

            async def several(cycles: int, first: int) -> None:
                for number in range(first, first + cycles):
                    await cycle(client, number)

            for cycles in (WARM, CYCLES[implementation.name]):
                await some(cycles)
                await asyncio.sleep(SETTLED)
                await cycle(client, 0)
                seen.append(counts(client))

    seen: list[dict[str, int]] = []
    asyncio.run(main())
    assert_no_drift(*seen)


@alone
def test_clients_that_are_opened_and_closed_leave_nothing(implementation: impl.Implementation, urls: list[str]) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            with Client(urls) as client:
                client.connect()

    come_and_go(20)
    with Client(urls) as client:
        client.connect()
        before = counts(client)
        come_and_go(100)
        after = counts(client)
    assert before["descriptors"] == after["descriptors"]
    assert after["blocks"] - before["blocks"] < 100 * 10


@alone
@pytest.mark.parametrize("leak", [lambda kept: kept.append(bytearray(3)), lambda kept: kept.append(None)])
def test_a_leak_is_detected(leak: Any, url: str) -> None:
    with Client(url) as client:
        kept: list[Any] = []
        before = counts(client)
        for _ in range(1000):
            leak(kept)
        with pytest.raises(AssertionError):
            assert_no_drift(before, counts(client))


@pytest.mark.slow("leaks of less than a block in a thousand cycles")
@pytest.mark.skipif(ALONE in os.environ, reason="this is the process of its own")
def test_nothing_is_left_of_many_cycles() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    ended = subprocess.run(command, env=os.environ | {ALONE: "1"}, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert f" {3 * len(builds()) + 2} passed" in f" {ended.stdout.splitlines()[-1]}"
