"""The servers of a campaign, each with the operations on them: restart, flush, move and fail-over.

An operation returns when every master votes again. The next one may begin then, as docs/operations.md demands.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

import redis

from redlatch import Client, Guard, LockError
from redlatch.guard.marker import FINAL, MARKER, Marker
from redlatch.health import Health, MasterHealth
from redlatch.masters.listed import masters_of
from redlatch.operate.command import look
from redlatch.operate.markers import Markers
from redlatch.operate.mover import Mover
from redlatch.testing import embedded, sentinels
from redlatch.testing.groups import port_of, wait_until

from .crew import Crew, Worker
from .worker import Options

# Seconds within which an operation must take effect, and within which every process must have had a lock since then.
PATIENCE = 60.0


class Site(ABC):
    """Running servers, for one kind of operation.

    Args:
        options: those of the processes, without the masters.
        chance: chooses the servers.
        processes: how many there are.

    Attributes:
        alone: whether there is one master only, so that a second holder is possible until the first one is told.
        keeps: whether each process holds a lock all the time.
    """

    alone = False
    keeps = False

    def __init__(self, options: Options, chance: random.Random, processes: int) -> None:
        self.chance = chance
        self.running = ExitStack()
        self.options = replace(options, masters=self.start(), confirms=self.alone, keeps=processes * self.keeps)

    @abstractmethod
    def start(self) -> list[str]:
        """Start the servers; return the masters for a client."""

    @abstractmethod
    def operate(self, crew: Crew) -> str:
        """Do one operation; return its name."""

    def close(self) -> None:
        """Stop the servers."""
        self.running.close()

    def watch(self) -> Client:
        """Return a client of the masters, as soon as all of them vote."""
        options = self.options
        client = Client(options.masters, ttl=options.ttl, guard=Guard(max_ttl=options.max_ttl))
        self.running.callback(client.close)
        client.connect()
        wait_until(lambda: client.health().ready, PATIENCE, "a master has no vote")
        return client


class Forgetful(Site):
    """Masters of which one forgets at a time."""

    size = 3

    def start(self) -> list[str]:
        self.fleet = embedded.masters(self.size)
        return list(self.running.enter_context(self.fleet))

    def operate(self, crew: Crew) -> str:
        index = self.chance.randrange(self.size)
        await_new_marker(self.watcher(), index, lambda: self.forget(index))
        return f"master {index}"

    def watcher(self) -> Client:
        """Return a client that watches the masters."""
        if not hasattr(self, "_watcher"):
            self._watcher = self.watch()
        return self._watcher

    @abstractmethod
    def forget(self, index: int) -> None:
        """Let one master forget."""


class Restart(Forgetful):
    """Kill one of three masters (SIGKILL) and start it again, empty."""

    def forget(self, index: int) -> None:
        self.fleet.kill(index)
        self.fleet.start(index)


class Flush(Forgetful):
    """Remove all keys of one of three masters."""

    def forget(self, index: int) -> None:
        with redis.Redis.from_url(self.fleet.urls[index], retry=None) as server:
            server.flushall()


class RestartAlone(Restart):
    """Kill the only master (SIGKILL) and start it again, empty."""

    size, alone = 1, True


class FlushAlone(Flush):
    """Remove all keys of the only master."""

    size, alone = 1, True


class Failover(Forgetful):
    """Kill the master of one of three Sentinel groups, and start it again as a replica of the promoted one."""

    def start(self) -> list[str]:
        self.groups = sentinels(self.size)
        return list(self.running.enter_context(self.groups))

    def forget(self, index: int) -> None:
        urls = self.groups.servers.urls
        members = [urls[member] for member in self.groups.members(index)]
        wait_until(lambda: all(map(is_linked, members)), PATIENCE, "a replica does not follow")
        former = self.groups.kill(index)
        promoted = self.groups.await_other(index, former)
        self.groups.start(index)
        with redis.Redis.from_url(urls[former], retry=None) as server:
            server.replicaof("127.0.0.1", port_of(urls[promoted]))


class Rolling(Restart):
    """Restart three masters one after another, empty, each as soon as `redlatch status --ready` returns 0.

    Each process holds a lock all the time, and none may be lost.
    """

    keeps = True

    def operate(self, crew: Crew) -> str:
        for index in range(self.size):
            await_ready(self.options)
            self.forget(index)
            await_forgotten(self.options)
        return "all masters"


class RollingFailover(Rolling, Failover):
    """The same with three Sentinel groups, each of which loses its master."""

    start = Failover.start
    forget = Failover.forget


class Move(Site):
    """Hand the locks of three masters over to five, or of five to three."""

    def start(self) -> list[str]:
        urls = self.running.enter_context(embedded.masters(8))
        self.urls = list(urls)
        self.former: list[str] = []
        return self.urls[:3]

    def operate(self, crew: Crew) -> str:
        """Move to the former masters or to others. Others are emptied if they belonged to another list before."""
        old = self.options.masters
        back = bool(self.former) and self.chance.random() < 0.5
        new = self.former if back else self.chance.sample(self.urls, 8 - len(old))
        for url in () if back else set(new) - set(old):
            with redis.Redis.from_url(url, retry=None) as server:
                server.flushall()
        crew.deploy(replace(self.options, next=new), has_locked)
        Mover(masters_of(old), masters_of(new), Markers(MARKER), say=lambda _: None).run()
        wait_until(lambda: all(map(is_final, new)), PATIENCE, "a new master is not final")
        self.former, self.options = old, replace(self.options, masters=new)
        return f"{'back ' if back else ''}from {self.numbers(old)} to {self.numbers(new)}"

    def numbers(self, urls: list[str]) -> str:
        """Return the numbers of some servers."""
        return "".join(str(self.urls.index(url)) for url in urls)


SITES: dict[str, type[Site]] = {
    "move": Move,
    "failover": Failover,
    "restart": Restart,
    "rolling": Rolling,
    "rolling-failover": RollingFailover,
    "flush": Flush,
    "restart-alone": RestartAlone,
    "flush-alone": FlushAlone,
}


def await_ready(options: Options) -> None:
    """Wait as `redlatch status --ready --wait` does: a new client looks at the masters."""
    health = _look(options, PATIENCE)
    assert health.ready, health


def await_forgotten(options: Options) -> None:
    """Wait until the processes have noticed that a master has forgotten; a new client sees that it may not vote."""
    wait_until(lambda: not _look(options, 0.0).ready, PATIENCE, "all masters vote still")


def _look(options: Options, wait: float) -> Health:
    return look(wait, True, options.masters, b"", options.max_ttl, strict=False, trust_persistence=False)


def await_new_marker(client: Client, index: int, act: Callable[[], object]) -> None:
    """Act on a master, and wait until it has a new marker and votes."""

    def look() -> MasterHealth:
        # A client that is not used does not read what a master sends.
        with suppress(LockError), client.lock("watched", timeout=PATIENCE):
            pass
        return client.health().masters[index]

    before = look().marked
    act()
    wait_until(lambda: is_new(look(), before), PATIENCE, "the master does not vote again")


def is_new(master: MasterHealth, before: float) -> bool:
    """Return whether a master votes that was marked since `before`."""
    return master.voting and master.marked != before


def has_locked(worker: Worker) -> None:
    """Wait until a process has had a lock."""
    wait_until(lambda: worker.granted_ns > 0, PATIENCE, f"worker {worker.number} has no lock")


def is_linked(url: str) -> bool:
    """Return whether a server is a master that its replica follows, or a replica that follows its master."""
    try:
        with redis.Redis.from_url(url, retry=None) as server:
            said = server.info("replication")
    except redis.RedisError:
        return False
    if said["role"] == "master":
        return bool(said["connected_slaves"])
    return bool(said["master_link_status"] == "up")


def is_final(url: str) -> bool:
    """Return whether a master belongs to a list that may be used."""
    with redis.Redis.from_url(url, retry=None) as server:
        marker = Marker.read(server.get(MARKER))
    return marker is not None and marker.stage == FINAL
