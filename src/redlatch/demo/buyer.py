"""A buyer process of the demo: `python -m redlatch.demo.buyer`, its plan on stdin, its events on stdout.

The plan is the first line of stdin, the second starts the sale. When stdin ends after that, the demo is gone and so is
this process: nothing is left behind, even if the demo was killed with SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import redlatch
from redlatch.demo.messages import Event, Face, Kind, Plan
from redlatch.demo.shop import Doom, Shop, purchase
from redlatch.errors import LockError, LockLost, NotOwned, QuorumUnavailable

# A buyer needs little stack; the default of 8 MiB each would be much address space for a thousand threads.
_STACK_BYTES = 512 * 1024

# Seconds at most between a buyer's tries when its lease runs out under it, or no quorum answers because the machine is
# too busy: longer and longer, so that buyers who overload it relieve it. After the last the masters must be gone.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.0,) * 11)

# What a release may raise after a sale: the key is gone or goes with its ttl; before the write all was well.
_HARMLESS = (LockLost, NotOwned, QuorumUnavailable)


class OutOfPatience(Exception):
    """A buyer cannot get the lock."""


class BuyerProcess:
    """The buyers of one process: all wait at the door, then each buys one item or finds none left."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shop = Shop(plan.folder)
        self._doom = Doom(self._shop, plan.doomed_at)

    def run_threads(self) -> None:
        """Run each buyer in a thread of its own."""
        plan = self._plan
        client = redlatch.Client(list(plan.urls), **plan.options) if plan.urls else None
        if client is not None:
            client.connect()
        door = threading.Event()
        threading.stack_size(_STACK_BYTES)
        threads = [threading.Thread(target=self._in_thread, args=(client, door, buyer)) for buyer in plan.buyers]
        for thread in threads:
            thread.start()
        self._open_at_signal(door.set)
        for thread in threads:
            thread.join()
        if client is not None:
            client.close()

    def _in_thread(self, client: redlatch.Client | None, door: threading.Event, buyer: int) -> None:
        """Wait at the door and buy; a failure ends the whole process, for the result could not be trusted."""
        door.wait()
        try:
            if client is None:
                for pause in purchase(self._shop, buyer, self._doom, None, _unchecked):
                    time.sleep(pause)
            else:
                for pause in _PAUSES:
                    if (failure := self._buy_locked(client, buyer)) is None:
                        return
                    time.sleep(random.uniform(pause / 2, pause))
                raise OutOfPatience(f"a buyer tried {len(_PAUSES)} times in vain, the last time: {failure}")
        except Exception as error:
            _give_up(error)

    def _buy_locked(self, client: redlatch.Client, buyer: int) -> LockError | None:
        """Buy under the lock; return why nothing was written, where it is worth another try."""
        lock = client.lock(self._plan.name, ttl=self._plan.ttl)
        began = time.perf_counter()
        try:
            if not lock.acquire(timeout=self._plan.patience):
                raise OutOfPatience(f"a buyer waited {self._plan.patience:.0f} s for the lock in vain")
        except QuorumUnavailable as failure:
            Event(Kind.UNANSWERED).send()
            return failure
        wait = time.perf_counter() - began
        try:
            for pause in purchase(self._shop, buyer, self._doom, wait, lock.check):
                time.sleep(pause)
        except LockLost as failure:
            Event(Kind.LOST, wait).send()
            return failure
        finally:
            with suppress(*_HARMLESS):
                lock.release()
        return None

    async def run_tasks(self) -> None:
        """Run each buyer in an asyncio task of its own."""
        plan = self._plan
        client = redlatch.AsyncClient(list(plan.urls), **plan.options) if plan.urls else None
        if client is not None:
            await client.connect()
        door = asyncio.Event()
        tasks = [asyncio.create_task(self._in_task(client, door, buyer)) for buyer in plan.buyers]
        loop = asyncio.get_running_loop()
        self._open_at_signal(lambda: loop.call_soon_threadsafe(door.set))
        await asyncio.gather(*tasks)
        if client is not None:
            await client.close()

    async def _in_task(self, client: redlatch.AsyncClient | None, door: asyncio.Event, buyer: int) -> None:
        """Wait at the door and buy; a failure ends the whole process, for the result could not be trusted."""
        await door.wait()
        try:
            if client is None:
                for pause in purchase(self._shop, buyer, self._doom, None, _unchecked):
                    await asyncio.sleep(pause)
            else:
                for pause in _PAUSES:
                    if (failure := await self._buy_locked_async(client, buyer)) is None:
                        return
                    await asyncio.sleep(random.uniform(pause / 2, pause))
                raise OutOfPatience(f"a buyer tried {len(_PAUSES)} times in vain, the last time: {failure}")
        except Exception as error:
            _give_up(error)

    async def _buy_locked_async(self, client: redlatch.AsyncClient, buyer: int) -> LockError | None:
        """Buy under the lock; return why nothing was written, where it is worth another try."""
        lock = client.lock(self._plan.name, ttl=self._plan.ttl)
        began = time.perf_counter()
        try:
            if not await lock.acquire(timeout=self._plan.patience):
                raise OutOfPatience(f"a buyer waited {self._plan.patience:.0f} s for the lock in vain")
        except QuorumUnavailable as failure:
            Event(Kind.UNANSWERED).send()
            return failure
        wait = time.perf_counter() - began
        try:
            for pause in purchase(self._shop, buyer, self._doom, wait, lock.check):
                await asyncio.sleep(pause)
        except LockLost as failure:
            Event(Kind.LOST, wait).send()
            return failure
        finally:
            with suppress(*_HARMLESS):
                await lock.release()
        return None

    def _open_at_signal(self, open_door: Callable[[], object]) -> None:
        """Say that all buyers are here, open the door at the next line of stdin, and die when stdin ends."""

        def watch() -> None:
            if sys.stdin.buffer.readline():
                open_door()
                sys.stdin.buffer.read()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        Event(Kind.READY, text=redlatch.IMPL).send()


def _unchecked() -> None:
    """Check nothing: there is no lock in the sale without one."""


def _give_up(error: Exception) -> None:
    """Tell why and end the process, whatever its other buyers are doing."""
    what = str(error) if isinstance(error, LockError | OutOfPatience) else repr(error)
    try:
        Event(Kind.FAILED, text=what or type(error).__name__).send()
    finally:  # the demo may be gone
        os._exit(1)


def main() -> None:
    """Run the plan that comes down stdin."""
    plan = Plan.from_line(sys.stdin.buffer.readline())
    try:
        process = BuyerProcess(plan)
        if plan.face is Face.THREADS:
            process.run_threads()
        else:
            asyncio.run(process.run_tasks())
        Event(Kind.DONE).send()
    except Exception as error:  # such as too many threads for this machine; those at the door would wait for ever
        _give_up(error)
    # The watching thread sits in a read of stdin, whose buffer the interpreter would want at its end.
    os._exit(0)


if __name__ == "__main__":
    main()
