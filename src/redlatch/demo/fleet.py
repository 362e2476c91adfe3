"""What the lock of a sale is on: the demo's own masters, of which one is killed, your servers, or a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from redlatch.errors import ConfigurationError

if TYPE_CHECKING:
    from redlatch.testing import embedded
    from redlatch.testing.clusters import Cluster

Tell = Callable[[str], None]

SHARDS = 3

# Seconds between two looks whether a replica was promoted.
LOOK = 0.1

ENOUGH_TO_KILL_ONE = 3

# Seconds until the killed master comes back.
AWAY = 0.5


class Fleet(Protocol):
    """What a sale is locked on. The methods do their work once, or when it is due."""

    @property
    def away(self) -> bool: ...

    urls: tuple[str, ...]
    own: bool
    killable: bool
    fails_over: bool
    size: int
    quorum: int

    def move(self, tell: Tell) -> None: ...

    def kill_one(self, tell: Tell) -> None: ...

    def bring_back_when_due(self, tell: Tell) -> None: ...

    def terms(self) -> str:
        """Return in words which masters there are, and how many must agree."""
        ...


class Masters:
    """The lock masters. If they are the demo's own and enough, one of them will be killed."""

    fails_over = False

    def __init__(self, urls: Sequence[str], fleet: embedded.Masters | None = None) -> None:
        self.urls = tuple(urls)
        self.size = len(self.urls)
        self.quorum = len(self.urls) // 2 + 1
        self.own = fleet is not None
        self.killable = self.own and len(self.urls) >= ENOUGH_TO_KILL_ONE
        self._fleet = fleet
        self._victim = 1
        self._killed = False
        self._back_at: float | None = None

    @property
    def away(self) -> bool:
        return self._back_at is not None

    def terms(self) -> str:
        whose = "embedded" if self.own else "your own"
        return f"{count(self.size, f'{whose} master')}, {self.quorum} must agree"

    def move(self, tell: Tell) -> None:
        """Do nothing: only a cluster has slots."""

    def kill_one(self, tell: Tell) -> None:
        if not self.killable or self._killed or self._fleet is None:
            return
        self._killed = True
        self._fleet.kill(self._victim)
        self._back_at = time.perf_counter() + AWAY
        left = f"{self.size - 1} of {self.size} left, {self.quorum} must agree"
        tell(f"master {self._victim + 1} killed (SIGKILL): {left}")

    def bring_back_when_due(self, tell: Tell) -> None:
        if self._back_at is None or self._fleet is None or time.perf_counter() < self._back_at:
            return
        self._back_at = None
        try:
            self._fleet.start(self._victim)
        except ConfigurationError as error:
            raise RuntimeError(f"master {self._victim + 1} does not come back: {error}") from error
        tell(f"master {self._victim + 1} is back, empty; it votes again when no lease from before is left")


@contextmanager
def open_masters(number: int, servers: Sequence[str]) -> Iterator[Fleet]:
    if servers:
        yield Masters(servers)
        return
    from redlatch.testing import embedded

    fleet = embedded.masters(number)
    with fleet as urls:
        yield Masters(urls, fleet)


class Shards:
    """An embedded cluster. The slot of the lock moves, and then the primary that has it is killed."""

    own = killable = fails_over = True
    quorum = 1

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.urls: tuple[str, ...] = (cluster.url,)
        self.size = cluster.shards
        self._cluster = cluster
        self._name = name
        self._moved = self._killed = False
        self._former: int | None = None
        self._look_at = 0.0

    @property
    def away(self) -> bool:
        return self._former is not None

    def terms(self) -> str:
        return f"1 embedded cluster of {count(self.size, 'shard')}, each with a replica"

    def move(self, tell: Tell) -> None:
        if self._moved:
            return
        self._moved = True
        slot, here = self._cluster.slot_of(self._name), self._cluster.shard_of(self._name)
        there = (here + 1) % self.size
        self._cluster.move(self._name, there)
        tell(f"slot {slot}, which has the lock, moved from shard {here + 1} to shard {there + 1}")

    def kill_one(self, tell: Tell) -> None:
        if self._killed:
            return
        # With a small stock this comes first.
        self.move(tell)
        self._killed = True
        shard = self._cluster.shard_of(self._name)
        self._former = self._cluster.kill_primary(shard)
        tell(f"the primary of shard {shard + 1} killed (SIGKILL): its replica is promoted when most primaries miss it")

    def bring_back_when_due(self, tell: Tell) -> None:
        now = time.perf_counter()
        if self._former is None or now < self._look_at:
            return
        self._look_at = now + LOOK
        shard = self._cluster.shard_of(self._name)
        if self._cluster.primary(shard) == self._former:
            # It would come back as the primary, without its locks.
            return
        former, self._former = self._former, None
        tell(f"the replica of shard {shard + 1} is its primary now")
        self._cluster.start(former)


@contextmanager
def open_cluster(name: str) -> Iterator[Fleet]:
    """Start a cluster for a lock with this name."""
    from redlatch.testing.clusters import cluster

    made = cluster(SHARDS, replicas=1)
    with made:
        yield Shards(made, name)


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
