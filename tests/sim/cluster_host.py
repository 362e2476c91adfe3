"""A client of a played cluster: what reads its topology, and what dials its nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from redlatch import AsyncClient
from redlatch.guard.handshake import GuardHandshake
from redlatch.masters.cluster import Node as NodeAddress
from redlatch.masters.master import Address
from redlatch.wire.dial.topology import TIMEOUT, Topology, TopologyReader, read_slots

from .cluster import Cluster, View
from .cluster_rules import Routing, Shards
from .task_host import SimDialler, TaskHost
from .world import SECOND


class ClusterHost(TaskHost):
    """A process with a client of a cluster.

    Attributes:
        cluster, routing, shards: the cluster and its rules.
    """

    cluster: Cluster
    routing: Routing
    shards: Shards | None = None


class SimReader(TopologyReader):
    """Reads the topology in the world's time; what runs in a thread runs in a greenlet."""

    def __init__(self, host: ClusterHost, cluster: Any, deliver: Callable[[int, Any], None]) -> None:
        self._host = host
        self._view: View = {}
        super().__init__(cluster, self._delivering(deliver))
        self._random = random.Random(host.world.chance.random())

    def _delivering(self, deliver: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        host = self._host

        def delivered(index: int, outcome: Any) -> None:
            if host.dead:
                return
            if isinstance(outcome, Topology):
                host.world.note(host.world.now, host.name, "has a topology")
                host.routing.heard(host, self._view)
                if host.shards is not None:
                    host.shards.heard(host, self._view)
            deliver(index, outcome)

        return delivered

    def _start(self) -> None:
        self._host.world.at(max(self._host.world.now, self._host.local), self._begin)

    def _begin(self) -> None:
        greenlet(self._run).switch()

    def _wait(self, ns: int) -> None:
        """Wait until a time has passed, and the process is not paused."""
        host, me = self._host, getcurrent()
        assert me.parent is not None
        while ns > 0 and not host.dead:
            host.world.at(host.world.now + ns, me.switch)
            me.parent.switch()
            ns = host.local - host.world.now
        if host.dead:
            raise GreenletExit

    def _sleep(self, seconds: float) -> None:
        self._wait(int(seconds * self._random.uniform(0.5, 1.0) * SECOND))

    def read(self) -> Topology:
        self._host.routing.reads(self._host)
        try:
            return super().read()
        finally:
            self._host.routing.has_read(self._host)

    def _ask(self, node: NodeAddress, address: Address) -> Topology:
        host = self._host
        index = int(address[0].removeprefix("master-"))
        asked_ns = host.clock.read(max(host.world.now, host.local))
        route = host.routes[index]
        self._wait(2 * route.there.usual_ns)
        played = host.cluster.nodes[index]
        if host.answers_at(index) > host.world.now:
            self._wait(int(TIMEOUT * SECOND))
            raise TimeoutError(f"{played.name} does not answer")
        if not played.up:
            raise ConnectionRefusedError(f"{played.name} is down")
        view, answer = dict(played.view), host.cluster.slots(played)
        self._wait(2 * route.back.usual_ns)
        self._view = view
        return read_slots(answer, address, asked_ns)


class NodeDialler(SimDialler):
    """Dials the nodes of a cluster, which become known one after the other."""

    def __init__(self, host: ClusterHost, masters: list[Any], *args: Any) -> None:
        self._nodes = masters
        self._left: set[int] = set()
        self._cluster_host = host
        super().__init__(host, masters, *args)

    @property
    def _indexes(self) -> list[int]:
        return [int(node.address[len("master-") :].partition(":")[0]) for node in self._nodes]

    @_indexes.setter
    def _indexes(self, indexes: list[int]) -> None:
        """Nothing: the list grows."""

    def _try(self, index: int, pause: float, handshake: GuardHandshake | None, sent_ns: int) -> None:
        if index not in self._left:
            super()._try(index, pause, handshake, sent_ns)

    def forget(self, index: int) -> None:
        """Stop dialling a node."""
        self._left.add(index)

    def reader_of(self, cluster: Any, deliver: Callable[[int, Any], None]) -> SimReader:
        """Return what reads the topology."""
        return SimReader(self._cluster_host, cluster, deliver)


class SimClusterClient(AsyncClient):
    """An `AsyncClient` of a played cluster."""

    def __init__(self, host: ClusterHost, seeds: tuple[int, ...], **options: Any) -> None:
        self._host = host
        super().__init__("redis+cluster://" + ",".join(f"master-{seed}" for seed in seeds), **options)

    def _quorum_of(self, **numbers: Any) -> Any:
        return self._host.quorum(**numbers)

    def _dialler(self, *args: Any) -> NodeDialler:
        return NodeDialler(self._host, *args)
