"""Runs a plan of tasks whose only master is a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from redlatch.loss import KEY_GONE
from redlatch.quorum.waiting.contention import BACKSTOP_NS

from .base import BaseSchedule
from .cluster import Cluster, Node, Redirect, keys_of
from .cluster_faults import ClusterFaults
from .cluster_host import ClusterHost, SimClusterClient
from .cluster_rules import ClusterReports, Routing, Shards
from .faults import Faults
from .logs import Logs
from .master import Master
from .outcome import Outcome
from .schedule import Schedule
from .task_host import TaskHost


class ClusterSchedule(Schedule):
    """A schedule of tasks on one cluster.

    Attributes:
        cluster, routing: the cluster, and the rules of its redirects.
    """

    MASTER: ClassVar[type[Master]] = Node
    HOST: ClassVar[type[ClusterHost]] = ClusterHost

    def _prepare(self) -> None:
        plan, world = self.plan, self.world
        # A waiter behind another one watches a key that does not exist yet. When its slot moves, no node pushes that.
        self.checker.fair_ns = BACKSTOP_NS
        self.routing = Routing(world, plan.far_us, plan.moves_at_once())
        names = sorted({name for action in plan.uses() for name in action.names})
        nodes: Any = self.masters
        keys = [name.encode() for name in names]
        self.cluster = SimulatedCluster(world, nodes, plan.shards, dict(plan.replicas), keys, self.routing.came)
        self.cluster.schedule = self
        self.routing.cluster = self.cluster
        reports = ClusterReports(world, self.masters[:1], 1, plan.trusty)
        reports.cluster = self.cluster
        self.reports = reports
        self.logs = Logs(world, reports)
        for host in self.hosts:
            assert isinstance(host, ClusterHost)
            host.cluster, host.routing = self.cluster, self.routing

    def _client_of(self, host: Any, **options: Any) -> Any:
        return SimClusterClient(host, self.plan.seeds, **options)

    def _faults(self) -> Faults:
        return ClusterFaults(self.world, self.hosts, self.masters, self.cluster)

    def _watch_the_only_master(self) -> Any:
        shards = Shards(self.world, self.cluster, self.held)
        for master in self.masters:
            master.told = shards
        for host in self.hosts:
            assert isinstance(host, ClusterHost)
            host.shards = shards
            host.turned = shards.turned
        return shards

    def _executed(self, index: int, words: list[bytes], reply: Any) -> None:
        node = self.masters[index]
        if isinstance(reply, Redirect):
            return
        assert isinstance(node, Node)
        self.checker.executed(node, words, reply)
        keys = keys_of(words)
        # What an old primary refuses proves nothing, and its holder cannot know that its yes does not, either.
        if reply or (keys and self.cluster.speaks_for(node, keys[0])):
            self.reports.executed(0, words, reply)
        if isinstance(self.alone, Shards):
            self.alone.answered(node, words, reply)

    def _judge(self) -> None:
        for grant in self.checker.grants:
            # An old primary that answers on gives lower fences than the new one: what the fence protects refuses them.
            if isinstance(self.alone, Shards) and not self.alone.has_said(grant):
                grant.fence = 0
        super()._judge()

    def _lost(self, lock: Any, reason: str) -> None:
        BaseSchedule._lost(self, lock, reason)
        hold: Any = lock._hold
        key = hold.kind.watched(hold.key) if reason == KEY_GONE else b""
        if key and any(node.keys.values.get(key) == hold.token for node in self.cluster.holders_of(key)):
            self.world.violate(f"{lock.name} was reported gone, but its node has it")

    def _kept_out(self, master: Master) -> bool:
        """A node is used on, whatever happens to it."""
        return False

    def _look_for_leftovers(self, hosts: Iterable[TaskHost], masters: Iterable[Master]) -> None:
        """Look at the keys that their nodes have; others are left over from a node's own past."""
        kept = []
        for master in masters:
            strays = [key for key in master.keys.values if not self.cluster.speaks_for(master, key)]
            kept.append((master, {key: master.keys.values.pop(key) for key in strays}))
        super()._look_for_leftovers(hosts, [master for master, _ in kept])

    def _outcome(self, **counts: int) -> Outcome:
        return super()._outcome(redirects=self.routing.redirects, questions=self.routing.questions, **counts)


class SimulatedCluster(Cluster):
    """A cluster whose promotions excuse the keys that a replica has still."""

    schedule: ClusterSchedule

    def promoted(self, new: Node) -> None:
        for value in new.keys.values.values():
            values = [value] if isinstance(value, bytes) else [*value, *getattr(value, "values", list)()]
            # Its release, or the undo, may be lost.
            self.schedule.checker.stays |= {(0, word) for word in values if isinstance(word, bytes)}
