"""What it costs to do without scripts: cycles per second with scripts, and with WATCH, MULTI and EXEC.

python bench/without_scripts.py [ROUNDS] [SECONDS]: a table with the median of the rounds, the lowest and the highest,
and the CPU time of the client for each cycle, which depends less on what else the machine does. The modes take turns in
each round. "script" releases by EVALSHA, as servers do that have neither DELIFEQ nor DELEX.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from redlatch import AsyncClient, Client
from redlatch.testing import embedded

# Of the masters: the mode of the client, and what they refuse.
MODES = {
    "DELIFEQ": ("lua", ""),
    "script": ("lua", "-delifeq"),
    "watch, DELIFEQ": ("watch", "-@scripting"),
    "watch": ("watch", "-@scripting -delifeq"),
}
TASKS = 64


def one_caller(urls: list[str], mode: Any, seconds: float) -> float:
    """Return the cycles per second of one thread."""
    with Client(urls, scripts=mode) as client:
        lock = client.lock("bench")
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            lock.acquire()
            lock.release()
            done += 1
        return done / seconds


def extensions(urls: list[str], mode: Any, seconds: float) -> float:
    """Return the extensions per second of one thread."""
    with Client(urls, scripts=mode) as client, client.lock("bench") as lock:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            lock.extend()
            done += 1
        return done / seconds


def many_tasks(urls: list[str], mode: Any, seconds: float) -> float:
    """Return the cycles per second of tasks with a name each."""

    async def work() -> float:
        async with AsyncClient(urls, scripts=mode) as client:
            done, end = 0, time.perf_counter() + seconds

            async def cycle(number: int) -> None:
                nonlocal done
                lock = client.lock(f"bench-{number}")
                while time.perf_counter() < end:
                    await lock.acquire()
                    await lock.release()
                    done += 1

            await asyncio.gather(*[cycle(number) for number in range(TASKS)])
            return done / seconds

    return asyncio.run(work())


WORK: dict[str, Callable[[list[str], Any, float], float]] = {
    "one thread": one_caller,
    "extensions, one thread": extensions,
    f"{TASKS} tasks": many_tasks,
}


def _cell(found: list[tuple[float, float]]) -> str:
    rates, times = zip(*found, strict=True)
    median, low, high = statistics.median(rates), min(rates), max(rates)
    return f"{median:,.0f} ({low:,.0f}-{high:,.0f}), {statistics.median(times) * 1e6:,.0f} us"


def main(rounds: int, seconds: float) -> None:
    """Print the table."""
    print(f"| cycles per second | N | {' | '.join(MODES)} |\n|---|---|{'---|' * len(MODES)}")
    for masters in (1, 3):
        fleets = {
            name: embedded.masters(masters, config={"user": f"default on nopass ~* &* +@all {refused}".strip()})
            for name, (_, refused) in MODES.items()
        }
        for fleet in fleets.values():
            fleet.__enter__()
        for what, work in WORK.items():
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in MODES}
            for _ in range(rounds):
                for name, (mode, _) in MODES.items():
                    began = time.process_time()
                    rate = work(fleets[name].urls, mode, seconds)
                    found[name].append((rate, (time.process_time() - began) / max(1.0, rate * seconds)))
            cells = [_cell(each) for each in found.values()]
            print(f"| {what} | {masters} | {' | '.join(cells)} |", flush=True)
        for fleet in fleets.values():
            fleet.__exit__(None, None, None)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7, float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
