"""Measure how soon a holder is told that its only master was flushed, with default settings.

    python bench/told.py [--times 300]

The time begins when the server has answered FLUSHALL, and ends when `on_lost` runs. An event loop reads from the server
all the time, and so does a thread that is in a call. If no thread is in a call, the background thread reads.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable

import click
import redis
from rich.console import Console
from rich.table import Table

from redlatch import AsyncClient, Client
from redlatch.testing import masters

# A holder that is not told within this time, in seconds, ends the program.
PATIENCE = 30.0


class Flushes:
    """Flushes a server, and notes when it has answered."""

    def __init__(self, url: str) -> None:
        self._server = redis.Redis.from_url(url)
        self._answered = 0.0
        self.told = threading.Event()
        self.seconds: list[float] = []

    def flush(self) -> None:
        """Remove all keys."""
        self.told.clear()
        self._server.flushall()
        self._answered = time.perf_counter()

    def note(self, lock: object, reason: str) -> None:
        """Note that the holder was told, perhaps before the answer to FLUSHALL was read."""
        self.seconds.append(max(0.0, time.perf_counter() - self._answered))
        self.told.set()


def threads(url: str, times: int, busy: bool) -> list[float]:
    """Measure a client for threads; if `busy`, another thread of it waits for a lock that somebody else has."""
    flushes = Flushes(url)
    with Client(url) as client, Client(url) as other:
        for turn in range(times):
            elsewhere = other.lock(f"elsewhere-{turn}", ttl=60.0)
            elsewhere.acquire()
            waiting = client.lock(f"elsewhere-{turn}", ttl=60.0)
            thread = threading.Thread(target=lambda lock=waiting: lock.acquire(timeout=PATIENCE), daemon=True)
            if busy:
                thread.start()
            lock = client.lock(f"told-{turn}", ttl=60.0, on_lost=flushes.note)
            lock.acquire()
            time.sleep(0.02)
            flushes.flush()
            if not flushes.told.wait(PATIENCE):
                raise RuntimeError("the holder was not told")
            if busy:
                thread.join()
    return flushes.seconds


async def tasks(url: str, times: int) -> list[float]:
    """Measure a client for asyncio."""
    flushes = Flushes(url)
    async with AsyncClient(url) as client:
        for turn in range(times):
            told = asyncio.Event()
            lock = client.lock(
                f"told-{turn}", ttl=60.0, on_lost=lambda lock, why, told=told: (flushes.note(lock, why), told.set())
            )
            await lock.acquire()
            await asyncio.to_thread(flushes.flush)
            async with asyncio.timeout(PATIENCE):
                await told.wait()
    return flushes.seconds


CASES: dict[str, Callable[[str, int], list[float]]] = {
    "asyncio": lambda url, times: asyncio.run(tasks(url, times)),
    "threads, one of them in a call": lambda url, times: threads(url, times, True),
    "threads, none of them in a call": lambda url, times: threads(url, times, False),
}


@click.command()
@click.option("--times", default=300, show_default=True, help="How often the server is flushed.")
def main(times: int) -> None:
    """Measure how soon a holder is told of a flush."""
    table = Table("face", "median, ms", "p99, ms", "longest, ms")
    for name, measure in CASES.items():
        with masters(1) as urls:
            seconds = measure(urls[0], times)
        p99 = statistics.quantiles(seconds, n=100)[98]
        table.add_row(name, *[f"{1000 * each:.2f}" for each in (statistics.median(seconds), p99, max(seconds))])
    Console().print(table)


if __name__ == "__main__":
    main()
