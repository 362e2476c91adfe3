"""Measure how many cycles Python threads reach that only sleep and wake, twice in a cycle, as in a lock client.

An acquire and a release each block their thread until another thread, which has read the reply, wakes it. This script
sends and reads no data. It compares two ways to wake many threads. In the first, one thread wakes all others, as in a
simple client. In the second, each thread wakes the next one when it goes to sleep, as in redlatch, and a fixed number
of threads is awake at once. Between two waits, a thread only counts; --work simulates the work of a client and its
caller:

    python bench/wake_floor.py [--threads 64] [--seconds 1] [--rounds 5] [--work 0]
"""

from __future__ import annotations

import argparse
import collections
import statistics
import threading
import time
from collections.abc import Callable

from redlatch import impl

# A wait ends by itself after this time, so that the threads end after the race.
PATIENCE_NS = 100_000_000


class Race:
    """Run a number of threads that have cycles until the race is over. A subclass defines how they wait.

    Args:
        threads: the number of threads.
        work: how far each thread counts between two waits.
    """

    def __init__(self, threads: int, work: int) -> None:
        self.threads, self.work = threads, work
        self.running = True
        self.had = [0] * threads

    def wait(self) -> None:
        """Wait until woken."""
        raise NotImplementedError

    def beside(self) -> None:
        """Do the work of the extra thread, if there is one, until the race is over."""

    def run(self, seconds: float) -> float:
        """Run the race for `seconds` and return the cycles per second."""
        jobs: list[Callable[[], None]] = [lambda place=place: self._live(place) for place in range(self.threads)]  # type: ignore[misc]
        started = [threading.Thread(target=job) for job in [*jobs, self.beside]]
        for thread in started:
            thread.start()
        time.sleep(seconds)
        total = sum(self.had)
        self.running = False
        for thread in started:
            thread.join()
        return total / seconds

    def _live(self, place: int) -> None:
        while self.running:
            for _ in ("acquire", "release"):
                self.wait()
                for _ in range(self.work):
                    pass
            self.had[place] += 1


class OneWakesAll(Race):
    """One thread wakes all others."""

    def __init__(self, threads: int, work: int) -> None:
        super().__init__(threads, work)
        self._asked: collections.deque[threading.Lock] = collections.deque()
        self._bell = threading.Semaphore(0)
        self._own = threading.local()

    def wait(self) -> None:
        mine = getattr(self._own, "lock", None)
        if mine is None:
            mine = self._own.lock = threading.Lock()
            mine.acquire()
        self._asked.append(mine)
        # Ring once for each group of waiting threads: the first of a group rings.
        if len(self._asked) == 1:
            self._bell.release()
        if not mine.acquire(timeout=PATIENCE_NS / 1e9):
            try:
                self._asked.remove(mine)
            # The other thread is just waking this one.
            except ValueError:
                mine.acquire()

    def beside(self) -> None:
        while self.running:
            self._bell.acquire(timeout=0.01)
            while self._asked:
                self._asked.popleft().release()


class EachWakesTheNext(Race):
    """A thread that goes to sleep wakes the one that has slept longest; `abreast` threads are awake at once."""

    def __init__(self, threads: int, work: int, abreast: int) -> None:
        super().__init__(threads, work)
        self._most_asleep = threads - abreast
        self._sleepers: collections.deque[object] = collections.deque()
        self._sleeper = impl.current.module("drivers.sleeper").Sleeper

    def wait(self) -> None:
        sleeper = self._sleeper()
        self._sleepers.append(sleeper)
        other = self._sleepers.popleft() if len(self._sleepers) > self._most_asleep else None
        sleeper.sleep(PATIENCE_NS, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=int, default=0, help="how far a thread counts between two waits")
    given = parser.parse_args()
    ways: dict[str, Callable[[], Race]] = {
        "one thread wakes all": lambda: OneWakesAll(given.threads, given.work),
        "each wakes the next, 1 awake": lambda: EachWakesTheNext(given.threads, given.work, 1),
        "each wakes the next, 2 awake": lambda: EachWakesTheNext(given.threads, given.work, 2),
        "each wakes the next, 3 awake": lambda: EachWakesTheNext(given.threads, given.work, 3),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, race in ways.items():
            rates[way].append(race().run(given.seconds))
    for way, seen in rates.items():
        middle = statistics.median(seen)
        print(f"{way}: {middle:,.0f} cycles a second ({min(seen):,.0f}..{max(seen):,.0f})")


if __name__ == "__main__":
    main()
