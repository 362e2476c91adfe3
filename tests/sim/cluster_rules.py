"""The rules for a cluster: redirects, topologies, and shards that forget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from redlatch.guard.marker import MARKER
from redlatch.testing.memory.lua import Refusal, Status

from .alone import SAYS_YES, Alone, Certain
from .checker import RELEASING
from .cluster import Cluster, Loss, Node, View, keys_of
from .grants import Grant
from .host import Host
from .reports import ANSWERED_NS, Call, Reports
from .world import MICROSECOND, MILLISECOND, World

if TYPE_CHECKING:
    from .master import Visitor
    from .network import Connection

# Two questions for the topology are further apart, by the world's clock (`topology.PAUSE`, and clocks that differ).
REST_NS = 49 * MILLISECOND

# How much later than a redirect its client may send another command to the former node, besides the way.
LATE_NS = 3 * MILLISECOND


def is_release(words: list[bytes]) -> bool:
    """Return whether a command releases or undoes."""
    return words[0].upper() in (b"DELIFEQ", b"DELEX") or words[1] in RELEASING


class Routing:
    """The rules of redirects and of questions for the topology.

    A client sends a command without ASKING only to nodes that were named for its slot, by a redirect or a topology. It
    asks one question at a time, and rests between two. If slots only move at once, and every node knows it, a client is
    redirected no more once it has read a redirect.

    Args:
        far_us: microseconds to the nodes.
        clean: whether slots only move at once, and nothing else happens.
    """

    def __init__(self, world: World, far_us: int, clean: bool) -> None:
        self._world = world
        self._far_ns = far_us * MICROSECOND
        self._clean = clean
        self.cluster: Any = None
        self._named: dict[tuple[Host, int], set[int]] = defaultdict(set)
        self._asked: dict[tuple[Host, int], set[int]] = defaultdict(set)
        # By client, region and its epoch: when the first redirect arrives.
        self._redirected: dict[tuple[Host, int, int], int] = {}
        self._reading: set[Host] = set()
        self._read: dict[Host, int] = {}
        self.redirects = 0
        self.questions = 0

    def came(self, node: Node, visitor: Visitor, words: list[bytes], asking: bool, refusal: Refusal | None) -> None:
        """Look at a command that a node is about to answer."""
        keys = keys_of(words)
        if not keys:
            return
        host, region = visitor.connection.host, self.cluster.region_of_key(keys[0])
        if len({self.cluster.region_of_key(key) for key in keys}) > 1:
            self._world.violate(f"{host.name} has sent {node.name} a command with keys of two slots")
        named = self._named[host, region]
        # A release that was sent behind ASKING is sent to that node once more if the connection breaks.
        owed = is_release(words) and node.index in self._asked[host, region]
        if not (asking or owed) and node.index not in named:
            self._world.violate(f"{host.name} has sent {node.name} a command, but nobody said that it has its slot")
        if refusal is None:
            return
        self.redirects += 1
        if str(refusal).startswith("ASK "):
            self._asked[host, region].add(node.migrating[region])
        elif str(refusal).startswith("MOVED"):
            epoch, owner = node.view[region]
            named.add(owner)
            # A marker's key moves only with the topology.
            if self._clean and not keys[0].endswith(MARKER):
                self._see_again(host, region, epoch, visitor.connection, words)

    def _see_again(self, host: Host, region: int, epoch: int, connection: Connection, words: list[bytes]) -> None:
        """Look for a second redirect for a move, of a command that was sent after the first one had arrived."""
        first = self._redirected.get((host, region, epoch))
        if first is None:
            way = connection.route.back.usual_ns
            self._redirected[host, region, epoch] = self._world.now + 2 * way
            return
        ways = connection.route.there.usual_ns * 3 // 2 + LATE_NS
        late = [ns for end, ns in self._world.stragglers if end > first - 2 * self._far_ns]
        if self._world.now > first + ways + 2 * sum(late):
            self._world.violate(f"{host.name} was redirected twice for one move: {words[0]!r} {words[-1]!r}")

    def reads(self, host: Host) -> None:
        """Record that a client begins to read the topology."""
        self.questions += 1
        if host in self._reading:
            self._world.violate(f"{host.name} asks two questions for the topology at once")
        if self._world.now - self._read.get(host, -REST_NS) < REST_NS:
            self._world.violate(f"{host.name} asks for the topology again without a rest")
        self._reading.add(host)

    def has_read(self, host: Host) -> None:
        """Record that it has read the topology, or could not."""
        self._reading.discard(host)
        self._read[host] = self._world.now

    def heard(self, host: Host, view: View) -> None:
        """Record that a client has got a topology."""
        for region, (_, owner) in view.items():
            self._named[host, region].add(owner)


class Shards(Alone):
    """The rule for the shards of a cluster: after a shard has lost keys, holders overlap only until they are told.

    As `Alone`, for each region. A holder is told of a promotion by a topology, and of a node that forgot by the node. A
    node's yes counts only while it has the slot: an old primary that answers on has no say.
    """

    def __init__(self, world: World, cluster: Cluster, held: Mapping[Grant, tuple[Host, Any]]) -> None:
        super().__init__(world, cluster.nodes[0], held)
        self._cluster = cluster
        self._knew: dict[tuple[Host, Loss], int] = {}
        self._views: dict[Host, View] = defaultdict(dict)
        # By client and node: until when the client knows what the node has forgotten.
        self._until: dict[tuple[Host, int], int] = defaultdict(lambda: -1)
        self._news: dict[Host, list[tuple[int, Any]]] = defaultdict(list)

    def answered(self, node: Node, words: list[bytes], reply: Any) -> None:
        """Record a command that a node has just executed."""
        name = words[0].upper()
        said = name == b"SET" or (name in (b"EVAL", b"EVALSHA") and words[1] in SAYS_YES)
        if not said or not ((isinstance(reply, int) and reply != 0) or (isinstance(reply, Status) and reply == "OK")):
            return
        if self._cluster.speaks_for(node, keys_of(words)[0]):
            for word in words[2:]:
                self._yes[word].append(self._world.now)

    def has_said(self, grant: Grant) -> bool:
        """Return whether a node that has the slot ever said yes to a grant."""
        return bool(self._yes[grant.token])

    def executed(self, words: list[bytes], reply: Any) -> None:
        """Nothing: `answered` knows the node."""

    def _tell(self, connection: Connection, until_ns: int) -> None:
        if connection.open:
            self._news[connection.host].append((self._world.now, (connection.master.index, until_ns)))

    def heard(self, host: Host, view: View) -> None:
        """Record that a client has got a topology."""
        self._news[host].append((self._world.now, view))

    def turned(self, host: Host, began_ns: int) -> None:
        news = self._news[host]
        while news and news[0][0] < began_ns:
            _, what = news.pop(0)
            if isinstance(what, dict):
                self._views[host] = what
            else:
                self._until[host, what[0]] = max(self._until[host, what[0]], what[1])
            for loss in self._cluster.losses:
                if self._says(host, what, loss):
                    self._knew.setdefault((host, loss), host.local)
        super().turned(host, began_ns)

    def _says(self, host: Host, what: Any, loss: Loss) -> bool:
        if isinstance(what, dict):
            known = loss.epoch < 0 and loss.at <= self._until[host, loss.node]
            return 0 <= loss.epoch <= what[loss.region][0] or (known and self._has_seen(host, loss))
        node, until_ns = what
        return loss.epoch < 0 and node == loss.node and loss.at <= until_ns and self._has_seen(host, loss)

    def _has_seen(self, host: Host, loss: Loss) -> bool:
        """Return whether a client knows that the node has the region, so that it can understand the loss."""
        return self._views[host].get(loss.region, (0, 0))[0] >= loss.since

    def _losses_of(self, certain: Certain) -> list[Loss]:
        region = self._cluster.region_of_key(certain.grant.name.encode())
        return [loss for loss in self._cluster.losses if loss.region == region]

    def _moments(self, one: Certain, other: Certain, start: int, end: int) -> Iterator[int]:
        losses = self._losses_of(one)
        edges = {start, end, *[loss.at for loss in losses]}
        for certain in (one, other):
            edges.update(self._yes[certain.grant.token])
            edges.update(self._knew[certain.host, loss] for loss in losses if (certain.host, loss) in self._knew)
        for at, after in pairwise(sorted(edge for edge in edges if start <= edge <= end)):
            if after > at:
                yield at

    def _excused(self, certain: Certain, at: int) -> bool:
        said = max([yes for yes in self._yes[certain.grant.token] if yes <= at], default=0)
        return any(
            said <= loss.at <= at and not self._knew.get((certain.host, loss), at + 1) <= at
            for loss in self._losses_of(certain)
        )


@dataclass(frozen=True)
class Links:
    """All connections of a client to a cluster, as the connection to one master."""

    connections: frozenset[Any]
    memory: int

    @property
    def answering(self) -> bool:
        """Whether replies are in transit to the client."""
        return any(connection.answering for connection in self.connections)


class ClusterReports(Reports):
    """The oracle of reports for a cluster, which is one master; the connections to its nodes count as one."""

    cluster: Cluster

    def _begin(self, what: str, host: Host, grant: Grant, lock: Any, waits: bool) -> Call:
        call = super()._begin(what, host, grant, lock, waits)
        links = self._links(host)
        call.asked = {0: (links.connections, links.memory)}
        return call

    def _end(self, call: Call) -> None:
        connections, memory = call.asked[0]
        super()._end(call)
        links = self._links(call.host)
        echoes = connections != links.connections and memory == links.memory
        call.unknown |= frozenset([0]) if echoes or links.answering else frozenset()

    def _links(self, host: Host) -> Links:
        return Links(frozenset(host.connections), self.cluster.memories)

    def _lost_to(self, call: Call) -> frozenset[int]:
        broke = any(
            call.began <= lost < call.began + ANSWERED_NS for left in call.host.left.values() for lost, _ in left
        )
        return frozenset([0]) if broke else frozenset()
