"""Measure for how long a client has no lock after everyday operations on its masters, with default settings.

    python bench/operations.py [--only TEXT] [--times 3]

Each operation runs on real servers of its own. A thread takes and releases a lock in a loop the whole time. The figure
is the longest time between two locks that it had, from the operation on: the outage that a user sees. The median and
the longest of several runs are printed.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import click
import redis
from rich.console import Console
from rich.table import Table

from redlatch import Client, QuorumUnavailable
from redlatch.testing import Masters, masters

# An operation is watched until the service has had locks again for CALM seconds, or for WATCHED seconds.
CALM = 3.0
WATCHED = 75.0


class Service:
    """A process that needs locks: its client takes and releases one all the time.

    Attributes:
        at: when it last had a lock, in seconds of the monotonic clock.
        longest: the longest time between two locks since `watch`.
    """

    def __init__(self, urls: list[str]) -> None:
        self.client = Client(urls)
        self.at = time.monotonic()
        self.longest = 0.0
        self.had = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self.client.lock("sku:4711", timeout=1.0):
                    now = time.monotonic()
                    self.longest, self.at = max(self.longest, now - self.at), now
                    self.had += 1
            except QuorumUnavailable:
                time.sleep(0.001)

    def watch(self) -> None:
        """Begin to measure with the next lock."""
        before = self.had
        while self.had <= before + 1:
            time.sleep(0.001)
        self.longest = 0.0

    def outage(self) -> float:
        """Return the longest time without a lock, once it has had locks for CALM seconds, or after WATCHED seconds."""
        since, end = time.monotonic(), time.monotonic() + WATCHED
        while time.monotonic() < min(end, since + CALM):
            had = self.had
            time.sleep(0.5)
            if self.had == had:
                since = time.monotonic()
        return max(self.longest, time.monotonic() - self.at)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.client.close()


def flush_one(fleet: Masters) -> None:
    """Remove all keys of the first master."""
    with redis.Redis.from_url(fleet.urls[0]) as server:
        server.flushall()


def restart_one(fleet: Masters, index: int = 0) -> None:
    """Kill a master (SIGKILL) and start it again. The time in which it does not run counts."""
    fleet.kill(index)
    fleet.start(index)


def restart_two(fleet: Masters) -> None:
    """Restart two masters, the second one a second after the first."""
    restart_one(fleet)
    time.sleep(1.0)
    restart_one(fleet, 1)


def outage_of(count: int, operate: Callable[[Masters], None]) -> float:
    """Return the outage in seconds that an operation causes."""
    fleet = masters(count)
    with fleet as urls:
        service = Service(urls)
        try:
            service.watch()
            operate(fleet)
            return service.outage()
        finally:
            service.close()


def first_lock() -> float:
    """Start a service, and then three fresh masters one by one; return when it has a lock, after the last has answered.

    The masters lose all that they had before, because they are killed and keep nothing.
    """
    fleet = masters(3)
    with fleet as urls:
        for index in range(3):
            fleet.kill(index)
        service = Service(urls)
        try:
            for index in range(3):
                time.sleep(1.0)
                fleet.start(index)
            answered = time.monotonic()
            while not service.had and time.monotonic() < answered + WATCHED:
                time.sleep(0.001)
            return time.monotonic() - answered
        finally:
            service.close()


OPERATIONS: dict[str, Callable[[], float]] = {
    "one master: FLUSHALL": partial(outage_of, 1, flush_one),
    "one master: kill -9 and restart": partial(outage_of, 1, restart_one),
    "three fresh masters, started one by one after the service": first_lock,
    "three masters: one restarted": partial(outage_of, 3, restart_one),
    "three masters: two restarted, 1 s apart": partial(outage_of, 3, restart_two),
}


@click.command()
@click.option("--only", default="", help="Only the operations whose name has this in it.")
@click.option("--times", default=3, show_default=True, help="How often each one is measured.")
def main(only: str, times: int) -> None:
    """Measure the outage that each operation causes."""
    table = Table("operation", "median, s", "longest, s")
    for name, measure in OPERATIONS.items():
        if only in name:
            outages = [measure() for _ in range(times)]
            table.add_row(name, f"{statistics.median(outages):.3f}", f"{max(outages):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
