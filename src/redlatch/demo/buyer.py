"""A buyer process of the demo: `python -m redlatch.demo.buyer`. It reads a plan from stdin and writes events to stdout.

The second line of stdin starts the sale. At the end of stdin this process exits, even if the demo was killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import redlatch
from redlatch.demo.process import Event, Face, Kind, Plan
from redlatch.demo.shop import Doom, Shop, purchase
from redlatch.errors import LockError, LockLost, NotOwned, QuorumUnavailable

# The default of 8 MiB for each of a thousand threads would need much address space.
_STACK_BYTES = 512 * 1024

# The longest pauses in seconds before the next attempts of a buyer. Longer ones reduce the load of a busy machine.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *(1.0,) * 11)

# A release may raise these after a sale. The lock was valid before the write, and the key is gone or will expire.
_HARMLESS = (LockLost, NotOwned, QuorumUnavailable)


class OutOfPatience(Exception): ...


class BuyerProcess:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shop = Shop(plan.folder)
        self._doom = Doom(self._shop, plan.doomed_at)

    def run_threads(self) -> None:
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
        door.wait()
        try:
            steps, step = self._buying(client, buyer), None
            with suppress(StopIteration):
                while True:
                    step = steps.send(step)
                    if type(step) is float:
                        time.sleep(step)
        except Exception as error:
            _give_up(error)

    async def run_tasks(self) -> None:
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
        await door.wait()
        try:
            steps = self._buying(client, buyer)
            with suppress(StopIteration):
                step = next(steps)
                while True:
                    try:
                        answer = await (asyncio.sleep(step) if type(step) is float else step)
                    except LockError as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(answer)
        except Exception as error:
            _give_up(error)

    def _buying(self, client: Any, buyer: int) -> Generator[Any, Any, None]:
        """Buy one item. Yield the seconds to pause, and each call of a lock: its result, or what the task awaits."""
        if client is None:
            yield from purchase(self._shop, buyer, self._doom, None, lambda: None)
            return
        for pause in _PAUSES:
            failure = yield from self._buying_locked(client, buyer)
            if failure is None:
                return
            yield random.uniform(pause / 2, pause)
        raise OutOfPatience(f"a buyer failed {len(_PAUSES)} times to buy under the lock; the last error: {failure}")

    def _buying_locked(self, client: Any, buyer: int) -> Generator[Any, Any, LockError | None]:
        # It returns the error if nothing was written.
        lock = client.lock(self._plan.name, ttl=self._plan.ttl)
        began = time.perf_counter()
        try:
            if not (yield lock.acquire(timeout=self._plan.patience)):
                raise OutOfPatience(f"a buyer did not get the lock within {self._plan.patience:.0f} s")
        except QuorumUnavailable as failure:
            Event(Kind.UNANSWERED).send()
            return failure
        wait = time.perf_counter() - began
        try:
            yield from purchase(self._shop, buyer, self._doom, wait, lock.check)
        except LockLost as failure:
            Event(Kind.LOST, wait).send()
            return failure
        finally:
            with suppress(*_HARMLESS):
                yield lock.release()
        return None

    def _open_at_signal(self, open_door: Callable[[], object]) -> None:
        def watch() -> None:
            if sys.stdin.buffer.readline():
                open_door()
                sys.stdin.buffer.read()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        Event(Kind.READY, text=redlatch.IMPL).send()


def _give_up(error: Exception) -> None:
    # Do not wait for the other buyers of this process.
    what = str(error) if isinstance(error, LockError | OutOfPatience) else repr(error)
    try:
        Event(Kind.FAILED, text=what or type(error).__name__).send()
    finally:
        os._exit(1)


def main() -> None:
    plan = Plan.from_line(sys.stdin.buffer.readline())
    try:
        process = BuyerProcess(plan)
        if plan.face is Face.THREADS:
            process.run_threads()
        else:
            asyncio.run(process.run_tasks())
        Event(Kind.DONE).send()
    except Exception as error:
        _give_up(error)
    # Skip the interpreter's shutdown, which would wait for the thread that reads stdin.
    os._exit(0)


if __name__ == "__main__":
    main()
