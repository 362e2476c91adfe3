"""The time, the random numbers, and the order of events."""

from __future__ import annotations

import gc
import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000

# The wall clock at the beginning, in milliseconds since 1970.
EPOCH_MS = 1_800_000_000_000


class World:
    """Runs events in the order of their times; events of the same time run in the order in which they were made.

    Args:
        seed: fixes all random numbers.
        tracing: whether notes are kept as readable lines.

    Attributes:
        now: nanoseconds since the beginning; no process reads this clock.
        wrong: the broken rules, in the order in which they were seen.
        stragglers: for bytes that take far longer than others: (arrival, delay).
    """

    def __init__(self, seed: int, tracing: bool = False) -> None:
        self.now = 0
        self.chance = random.Random(seed)
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.stragglers: list[tuple[int, int]] = []
        self.steps = 0
        self._tracing = tracing
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0
        self._digest = blake2b(digest_size=8)

    def at(self, ns: int, call: Callable[..., object], *args: Any) -> None:
        """Call something at a time."""
        self._made += 1
        heapq.heappush(self._events, (max(ns, self.now), self._made, call, args))

    def run(self, until_ns: int, while_any: object = True) -> None:
        """Run events until a time, or until `while_any` is empty."""
        events = self._events
        while events and events[0][0] <= until_ns and while_any:
            self.now, _, call, args = heapq.heappop(events)
            self.steps += 1
            call(*args)
        if not events or events[0][0] > until_ns:
            self.now = max(self.now, until_ns)

    def note(self, ns: int, who: str, what: str, data: bytes = b"") -> None:
        """Record an event; the digest covers all of them."""
        self._digest.update(b"%d %b %b %b\n" % (ns, who.encode(), what.encode(), data))
        if self._tracing:
            self.trace.append(f"{ns / MILLISECOND:12.6f} ms  {who:<10} {what} {_shown(data)}".rstrip())

    def violate(self, rule: str) -> None:
        """Record a broken rule."""
        self.note(self.now, "RULE", rule)
        self.wrong.append(rule)

    def renewed_ns(self, ttl: float, far_us: int) -> int:
        """Return how much validity a renewed lock has at least, if every reply arrives in time.

        A lock is renewed after a third of its ttl. The renewal has as long as a sixth of the ttl; late messages and
        their answers have longer.

        Args:
            ttl: seconds.
            far_us: microseconds to the masters.
        """
        return int(ttl * SECOND / 2) - 20 * far_us * MICROSECOND - sum(delay for _, delay in self.stragglers)

    def digest(self) -> str:
        """Return a hash that is equal for two runs only if the same events happened in both."""
        return self._digest.hexdigest()


def _shown(data: bytes) -> str:
    """Return bytes as a short line."""
    words = [word for word in data.split(b"\r\n") if word[:1] not in (b"$", b"*")]
    text = b" ".join(words).replace(b"\0", b"~").decode(errors="replace")
    return text if len(text) <= 600 else f"{text[:590]}...{len(text)}"


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off: the seed does not decide what it finalizes, and when."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Drifting:
    """A clock with a wrong rate that can be stepped and frozen; it counts nanoseconds.

    Args:
        ahead_ns: by how much it is ahead at the beginning.
        rate: how many of its seconds pass in one second.
    """

    def __init__(self, ahead_ns: int, rate: float) -> None:
        self.rate = rate
        self._ahead_ns = ahead_ns
        self._frozen_ns = -1

    def read(self, now_ns: int) -> int:
        """Return its reading at a time of the world."""
        if self._frozen_ns >= 0:
            return self._frozen_ns
        return self._ahead_ns + int(now_ns * self.rate)

    def when(self, shown_ns: int) -> int:
        """Return the first time of the world at which it reads at least `shown_ns`, unless it is stepped before."""
        when = int((shown_ns - self._ahead_ns) / self.rate)
        while self._ahead_ns + int(when * self.rate) < shown_ns:
            when += 1
        return when

    def step(self, by_ns: int) -> None:
        """Step it forward, or back."""
        self._ahead_ns += by_ns

    def freeze(self, now_ns: int) -> None:
        """Stop it."""
        self._frozen_ns = self.read(now_ns)

    def thaw(self, now_ns: int) -> None:
        """Continue from where it stopped. It stays behind, because a jump would end keys that were set meanwhile."""
        stood_ns, self._frozen_ns = self._frozen_ns, -1
        if stood_ns >= 0:
            self.step(stood_ns - self.read(now_ns))
