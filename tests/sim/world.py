"""The time, the chance, and what happens when."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000

# The wall clock at the beginning, in milliseconds since 1970.
EPOCH_MS = 1_800_000_000_000


class World:
    """Runs events in the order of their time; of two at once the one that was made first.

    Args:
        seed: fixes all chance.
        tracing: whether what is noted is kept, to be read.

    Attributes:
        now: nanoseconds since the beginning, by no one's clock.
        wrong: what broke a rule, in the order in which it was seen.
        stragglers: when bytes arrive that take far longer than others, and how long they take.
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
        """Have something called at a time."""
        self._made += 1
        heapq.heappush(self._events, (max(ns, self.now), self._made, call, args))

    def run(self, until_ns: int, while_any: object = True) -> None:
        """Let happen what happens until then, or until nothing is left that is worth going on for."""
        events = self._events
        while events and events[0][0] <= until_ns and while_any:
            self.now, _, call, args = heapq.heappop(events)
            self.steps += 1
            call(*args)
        if not events or events[0][0] > until_ns:
            self.now = max(self.now, until_ns)

    def note(self, ns: int, who: str, what: str, data: bytes = b"") -> None:
        """Take note of what happened: part of the history that the digest stands for."""
        self._digest.update(b"%d %b %b %b\n" % (ns, who.encode(), what.encode(), data))
        if self._tracing:
            self.trace.append(f"{ns / MILLISECOND:12.6f} ms  {who:<10} {what} {_shown(data)}".rstrip())

    def violate(self, rule: str) -> None:
        """Take note of a broken rule."""
        self.note(self.now, "RULE", rule)
        self.wrong.append(rule)

    def digest(self) -> str:
        """Return what two runs share only if the same happened in both."""
        return self._digest.hexdigest()


def _shown(data: bytes) -> str:
    """Return bytes as a short line."""
    words = [word for word in data.split(b"\r\n") if word[:1] not in (b"$", b"*")]
    text = b" ".join(words).replace(b"\0", b"~").decode(errors="replace")
    return text if len(text) <= 600 else f"{text[:590]}...{len(text)}"


class Drifting:
    """A clock that goes wrong by a rate, steps, and may stand still; it counts nanoseconds.

    Args:
        ahead_ns: by how much it is ahead at the beginning.
        rate: how many of its seconds a second has.
    """

    def __init__(self, ahead_ns: int, rate: float) -> None:
        self.rate = rate
        self._ahead_ns = ahead_ns
        self._frozen_ns = -1

    def read(self, now_ns: int) -> int:
        """Return what it shows at a time of the world."""
        if self._frozen_ns >= 0:
            return self._frozen_ns
        return self._ahead_ns + int(now_ns * self.rate)

    def when(self, shown_ns: int) -> int:
        """Return at which time of the world it shows that at least, if nothing befalls it until then."""
        when = int((shown_ns - self._ahead_ns) / self.rate)
        while self._ahead_ns + int(when * self.rate) < shown_ns:
            when += 1
        return when

    def step(self, by_ns: int) -> None:
        """Set it forward, or back."""
        self._ahead_ns += by_ns

    def freeze(self, now_ns: int) -> None:
        """Have it stand still."""
        self._frozen_ns = self.read(now_ns)

    def thaw(self, now_ns: int) -> None:
        """Let it go on, from where it stood: it stays behind, for a jump would end what was begun meanwhile."""
        stood_ns, self._frozen_ns = self._frozen_ns, -1
        if stood_ns >= 0:
            self.step(stood_ns - self.read(now_ns))
