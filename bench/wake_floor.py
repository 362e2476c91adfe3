"""How many cycles Python threads reach that only wait to be woken, twice a cycle, as a lock client has them do.

An acquire and a release each block their thread until another one, which has read the master's reply, wakes it. Here
nothing is sent and nothing read. Two ways to wake so many threads are raced: one thread wakes all of them, as the first
idea of a client would be; and each wakes the next when it goes to sleep itself, as redlatch does, with so many of them
awake at once. Between two waits a thread does nothing but count, or works for as long as a client and its caller do:

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

PATIENCE_NS = 100_000_000  # after which a thread that nobody wakes ends its wait, when the race is over


class Race:
    """So many threads, each of which has cycles until it is over; a subclass says how they wait.

    Args:
        threads: how many.
        work: how many times each counts between two waits.
    """

    def __init__(self, threads: int, work: int) -> None:
        self.threads, self.work = threads, work
        self.running = True
        self.had = [0] * threads

    def wait(self) -> None:
        """Wait until woken."""
        raise NotImplementedError

    def beside(self) -> None:
        """Do what is done beside the threads, until the race is over."""

    def run(self, seconds: float) -> float:
        """Return how many cycles a second there were."""
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
    """One thread wakes whoever waits."""

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
        if len(self._asked) == 1:  # nobody has rung for those before it that are still to be woken
            self._bell.release()
        if not mine.acquire(timeout=PATIENCE_NS / 1e9):
            try:
                self._asked.remove(mine)
            except ValueError:  # it is being woken just now
                mine.acquire()

    def beside(self) -> None:
        while self.running:
            self._bell.acquire(timeout=0.01)
            while self._asked:
                self._asked.popleft().release()


class EachWakesTheNext(Race):
    """Whoever goes to sleep wakes the one that sleeps longest; `abreast` threads are awake at once."""

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
