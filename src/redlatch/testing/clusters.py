"""Clusters of Valkey or Redis on this machine, for tests of slots that move and of shards that fail over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote

import redis
from redis.crc import key_slot

from redlatch.errors import ConfigurationError
from redlatch.testing.embedded import RESERVED, Directives, Server, masters
from redlatch.testing.groups import of_servers, port_of
from redlatch.testing.moves import Move
from redlatch.testing.nodes import Nodes
from redlatch.testing.topology import SLOTS, View, wait_for

__all__ = ["Cluster", "cluster"]

How = Literal["graceful", "force", "takeover"]

WORDS: dict[str, tuple[str, ...]] = {"graceful": (), "force": ("FORCE",), "takeover": ("TAKEOVER",)}

OWN = {"cluster-enabled", "cluster-config-file", "cluster-port", *RESERVED}

USUAL = {
    "cluster-enabled": ["yes"],
    "cluster-config-file": ["nodes.conf"],
    "cluster-port": ["{bus_port}"],
    # A node stays in its shard, even if the shard loses all slots or all replicas.
    "cluster-allow-replica-migration": ["no"],
    # A replica may be promoted, however long it was without its primary.
    "cluster-replica-validity-factor": ["0"],
}

WAIT_SECONDS = 30.0

# Redis 7 refuses a second fail-over of a shard for two node timeouts, and the replica asks again after some seconds.
FAILOVER_SECONDS = 60.0

# A replica forgets after 5 s that it was asked for a fail-over.
ASK_AGAIN_SECONDS = 5.5


def cluster(
    shards: int = 3,
    *,
    replicas: int = 1,
    server: Server | Sequence[Server] | None = None,
    config: Directives | None = None,
    node_timeout: float = 1.0,
    startup_timeout: float = 30.0,
) -> Cluster:
    """Return a context manager that starts a cluster and yields the URLs of its nodes.

    Args:
        shards: the number of shards. Default 3. Without three, no shard fails over by itself.
        replicas: the number of replicas of each shard. Default 1. It may be 0.
        server: the server program, of Valkey or Redis 7, or a list with one for each node. Default None: the result of
            `find_server`.
        config: further directives of the servers, as for `masters`.
        node_timeout: seconds without an answer until a node considers another one down (cluster-node-timeout).
            Default 1.
        startup_timeout: seconds within which the cluster must be ready. Default 30.

    Raises:
        ConfigurationError: an argument is invalid, or no server program was found.
    """
    if not 1 <= shards <= SLOTS or replicas < 0:
        raise ConfigurationError(f"shards={shards}, replicas={replicas}: a cluster has at least 1 shard and 0 replicas")
    if refused := sorted(name for name in config or {} if name.lower() in OWN):
        raise ConfigurationError(f"config: {', '.join(refused)} cannot be set: embedded clusters set it themselves")
    given = USUAL | {"cluster-node-timeout": [str(int(node_timeout * 1000))]} | of_servers(config)
    if given.get("port") == ["0"]:
        given = {"tls-cluster": ["yes"], "tls-replication": ["yes"]} | given
    fleet = masters(shards * (1 + replicas), server=server, config=given, startup_timeout=startup_timeout)
    return Cluster(Nodes(fleet, shards, 1 + replicas), given.get("requirepass", [""])[-1], startup_timeout)


class Cluster:
    """A cluster of real servers, made by `cluster`. It runs from ``__enter__`` to ``__exit__``, and only once.

    A node is named by its index, shard by shard, and stays in its shard. A slot is named by its number, or by a key in
    it, such as the name of a lock. Any thread may call the methods. They raise IndexError for a node or shard that does
    not exist, ConfigurationError for another invalid argument, RuntimeError if the cluster is in the wrong state, and
    TimeoutError with what each node said.

    Attributes:
        shards: the number of shards.
        servers: the fleet of all nodes. The first node of each shard starts as its primary.
    """

    def __init__(self, nodes: Nodes, password: str, startup_timeout: float) -> None:
        self.shards = nodes.shards
        self.servers = nodes.servers
        self._nodes = nodes
        self._password = password
        self._startup_timeout = startup_timeout
        # The target of each slot that is being moved.
        self._moving: dict[int, int] = {}

    @property
    def url(self) -> str:
        """Return the URL of the cluster for a client. It names all nodes, running or not."""
        hosts = ",".join(map(self.address, range(self._nodes.count)))
        user = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"{self.urls[0].partition('://')[0]}+cluster://{user}{hosts}"

    @property
    def urls(self) -> list[str]:
        """Return one URL for each node, running or not; none outside the ``with``."""
        return self.servers.urls

    @property
    def living(self) -> list[int]:
        """Return the nodes that run and are not paused."""
        return self._nodes.living

    def address(self, node: int) -> str:
        """Return the address of a node, such as ``127.0.0.1:7000``."""
        return self.urls[self._nodes.checked(node)].rpartition("@")[2].rpartition("/")[2]

    def id_of(self, node: int) -> str:
        """Return the id of a node (CLUSTER MYID)."""
        return self._nodes.ids[self._nodes.checked(node)]

    def members(self, shard: int) -> list[int]:
        """Return the nodes of a shard, running or not."""
        return self._nodes.members(shard)

    def primary(self, shard: int) -> int:
        """Return the primary of a shard, running or not, as most living nodes see it."""
        return self._nodes.primary(shard)

    def replicas(self, shard: int) -> list[int]:
        """Return the nodes of a shard that are not its primary, running or not."""
        primary = self.primary(shard)
        return [node for node in self.members(shard) if node != primary]

    def slot_of(self, name: str | bytes) -> int:
        """Return the slot of a key. All keys of a lock are in the slot of its name."""
        return int(key_slot(name.encode() if isinstance(name, str) else name))

    def shard_of(self, slot: int | str | bytes) -> int:
        """Return the shard that owns a slot, as most living nodes see it."""
        return self._nodes.shard_of(self._nodes.owner(self._slot(slot)))

    def name_in(self, shard: int, prefix: str = "lock") -> str:
        """Return a name that begins with `prefix`, and whose slot belongs to a shard."""
        view = View(self._nodes.ask(self.primary(shard), "CLUSTER", "NODES"))
        if not view.peers[view.me].ranges:
            raise RuntimeError(f"shard {shard} has no slot")
        names = (f"{prefix}-{number}" for number in itertools.count())
        return next(name for name in names if view.owner_of(self.slot_of(name)) == view.me)

    def kill(self, node: int) -> None:
        """Kill a node (SIGKILL), and wait until it is gone."""
        self.servers.kill(node)

    def stop(self, node: int) -> None:
        """Shut a node down (SIGTERM), even a paused one, and wait until it is gone."""
        self.servers.stop(node)

    def pause(self, node: int) -> None:
        """Pause a node (SIGSTOP), and wait until it has stopped. Its connections stay open."""
        self.servers.pause(node)

    def resume(self, node: int) -> None:
        """Resume a paused node (SIGCONT)."""
        self.servers.resume(node)

    def start(self, node: int) -> None:
        """Start a dead node again, and wait until it answers. It has its address, its id and no keys."""
        self.servers.start(node)

    def kill_primary(self, shard: int) -> int:
        """Kill the primary of a shard (SIGKILL), and return it."""
        former = self.primary(shard)
        self.kill(former)
        return former

    def fail_over(self, shard: int, *, how: How = "graceful") -> int:
        """Promote a replica of a shard, wait until all living nodes see it, and return the former primary.

        Args:
            shard: the number of the shard.
            how: "graceful" waits until the replica has all writes, and needs a living primary. "force" does not wait;
                it needs a majority of the primaries. "takeover" does not need them (CLUSTER FAILOVER). Default
                "graceful".
        """
        if how not in WORDS:
            raise ConfigurationError(f"how={how!r}: expected one of {', '.join(map(repr, WORDS))}")
        former = self.primary(shard)
        heirs = [node for node in self.members(shard) if node != former and node in self.living]
        if not heirs:
            raise RuntimeError(f"no replica of shard {shard} runs")
        if how == "graceful" and former not in self.living:
            raise RuntimeError(
                f"node {former}, the primary of shard {shard}, is not running: use 'force' or 'takeover'"
            )
        # One that follows its primary, if there is one.
        heir = max(heirs, key=lambda node: self._nodes.info(node).get("master_link_status") == "up")
        wait_for(self._promotion(shard, heir, WORDS[how]), FAILOVER_SECONDS, f"node {heir} was not promoted")
        return former

    def wait_for_promotion(self, shard: int, former: int, seconds: float = FAILOVER_SECONDS) -> int:
        """Wait until all living nodes see another primary of a shard than `former`, and return it.

        The nodes promote a replica by themselves when `node_timeout` is over, if most primaries are living.
        """
        others = set(self.members(shard)) - {former}
        what = f"shard {shard} has no other primary than node {former}"
        wait_for(lambda: self._unpromoted(shard, others), seconds, what)
        return self.primary(shard)

    def wait_until_ok(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until all slots are served, and all living nodes are connected, agree, and follow their primaries."""
        wait_for(self._nodes.problem, seconds, "the cluster is not ready")

    def move(self, slot: int | str | bytes, shard: int, *, atomic: bool = False) -> None:
        """Move a slot and its keys to a shard, and wait until all living nodes see it. Keys keep their ttl.

        Nothing happens if the shard owns the slot.

        Args:
            slot: the slot, or a key in it.
            shard: the shard that gets it.
            atomic: if True, the servers move all at once (CLUSTER MIGRATESLOTS, Valkey 9 or later). Otherwise keys
                move one by one, and clients are redirected meanwhile (CLUSTER SETSLOT, MIGRATE). Default False.

        Raises:
            ConfigurationError: the server cannot move slots atomically.
            redis.RedisError: a node refuses.
        """
        if self.shard_of(slot) == shard:
            return
        if atomic:
            self._move(slot, shard).at_once()
        else:
            self.begin_move(slot, shard)
            self.finish_move(slot)

    def begin_move(self, slot: int | str | bytes, shard: int) -> None:
        """Begin to move a slot: for a key that is not there, its owner now answers ASK. `finish_move` ends this."""
        self.members(shard)
        if (owner := self.shard_of(slot)) == shard:
            raise RuntimeError(f"slot {self._slot(slot)} belongs to shard {owner} already")
        self._move(slot, shard).open()
        self._moving[self._slot(slot)] = shard

    def move_keys(self, slot: int | str | bytes, count: int | None = None) -> int:
        """Move keys of a slot whose move has begun: all, or at most `count`. Return how many were moved."""
        return self._begun(slot).carry(count)

    def finish_move(self, slot: int | str | bytes) -> None:
        """Move the other keys of a slot and its ownership, and wait until all living nodes see it."""
        move = self._begun(slot)
        # A fail-over of one of both shards may have ended this state.
        move.open()
        move.carry()
        move.close()
        del self._moving[move.slot]

    def cancel_move(self, slot: int | str | bytes) -> None:
        """Leave a slot whose move has begun to its owner, which must have all keys: moved keys cannot return."""
        move = self._begun(slot)
        move.cancel()
        del self._moving[move.slot]

    def __enter__(self) -> list[str]:
        """Start all nodes, join them, wait until the cluster is ready, and return `urls`.

        Raises:
            RuntimeError, ConfigurationError, TimeoutError: as for entering `Masters`.
        """
        urls = self.servers.__enter__()
        try:
            self._nodes.connect()
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return urls

    def __exit__(self, *_: object) -> None:
        """Kill all nodes; no process and no folder is left."""
        self.servers.__exit__()
        self._nodes.close()

    def _join(self) -> None:
        ask, everyone = self._nodes.ask, range(self._nodes.count)
        for node in everyone:
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", node + 1)
        for shard in range(self.shards):
            first, after = (SLOTS * edge // self.shards for edge in (shard, shard + 1))
            ask(self.members(shard)[0], "CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        # Gossip alone would take a second.
        for node, other in itertools.combinations(everyone, 2):
            ask(node, "CLUSTER", "MEET", "127.0.0.1", port_of(self.urls[other]), self._nodes.bus_ports[other])
        wait_for(self._nodes.strangers, self._startup_timeout, "the nodes do not know each other")
        for shard in range(self.shards):
            primary, *replicas = self.members(shard)
            for node in replicas:
                ask(node, "CLUSTER", "REPLICATE", self._nodes.ids[primary])
        # A primary serves no slot in the first two seconds after its start.
        self.wait_until_ok(self._startup_timeout)

    def _slot(self, slot: int | str | bytes) -> int:
        if not isinstance(slot, int):
            return self.slot_of(slot)
        if not 0 <= slot < SLOTS:
            raise ConfigurationError(f"slot {slot}: a number from 0 to {SLOTS - 1} is needed")
        return slot

    def _move(self, slot: int | str | bytes, shard: int) -> Move:
        number = self._slot(slot)
        return Move(self._nodes, number, self._nodes.owner(number), self.primary(shard), self._password)

    def _begun(self, slot: int | str | bytes) -> Move:
        number = self._slot(slot)
        if number not in self._moving:
            raise RuntimeError(f"no move of slot {number} has begun")
        return self._move(number, self._moving[number])

    def _unpromoted(self, shard: int, heirs: set[int]) -> str:
        """Return in words how the living nodes see the shard; an empty string if all see one living heir as primary."""
        views, silent = self._nodes.views()
        seen = self._nodes.primaries(shard, views)
        if not silent and len(set(seen.values())) == 1 and set(seen.values()) <= heirs & set(views):
            return ""
        return "; ".join(silent + [f"node {node} sees node {primary} as primary" for node, primary in seen.items()])

    def _promotion(self, shard: int, heir: int, words: tuple[str, ...]) -> Callable[[], str]:
        """Return a function for `wait_for` that asks a replica to be promoted, and again if needed."""
        ask_at, refusal = time.monotonic(), ""

        def look() -> str:
            nonlocal ask_at, refusal
            if not (seen := self._unpromoted(shard, {heir})):
                return ""
            if time.monotonic() >= ask_at:
                try:
                    self._nodes.ask(heir, "CLUSTER", "FAILOVER", *words)
                    ask_at, refusal = time.monotonic() + ASK_AGAIN_SECONDS, ""
                except redis.RedisError as error:
                    refusal = f"; node {heir} says {error}"
            return seen + refusal

        return look
