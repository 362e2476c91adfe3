"""Runs a soak, and judges the grants of its processes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis
from sim.grants import Grant, certain, fences_back, overlaps

from redlatch.testing import embedded
from redlatch.wire.engine.net import now_ns

from .crew import Crew, Worker
from .faults import Trouble
from .worker import Options

TTL = 1.5
NAMES = ["one", "two", "three"]
SECOND = 1_000_000_000

# Older reports are complete: a process is stopped for at most 3 s, and a lock lives for TTL.
SETTLED_NS = 15 * SECOND

# A process grows for a while. Its size after this many reports is compared with its size at the end.
WARM = 6


@dataclass
class Result:
    """The result of a soak: figures for a reader, and the broken rules."""

    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Judge:
    """Judges a history that grows, and drops the grants that are settled.

    Args:
        strictly: whether fences increase with every holder, as `fences_back` has it.
    """

    def __init__(self, strictly: bool = True) -> None:
        self.grants = self.overlaps = self.fences = 0
        self.wrong: list[str] = []
        self._strictly = strictly
        self._open: list[Grant] = []

    def look(self, fresh: list[Grant], until_ns: int) -> None:
        """Judge the grants that began before `until_ns`; keep the rest, with the grants that it may overlap."""
        history = certain([*self._open, *fresh])
        self._open = []
        for grants in history.values():
            settled = [grant for grant in grants if grant.start <= until_ns]
            double, back = list(overlaps(settled, 1)), list(fences_back(settled, self._strictly))
            self.overlaps += len(double)
            self.fences += len(back)
            self.wrong += double + back
            # Keep the last one, to compare it with the next grant.
            kept = settled[-1:]
            self.grants += len(settled) - len(kept)
            self._open += kept + grants[len(settled) :]


def soak(
    seconds: float, masters: int, processes: int, every: float, seed: int, tell: Callable[[str], object]
) -> Result:
    """Let processes use locks while one fault follows another."""
    chance, judge, result = random.Random(seed), Judge(), Result()
    began = time.monotonic()
    fleet = embedded.masters(masters)
    with fleet as urls:
        crew = Crew(processes, Options(urls, NAMES, TTL, TTL), chance)
        trouble = Trouble(fleet, crew, chance, TTL)
        try:
            _go_on(seconds, every, trouble, crew, judge, tell)
        finally:
            trouble.mend(everything=True)
            crew.end()
        judge.look(crew.taken(), now_ns() + SECOND)
        result.wrong += crew.wrong + judge.wrong + _left(urls)
    minutes = (time.monotonic() - began) / 60
    growth = {f"{worker.number} ({worker.label})": more for worker in crew.workers if (more := grown(worker))}
    for who, (bytes_more, descriptors_more) in growth.items():
        if descriptors_more > 8:
            result.wrong.append(f"worker {who} has {descriptors_more} more descriptors than in the beginning")
        if bytes_more > 8 << 20:
            result.wrong.append(f"worker {who} has grown by {bytes_more >> 10} KiB")
    result.figures = {
        "minutes": round(minutes, 1),
        "grants": judge.grants,
        "overlaps": judge.overlaps,
        "fence regressions": judge.fences,
        "faults": dict(sorted(trouble.counts.items())),
        "growth (KiB, descriptors)": {who: (more >> 10, fds) for who, (more, fds) in growth.items()},
    }
    return result


def _go_on(
    seconds: float, every: float, trouble: Trouble, crew: Crew, judge: Judge, tell: Callable[[str], object]
) -> None:
    """Make faults until the time is over; every minute, judge the history and report the progress."""
    began = time.monotonic()
    next_fault, next_look = began + every, began + 60.0
    while (now := time.monotonic()) < began + seconds:
        trouble.mend()
        if now >= next_fault:
            next_fault += every
            trouble.strike()
        if now >= next_look:
            next_look += 60.0
            before = judge.grants
            judge.look(crew.taken(), now_ns() - SETTLED_NS)
            more = judge.grants - before
            biggest = max((worker.sizes[-1] for worker in crew.workers if worker.sizes), default=(0, 0))
            tell(
                f"{(now - began) / 60:6.1f} min: {judge.grants:>10,} grants ({more:,} in this minute), "
                f"{judge.overlaps} overlaps, {judge.fences} fence regressions, {sum(trouble.counts.values())} faults, "
                f"biggest process {biggest[0] >> 20} MiB, {biggest[1]} descriptors"
            )
        time.sleep(0.02)


def grown(worker: Worker) -> tuple[int, int] | None:
    """Return by how much a process has grown since it was warm, in bytes and in descriptors.

    The smallest of several sizes is compared, since a single size is random. None if the process has not lived for
    long.
    """
    warm, late = worker.sizes[WARM : 2 * WARM], worker.sizes[-WARM:]
    if len(worker.sizes) < 3 * WARM:
        return None
    bytes_more = min(size for size, _ in late) - min(size for size, _ in warm)
    return bytes_more, min(fds for _, fds in late) - min(fds for _, fds in warm)


def _left(urls: list[str]) -> list[str]:
    """Return what is wrong on the masters after the end: a lock without a holder, or a key without a ttl."""
    time.sleep(2 * TTL)
    wrong = []
    for url in urls:
        with redis.Redis.from_url(url, retry=None) as server:
            for key in server.scan_iter():
                left = server.pttl(key)
                if left == -1:
                    wrong.append(f"{key!r} has no ttl on {url}")
                elif left > 0 and b"\0" not in key:
                    wrong.append(f"{key!r} is left on {url} for {left} ms")
    return wrong
