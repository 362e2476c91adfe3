"""The faults and changes of a cluster, by name."""

from __future__ import annotations

from collections.abc import Sequence

from .cluster import Cluster
from .faults import Faults
from .host import Host
from .master import Master
from .world import SECOND, World


class ClusterFaults(Faults):
    """Makes what is planned happen to a cluster and to its clients."""

    def __init__(self, world: World, hosts: Sequence[Host], masters: list[Master], cluster: Cluster) -> None:
        super().__init__(world, hosts, masters)
        self._cluster = cluster

    def move(self, name: int, node: int, pushes: bool, news: float, gap: float) -> None:
        """Move the slot of a name to a node at once.

        Args:
            pushes: whether the former node pushes that the keys are gone.
            news: within how many seconds the other nodes know of it.
            gap: for how many seconds the node does not know that it has the slot.
        """
        times = int(gap * SECOND), int(news * SECOND)
        self._cluster.move(self._cluster.named(name), node, *times, pushes)

    def migrate(self, name: int, node: int, news: float, gap: float, seconds: float) -> None:
        """Move the slot of a name to a node key by key, within `seconds`."""
        times = int(seconds * SECOND), int(gap * SECOND), int(news * SECOND)
        self._cluster.migrate(self._cluster.named(name), node, *times)

    def promote(self, node: int, lag: float, crashes: bool, news: float, away: float) -> None:
        """Promote the replica of a node, whose keys are `lag` seconds old.

        Args:
            crashes: whether the old primary is down until it is a replica; otherwise it answers on.
            away: for how many seconds the old primary does not know it.
        """
        times = int(lag * SECOND), int(away * SECOND), int(news * SECOND)
        self._cluster.promote(node, *times, crashes)

    def leave(self, node: int, target: int, gap: float, seconds: float) -> None:
        """Give all slots of a node to another one; the node ends `seconds` later."""
        self._cluster.leave(node, target, int(gap * SECOND), int(seconds * SECOND))

    def deafen(self, node: int, seconds: float) -> None:
        """Keep the news of other nodes from a node."""
        played = self._cluster.nodes[node]
        played.deaf_until = max(played.deaf_until, self._later(seconds))

    def cluster_down(self, node: int, seconds: float) -> None:
        """Let a node answer that the cluster is down."""
        played = self._cluster.nodes[node]
        played.down_until = max(played.down_until, self._later(seconds))
