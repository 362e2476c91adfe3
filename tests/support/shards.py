"""A cluster for the tests of a module: its keys, what its nodes have counted, and slots that move all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import redis

from redlatch.testing.clusters import Cluster, cluster

from .faces import ask, await_true

# Keys that outlive a lock on purpose: the counters of fences.
_KEPT = b"\0fence"

_numbers = itertools.count()


class Shards:
    """A running cluster, and its servers."""

    def __init__(self, made: Cluster, urls: list[str]) -> None:
        self.cluster = made
        self.urls = urls
        self.url = made.url
        self.servers = [ask(url) for url in urls]

    def names(self, prefix: str = "lock") -> list[str]:
        """Return a name in each shard that no other test has."""
        unused = f"{prefix}-{os.getpid()}-{next(_numbers)}"
        return [self.cluster.name_in(shard, unused) for shard in range(self.cluster.shards)]

    def server_of(self, name: str) -> Any:
        return self.servers[self.cluster.primary(self.cluster.shard_of(name))]

    def keys(self, name: str) -> dict[bytes, int]:
        """Return all keys of a name on all nodes, and their ttl in milliseconds, except the counters of fences."""
        found: dict[bytes, int] = {}
        for server in self.servers:
            for key in server.keys(f"*{name}*"):
                if not key.endswith(_KEPT) and (left := _ttl_of(server, key)) != -2:
                    found[key] = left
        return found

    def await_nothing_left(self, *names: str) -> None:
        """Wait until no key is left. A key that only its ttl ends makes the test fail: give locks a long one."""
        await_true(lambda: not any(self.keys(name) for name in names), 10.0)

    def without_ttl(self) -> list[bytes]:
        return [key for server in self.servers for key in server.keys("*") if _ttl_of(server, key) == -1]

    def calls(self, command: str = "") -> dict[str, int]:
        """Return how often the nodes have executed each command, or only this one."""
        counted: dict[str, int] = {}
        for server in self.servers:
            for name, numbers in server.info("commandstats").items():
                counted[name] = counted.get(name, 0) + numbers["calls"]
        return {name: number for name, number in counted.items() if name.startswith(f"cmdstat_{command}")}

    def errors(self, kind: str) -> int:
        """Return how often the nodes have answered with an error, such as MOVED."""
        stats = [server.info("errorstats") for server in self.servers]
        return sum([each.get(f"errorstat_{kind}", {"count": 0})["count"] for each in stats])

    def reset(self) -> None:
        for server in self.servers:
            server.config_resetstat()

    def close(self) -> None:
        for server in self.servers:
            server.close()


def _ttl_of(server: Any, key: bytes) -> int:
    # The target of a slot on its way answers only behind ASKING. This client has one connection.
    server.execute_command("ASKING")
    try:
        return int(server.pttl(key))
    except (redis.exceptions.MovedError, redis.exceptions.AskError):
        # It has left meanwhile.
        return -2


@contextlib.contextmanager
def running(replicas: int = 0) -> Iterator[Shards]:
    """Start a cluster of three shards."""
    made = cluster(3, replicas=replicas)
    with made as urls:
        shards = Shards(made, urls)
        yield shards
        shards.close()


def kinds_for(ttl: float) -> dict[str, Callable[[Any, str], Any]]:
    """Return what makes an exclusive lock of each kind with a client and a name."""
    return {
        "plain": lambda client, name: client.lock(name, ttl=ttl),
        "fenced": lambda client, name: client.lock(name, ttl=ttl, fence=True),
        "fair": lambda client, name: client.lock(name, ttl=ttl, fair=True),
        "write": lambda client, name: client.rw_lock(name, ttl=ttl).write(),
        "semaphore": lambda client, name: client.semaphore(name, 1, ttl=ttl),
    }


class Moves:
    """Moves the slots of some names round the shards all the time, in both ways if the servers have both."""

    def __init__(self, shards: Shards, names: list[str], atomic: bool) -> None:
        self._cluster = shards.cluster
        self._names = names
        self._atomic = atomic
        self._over = threading.Event()
        self.count = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Moves:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            for name in itertools.cycle(self._names):
                if self._over.is_set():
                    return
                there = self._cluster.shard_of(name)
                self._move(name, (there + 1) % self._cluster.shards)
                self.count += 1
        except BaseException as error:
            self._failure = error

    def _move(self, name: str, shard: int) -> None:
        if self._atomic:
            self._cluster.move(name, shard, atomic=True)
            return
        self._cluster.begin_move(name, shard)
        # For a moment a key that is there is at the source, and one that is made meanwhile at the target.
        self._over.wait(0.01)
        self._cluster.finish_move(name)
