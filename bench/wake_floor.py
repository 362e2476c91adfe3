"""How many cycles Python threads reach that only wait to be woken, twice a cycle, as a lock client has them do.

An acquire and a release each block their thread until another one, which has read the master's reply, wakes it. Here
nothing is sent and nothing read, so no client for threads is faster than this on the same machine and Python:

    python bench/wake_floor.py [--threads 64] [--seconds 1] [--rounds 5]
"""

from __future__ import annotations

import argparse
import collections
import statistics
import threading
import time


def race(threads: int, seconds: float) -> float:
    """Return how many cycles a second so many threads had."""
    asked: collections.deque[threading.Lock] = collections.deque()
    bell = threading.Semaphore(0)
    running = True
    had = [0] * threads

    def work(place: int) -> None:
        mine = threading.Lock()
        mine.acquire()
        while running:
            for _ in ("acquire", "release"):
                asked.append(mine)
                if len(asked) == 1:  # nobody has rung for those before it that are still to be woken
                    bell.release()
                mine.acquire()
            had[place] += 1

    def wake() -> None:
        while any(worker.is_alive() for worker in workers):
            bell.acquire(timeout=0.01)
            while asked:
                asked.popleft().release()

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    waker = threading.Thread(target=wake)
    for thread in [*workers, waker]:
        thread.start()
    time.sleep(seconds)
    total = sum(had)
    running = False
    for thread in [*workers, waker]:
        thread.join()
    return total / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rates = [race(given.threads, given.seconds) for _ in range(given.rounds)]
    print(
        f"{given.threads} threads that only wait to be woken: {statistics.median(rates):,.0f} cycles a second "
        f"({min(rates):,.0f}..{max(rates):,.0f})"
    )


if __name__ == "__main__":
    main()
