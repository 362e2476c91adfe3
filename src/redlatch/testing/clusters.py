"""Clusters of Valkey or Redis on this machine, for tests of slots that move and of shards that fail over."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote

from redis.crc import key_slot

from redlatch.errors import ConfigurationError
from redlatch.testing.embedded import RESERVED, Directives, Server, masters
from redlatch.testing.groups import of_servers
from redlatch.testing.moves import Move
from redlatch.testing.nodes import Nodes
from redlatch.testing.topology import SLOTS, wait_for

__all__ = ["Cluster", "cluster"]

Slot = int | str | bytes
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

# The nodes repeat a fail-over that failed.
FAILOVER_SECONDS = 60.0


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
    if not 1 <= shards <= SLOTS or replicas < 0 or node_timeout <= 0:
        wrong = f"shards={shards}, replicas={replicas}, node_timeout={node_timeout}"
        raise ConfigurationError(f"{wrong}: at least 1 shard, 0 replicas and a time above 0 are needed")
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
        # One change at a time: see moves.py.
        self._changing = threading.RLock()

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

    def shard_of(self, slot: Slot) -> int:
        """Return the shard that owns a slot, as most living nodes see it."""
        return self._nodes.shard_of(self._nodes.owner(self._slot(slot)))

    def name_in(self, shard: int, prefix: str = "lock") -> str:
        """Return a name that begins with `prefix`, and whose slot belongs to a shard."""
        primary = self._nodes.ids[self.primary(shard)]
        view = self._nodes.views()[0].popitem()[1]
        if not view.peers[primary].ranges:
            raise RuntimeError(f"shard {shard} has no slot")
        names = (f"{prefix}-{number}" for number in itertools.count())
        return next(name for name in names if view.owner_of(self.slot_of(name)) == primary)

    def kill(self, node: int) -> None:
        """Kill a node (SIGKILL), and wait until it is gone."""
        self.servers.kill(self._nodes.checked(node))

    def stop(self, node: int) -> None:
        """Shut a node down (SIGTERM), even a paused one, and wait until it is gone."""
        self.servers.stop(self._nodes.checked(node))

    def pause(self, node: int) -> None:
        """Pause a node (SIGSTOP), and wait until it has stopped. Its connections stay open."""
        self.servers.pause(self._nodes.checked(node))

    def resume(self, node: int) -> None:
        """Resume a paused node (SIGCONT)."""
        self.servers.resume(self._nodes.checked(node))

    def start(self, node: int) -> None:
        """Start a dead node again, with its address and id and without keys, and wait until it answers."""
        self.servers.start(self._nodes.checked(node))

    def kill_primary(self, shard: int) -> int:
        """Kill the primary of a shard (SIGKILL), and return it."""
        former = self.primary(shard)
        self.kill(former)
        return former

    def repair(self) -> None:
        """Resume paused nodes, start dead ones, finish all moves, and wait until the cluster is ready."""
        for node, pid in enumerate(self.servers.pids):
            if pid is None:
                self.start(node)
            else:
                self.resume(node)
        wait_for(self._nodes.unready, WAIT_SECONDS, "the cluster is not ready")
        for slot in list(self._moving):
            self.finish_move(slot)
        self.wait_until_ok()

    def clear(self) -> None:
        """Remove all keys but the guard's markers, as `redlatch.testing.clear` does."""
        for shard in range(self.shards):
            self._nodes.clear(self.primary(shard))

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
            raise RuntimeError(f"no replica of shard {shard} is running")
        if how == "graceful" and former not in self.living:
            raise RuntimeError(
                f"node {former}, the primary of shard {shard}, is not running: use 'force' or 'takeover'"
            )
        # One that follows its primary, if there is one.
        heir = max(heirs, key=lambda node: self._nodes.info(node).get("master_link_status") == "up")
        with self._changing:
            wait_for(self._nodes.promotion(shard, heir, WORDS[how]), FAILOVER_SECONDS, f"node {heir} was not promoted")
        return former

    def wait_for_promotion(self, shard: int, former: int, seconds: float = FAILOVER_SECONDS) -> int:
        """Wait until all living nodes see another primary of a shard than `former`, and return it.

        The nodes promote a replica by themselves when `node_timeout` is over, if most primaries are living.
        """
        others = set(self.members(shard)) - {former}
        what = f"shard {shard} has no other primary than node {former}"
        wait_for(lambda: self._nodes.unpromoted(shard, others), seconds, what)
        return self.primary(shard)

    def wait_until_ok(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until all slots are served, and all living nodes are connected, agree, and follow their primaries."""
        wait_for(self._nodes.problem, seconds, "the cluster is not ready")

    def wait_until_down(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until all living nodes refuse commands with CLUSTERDOWN, because a shard has no primary."""
        wait_for(self._nodes.service, seconds, "the cluster is not down")

    def move(self, slot: Slot, shard: int, *, atomic: bool = False) -> None:
        """Move a slot and its keys to a shard, and wait until all living nodes see it. Keys keep their ttl.

        Nothing happens if the shard owns the slot.

        Args:
            slot: the slot, or a key in it.
            shard: the shard that gets it.
            atomic: if True, the whole slot moves at once (CLUSTER MIGRATESLOTS, Valkey 9 or later). Otherwise its keys
                move before it, and clients are redirected meanwhile (CLUSTER SETSLOT, MIGRATE). Default False.

        Raises:
            ConfigurationError: the servers cannot move slots atomically.
            redis.RedisError: a node refuses.
        """
        with self._changing:
            number = self._slot(slot)
            if number not in self._moving and self.shard_of(number) == shard:
                return
            if atomic:
                self._new_move(number, shard).at_once()
                return
            if self._moving.get(number) != shard:
                self.begin_move(number, shard)
            self.finish_move(number)

    def begin_move(self, slot: Slot, shard: int) -> None:
        """Begin to move a slot. Its owner answers ASK now for a key that it lacks. `finish_move` ends this."""
        with self._changing:
            move = self._new_move(self._slot(slot), shard)
            move.open()
            self._moving[move.slot] = shard

    def move_keys(self, slot: Slot, *keys: str | bytes) -> None:
        """Move some keys of a slot whose move has begun, or all if none are given."""
        with self._changing:
            self._begun(slot).carry(keys)

    def finish_move(self, slot: Slot) -> None:
        """Move the remaining keys of a slot whose move has begun, then the slot, as `move` does."""
        with self._changing:
            move = self._begun(slot)
            move.finish()
            del self._moving[move.slot]

    def cancel_move(self, slot: Slot) -> None:
        """Leave a slot whose move has begun to its owner. That must have all keys: moved keys cannot return."""
        with self._changing:
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
            self._nodes.join(self._startup_timeout)
            # A primary serves no slot in the first two seconds after its start.
            self.wait_until_ok(self._startup_timeout)
        except BaseException:
            self.__exit__()
            raise
        return urls

    def __exit__(self, *_: object) -> None:
        """Kill all nodes; no process and no folder is left."""
        self.servers.__exit__()
        self._nodes.close()

    def _slot(self, slot: Slot) -> int:
        if not isinstance(slot, int):
            return self.slot_of(slot)
        if not 0 <= slot < SLOTS:
            raise ConfigurationError(f"slot {slot}: a number from 0 to {SLOTS - 1} is needed")
        return slot

    def _new_move(self, slot: int, shard: int) -> Move:
        self.members(shard)
        if slot in self._moving:
            raise RuntimeError(f"a move of slot {slot} to shard {self._moving[slot]} has begun: finish or cancel it")
        if self.shard_of(slot) == shard:
            raise RuntimeError(f"shard {shard} owns slot {slot} already")
        return Move(self._nodes, slot, shard, self._password)

    def _begun(self, slot: Slot) -> Move:
        number = self._slot(slot)
        if number not in self._moving:
            raise RuntimeError(f"no move of slot {number} has begun")
        # A fail-over may have changed both nodes since then.
        return Move(self._nodes, number, self._moving[number], self._password)
