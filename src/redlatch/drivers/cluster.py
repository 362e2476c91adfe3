"""The nodes of a cluster: the connections of a client whose only master is a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..health import Health
from ..masters.cluster import Cluster
from ..masters.master import Address, Master
from ..quorum.quorum import Quorum
from ..votes.redaction import shown
from ..wire.dial.connect import Connection
from ..wire.dial.topology import TOPOLOGY, Topology, TopologyReader
from .arrivals import Arrival, Deliver, MakeDialler, MakeFleet, Outcome, reject
from .connections import Connections
from .lifecycle import Lifecycle
from .master_log import MOST_SHOWN
from .status import causes_of, health_of_all

if TYPE_CHECKING:
    from ..quorum.hold import Hold
    from ..wire.engine.link import Link

logger = logging.getLogger("redlatch")


class ClusterConnections(Connections):
    """The connections to the primaries of one cluster. An index is the place of a node, which it keeps for good."""

    def __init__(
        self,
        cluster: Cluster,
        quorum: Quorum,
        make_fleet: MakeFleet,
        deliver: Deliver,
        tracking: bool,
        dialler: MakeDialler,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        nodes: list[Master] = []
        super().__init__(nodes, 1, quorum.clock, make_fleet, deliver, tracking, dialler, None, quorum.doubts, lifecycle)
        self.untried = {TOPOLOGY}
        self._cluster = cluster
        self._reader = TopologyReader(cluster, deliver)
        self._indexes: dict[Address, int] = {}
        self._started = False
        # Why no topology could be read last.
        self._unread: Exception | None = None

    def make_fleet(self) -> Any:
        fleet = super().make_fleet()
        fleet.become_cluster(self._reader)
        return fleet

    def all_dialled(self) -> bool:
        return self._started

    def start(self) -> None:
        self._reader.refresh()
        self._started = True

    def arrive(self, index: int, outcome: Arrival) -> bool:
        if index != TOPOLOGY:
            if outcome is not None and index not in self._indexes.values():
                reject(outcome)
                return False
            return super().arrive(index, outcome)
        if isinstance(outcome, Topology):
            self._take_topology(outcome)
            self._unread = None
        elif isinstance(outcome, Exception):
            self._note_unread(outcome)
        self.untried.discard(TOPOLOGY)
        return False

    def _take_topology(self, topology: Topology) -> None:
        for address in topology.nodes:
            if address not in self._indexes:
                self._add(address)
        self.fleet.route(
            [(first, last, self._indexes[topology.nodes[place]]) for first, last, place in topology.ranges],
            topology.asked_ns,
        )
        for address in set(self._indexes).difference(topology.nodes):
            self._remove(address)

    def _add(self, address: Address) -> None:
        node = self._cluster.node(address)
        link = self.fleet.add_node(*address, node.address)
        self._masters.append(node)
        self._indexes[address] = link.index
        self.untried.add(link.index)
        self._dial(link.index)

    def _remove(self, address: Address) -> None:
        index = self._indexes.pop(address)
        logger.info("node %s has no slot of the cluster any more", self._masters[index].address)
        self._dialler.forget(index)
        self.lifecycle.undialled.pop(index, None)
        self.untried.discard(index)
        self.fleet.remove_node(*address, ConnectionAbortedError("the node has no slot of the cluster any more"))

    def _note_unread(self, cause: Exception) -> None:
        if self._unread is None:
            logger.warning("the topology of %s cannot be read: %s", self._cluster.address, shown(cause, MOST_SHOWN))
        self._unread = cause
        self.fleet.lose_route(cause)

    def _place(self, index: int, outcome: Outcome) -> None:
        if isinstance(outcome, Connection):
            super()._place(index, outcome)
            return
        # Another node may have its slots soon.
        self._reader.refresh()
        self._log.report_unusable(index, outcome, self._connected(), len(self.untried) > 1)
        if not self.fleet.links[index].up:
            self.fleet.fail(index, outcome)

    def redial(self, link: Link) -> bool:
        if link.index not in self._indexes.values():
            return False
        self._reader.refresh()
        return super().redial(link)

    def is_quorate(self) -> bool:
        return self.is_complete()

    def health(self, held: Iterable[Hold] = ()) -> Health:
        refused, unused, now_ns = self.refusal(), self.lifecycle.closing or self.lifecycle.forked, self._clock.now()
        masters, links = self._present()
        return health_of_all(masters, links, None, max(1, len(masters)), refused, unused, held, now_ns)

    def causes(self) -> dict[str, BaseException]:
        masters, links = self._present()
        if not masters:
            return {self._cluster.name: self._unread or ConnectionError("its topology is being read")}
        return causes_of(masters, links, False)

    def _present(self) -> tuple[list[Master], list[Any]]:
        indexes = sorted(self._indexes.values())
        return [self._masters[index] for index in indexes], [self.fleet.links[index] for index in indexes]

    def _hang_up(self) -> None:
        super()._hang_up()
        self._reader.close()
