"""One run of a contender: its order, its clock and its figures."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Awaitable, Callable
from time import perf_counter_ns, sleep
from types import TracebackType
from typing import Any

from bench.ledger import Caller, Ledger

Answer = dict[str, Any]
NEVER = 1 << 62

# The modes in which all callers want one name, and the seconds that each owner keeps it. In a relay, a caller asks
# again only after another caller has had the lock. So the next owner always waits already when the lock is released.
HOT = {"hot": 0.0, "hold": 0.001, "relay": 0.002}

# The seconds between two checks of a relay's last owner.
NAP = 0.0005


class Order:
    """One line of stdin, and the clock of its run.

    Args:
        line: "MODE AMOUNT [WIDTH]"; the amount is a number of cycles ("2000") or of seconds ("0.5s"). A mode in `HOT`
            has three more words: the descriptor of the ledger, the number of this process, and the start in ns.
    """

    count = 0

    def __init__(self, line: str) -> None:
        mode, amount, *more = line.split()
        self.mode = mode
        # The seconds of rest before each cycle, which are not measured.
        self.rest = HOT["relay"] if mode == "rested" else 0.0
        self.width, *self._hot = (int(word) for word in more or ["1"])
        timed_run = amount.endswith("s")
        self.seconds = float(amount[:-1]) if timed_run else 0.0
        self.amount = 0 if timed_run else int(amount)
        self.cycles_each = NEVER if timed_run else max(1, self.amount // self.width)

    def begin(self) -> None:
        """Start the clock and the count of CPU time. Call it again when all callers are ready to start."""
        self.cpu_before = cpu_seconds()
        self.started_ns = perf_counter_ns()
        self.end_ns = self.started_ns + int(self.seconds * 1e9) if self.seconds else NEVER

    def start(self) -> list[str]:
        """Start all counters and return a new prefix for the names of each caller."""
        Order.count += 1
        self.begin()
        return [f"bench:{os.getpid()}:{Order.count}:{i}:" for i in range(self.width)]

    def holds(self) -> tuple[list[str], list[str]]:
        """Return the names of the locks to hold, in two lists: half the ordered number, and then the ordered number.

        The locks of the first list fill the free memory of a process that has just started. So the locks of the second
        list need new memory.
        """
        names = [f"bench:{os.getpid()}:held:{number}" for number in range(self.amount * 3 // 2)]
        return names[: self.amount // 2], names[self.amount // 2 :]

    def contest(self) -> tuple[str, list[Caller]]:
        """Start all counters; return the hot name, and the callers of this process."""
        ledger, process, start_ns = self._hot
        self.begin()
        self.started_ns = start_ns
        self.end_ns = start_ns + int(self.seconds * 1e9)
        cells = Ledger(ledger)
        first = process * self.width + 1
        return f"bench:hot:{start_ns}", [Caller(cells, first + i, self.end_ns) for i in range(self.width)]

    def until_start(self) -> float:
        """Return the seconds until all processes begin."""
        return max(0.0, (self.started_ns - perf_counter_ns()) / 1e9)

    def hot_answer(self, callers: list[Caller]) -> Answer:
        """Return the observations of this process's callers; `team` makes figures from them."""
        return {
            "mode": self.mode,
            "width": self.width,
            "seconds": self.seconds,
            "cpu_s": cpu_seconds() - self.cpu_before,
            "cycles": sum(caller.entries for caller in callers),
            "overlaps": sum(caller.overlaps for caller in callers),
            "held_s": sum(caller.held_ns for caller in callers) / 1e9,
            "turns": [caller.turns for caller in callers],
            "handoffs_ns": [ns for caller in callers for ns in caller.handoffs_ns],
        }

    def summary(self, results: list[list[int]], cycles_each: int = 1) -> Answer:
        """Return the figures of a run.

        Args:
            results: the latencies of each caller in nanoseconds.
            cycles_each: the number of cycles in each of these latencies.
        """
        seconds = (perf_counter_ns() - self.started_ns) / 1e9
        cpu = cpu_seconds() - self.cpu_before
        latencies = sorted(ns for result in results for ns in result)
        count = len(latencies)
        cycles = count * cycles_each
        return {
            "mode": self.mode,
            "width": self.width,
            "cycles": cycles,
            "seconds": seconds,
            **percentiles(latencies),
            "cycles_per_s": cycles / seconds,
            "cpu_s": cpu,
        }


def percentiles(sorted_ns: list[int]) -> Answer:
    """Return the p50 and the p99 of times in nanoseconds, converted to microseconds."""
    count = len(sorted_ns)
    return {"p50_us": sorted_ns[count // 2] / 1e3, "p99_us": sorted_ns[count * 99 // 100] / 1e3}


def fairness(shares: list[int]) -> float:
    """Return Jain's index of the shares: 1 if all are equal, 1/n if one of n has everything, 0 for no shares.

    Source: Jain, Chiu, Hawe, A quantitative measure of fairness and discrimination, DEC-TR-301, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(cycle: Callable[[str], object], order: Order, prefix: str) -> list[int]:
    """Call `cycle` with a new name each time until the order is done; return the nanoseconds of each call."""
    latencies: list[int] = []
    now, end_ns, most, rest = 0, order.end_ns, order.cycles_each, order.rest
    while now < end_ns and len(latencies) < most:
        name = f"{prefix}{len(latencies)}"
        if rest:
            sleep(rest)
        before = perf_counter_ns()
        cycle(name)
        now = perf_counter_ns()
        latencies.append(now - before)
    return latencies


async def timed_async(cycle: Callable[[str], Awaitable[object]], order: Order, prefix: str) -> list[int]:
    """Await `cycle` with a new name each time until the order is done; return the nanoseconds of each call."""
    latencies: list[int] = []
    now, end_ns, most, rest = 0, order.end_ns, order.cycles_each, order.rest
    while now < end_ns and len(latencies) < most:
        name = f"{prefix}{len(latencies)}"
        if rest:
            await asyncio.sleep(rest)
        before = perf_counter_ns()
        await cycle(name)
        now = perf_counter_ns()
        latencies.append(now - before)
    return latencies


class Spinner:
    """A thread that computes without waiting while the context manager is entered; `spins` counts its progress."""

    def __init__(self) -> None:
        self.spins = 0
        self._stop = False
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> Spinner:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = True
        self._thread.join()

    def _spin(self) -> None:
        value = 1
        while not self._stop:
            for _ in range(100):
                value = value * 31 % 1_000_003
            self.spins += 1
