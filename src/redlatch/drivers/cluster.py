"""The nodes of a cluster: the connections of a client whose only master is a cluster."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from redis.sentinel import MasterNotFoundError

from ..masters.cluster import Cluster
from ..masters.master import Address, Master
from ..quorum.quorum import Quorum
from ..stats import MasterStats
from ..votes.redaction import shown
from ..wire.dial.topology import TOPOLOGY, Topology
from ..wire.engine.redirects import Redirected
from .arrivals import Arrival, Deliver, MakeDialler, MakeFleet, MakeGuard, Outcome, reject
from .connections import Connections
from .lifecycle import Lifecycle
from .master_log import MOST_SHOWN, NodeLog
from .status import stats_of_master

if TYPE_CHECKING:
    from ..guard.master import GuardedMaster
    from ..wire.engine.link import Link

logger = logging.getLogger("redlatch")


class ClusterConnections(Connections):
    """The connections to the primaries of one cluster. An index is the place of a node, which it keeps for good."""

    is_cluster = True
    _guard: Any

    def __init__(
        self,
        cluster: Cluster,
        quorum: Quorum,
        make_fleet: MakeFleet,
        deliver: Deliver,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        nodes: list[Master] = []
        self._slots: dict[int, set[int]] = {}
        super().__init__(
            nodes, 1, quorum.clock, make_fleet, deliver, tracking, dialler, guard, quorum.doubts, lifecycle
        )
        self.untried = {TOPOLOGY}
        self._cluster = cluster
        self._reader = self._dialler.reader_of(cluster, deliver)
        self._indexes: dict[Address, int] = {}
        self._log = NodeLog(nodes, tracking, self._indexes)
        self._replicas: dict[Address, frozenset[Address]] = {}
        self._started = False
        # The error of the last question, until one succeeds.
        self._unread: Exception | None = None

    def make_fleet(self) -> Any:
        # Not guarded: a node that has forgotten stays in use, so no vote needs its horizon (see `guard.shards`).
        self.fleet = self._make_fleet([], 1, self._clock, False, 0)
        self.fleet.become_cluster(self._reader)
        self._own()
        return self.fleet

    def all_dialled(self) -> bool:
        return self._started

    def start(self) -> None:
        unstarted = self._reader.refresh()
        if unstarted is not None:
            self._note_unread(unstarted)
            self.untried.discard(TOPOLOGY)
        self._started = True

    def arrive(self, index: int, outcome: Arrival) -> bool:
        if index != TOPOLOGY:
            if outcome is not None and index not in self._indexes.values():
                reject(outcome)
                return False
            return super().arrive(index, outcome)
        doubted_ns, doubted = self._doubts.until_ns, False
        if isinstance(outcome, Topology):
            doubted = self._take_topology(outcome)
            self._unread = None
        elif isinstance(outcome, Exception):
            self._note_unread(outcome)
        self.untried.discard(TOPOLOGY)
        return doubted or self._doubts.until_ns != doubted_ns

    # --- topologies --------------------------------------------------------------------------------

    def _take_topology(self, topology: Topology) -> bool:
        """Use a topology; return whether leases are in doubt because their slots have come to a node that forgot."""
        slots: dict[Address, set[int]] = {address: set() for address in topology.nodes}
        for first, last, place in topology.ranges:
            slots[topology.nodes[place]].update(range(first, last + 1))
        replicas = dict(zip(topology.nodes, topology.members, strict=True))
        doubted = self._note_redirects()
        # Votes that became void must not count for callers that are woken by what follows.
        if not self.replicas:
            self._doubt_promoted(slots, replicas)
        new = [address for address in topology.nodes if address not in self._indexes]
        for address in new:
            self._add(address, slots[address])
        for address, owned in slots.items():
            self._slots[self._indexes[address]] = owned
            doubted = self._doubts.concern(self._indexes[address], owned) or doubted
            self._move_marker(self._indexes[address], owned)
        self._replicas = replicas
        self.fleet.route(
            [(first, last, self._indexes[topology.nodes[place]]) for first, last, place in topology.ranges],
            topology.asked_ns,
        )
        for address in new:
            self._dial(self._indexes[address])
        for address in set(self._indexes).difference(topology.nodes):
            self._remove(address)
        return doubted

    def _note_redirects(self) -> bool:
        """Let the doubts about nodes be about the slots, too, that they had only between two topologies."""
        doubted = False
        for slot, index in self.fleet.routes.named:
            self._slots[index].add(slot)
            doubted = self._doubts.concern(index, {slot}) or doubted
        self.fleet.routes.named.clear()
        return doubted

    def _doubt_promoted(self, slots: dict[Address, set[int]], replicas: dict[Address, frozenset[Address]]) -> None:
        """Put the leases of slots in doubt that a promoted replica has now: it may lack its primary's last writes.

        A slot that has moved to another shard has taken its keys along.
        """
        for former, index in self._indexes.items():
            link = self.fleet.links[index]
            gone = former not in slots and all([former not in group for group in replicas.values()])
            for address, owned in slots.items():
                lost = owned & self._slots[index] if address != former else set()
                promoted = address in self._replicas.get(former, ()) or former in replicas[address]
                if lost and (promoted or (gone and not link.up)):
                    until_ns = self._clock.now() if link.up else link.lost_ns
                    self._doubts.add(until_ns + 1, index)
                    logger.warning(
                        "node %s of the cluster was promoted in place of %s; it may have lost locks",
                        self._cluster.node(address).address,
                        self._masters[index].address,
                    )

    def _add(self, address: Address, slots: set[int]) -> None:
        node = self._cluster.node(address)
        link = self.fleet.add_node(*address, node.address)
        self._masters.append(node)
        self._slots[link.index] = slots
        if self._guard is not None:
            self._guard.add(node.name, slots)
        self._indexes[address] = link.index
        self.untried.add(link.index)

    def _move_marker(self, index: int, slots: set[int]) -> None:
        if self._guard is not None and self._guard.has_moved(index, slots):
            self.fleet.mark_elsewhere(index)

    def _remove(self, address: Address) -> None:
        index = self._indexes.pop(address)
        logger.info("node %s has no slot of the cluster any more", self._masters[index].address)
        self._dialler.forget(index)
        self.lifecycle.undialled.pop(index, None)
        self.untried.discard(index)
        self._forget_refusal(index)
        self.fleet.remove_node(*address, ConnectionAbortedError("the node has no slot of the cluster any more"))

    def _note_unread(self, cause: Exception) -> None:
        if self._unread is None:
            logger.warning("the topology of %s cannot be read: %s", self._cluster.address, shown(cause, MOST_SHOWN))
        self._unread = cause
        self.fleet.lose_route(cause)

    # --- connections -------------------------------------------------------------------------------

    def _place(self, index: int, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            # Another node may have its slots soon.
            self._reader.refresh()
        # A node that has lost its slots is not reported: its commands go to another node with the next topology.
        if not isinstance(outcome, (Redirected, MasterNotFoundError)):
            super()._place(index, outcome)

    def redial(self, link: Link) -> bool:
        if link.index not in self._indexes.values():
            return False
        self._reader.refresh()
        return super().redial(link)

    def size(self) -> int:
        return max(1, len(self._indexes))

    def needed(self) -> int:
        # Each name has one node.
        return self.size()

    def is_quorate(self) -> bool:
        return self.is_complete()

    def stats(self) -> tuple[MasterStats, ...]:
        if self._guard is None or self.fleet is None or self.lifecycle.closing or self.lifecycle.forked:
            return super().stats()
        # A node that has come back has another guard. Its figures must not go down.
        return tuple([stats_of_master(node, self._guard.known_as(node.address)) for node in self.health().masters])

    def causes(self) -> dict[str, BaseException]:
        if not self._indexes:
            return {self._cluster.name: self._unread or ConnectionError("its topology is being read")}
        return super().causes()

    def _present(self) -> tuple[list[Master], list[Link] | None, list[GuardedMaster] | None]:
        indexes = sorted(self._indexes.values())
        guarded = None if self._guard is None else [self._guard.monitor(index) for index in indexes]
        return [self._masters[index] for index in indexes], [self.fleet.links[index] for index in indexes], guarded

    def _hang_up(self) -> None:
        super()._hang_up()
        self._reader.close()
