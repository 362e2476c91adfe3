"""Played clusters: nodes that redirect commands for slots that others have, while slots move and replicas take over.

The slot of each name of a plan is in a region with a few other slots, and the slots between them are regions, too. Who
has a region is the truth of the cluster. Each node has a view of it, which the others' news may reach late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from redis.sentinel import MasterNotFoundError

from redlatch.guard.handshake import GuardHandshake
from redlatch.testing.memory.keyspace import OK
from redlatch.testing.memory.lua import Refusal
from redlatch.votes.key import SLOTS, slot_of
from redlatch.wire.server_traits import reply_error

from .master import Master, Visitor
from .world import MILLISECOND, World

if TYPE_CHECKING:
    from .network import Connection

# What a client learns of a region: the epoch of the news, and the node that has it.
View = dict[int, tuple[int, int]]

# The slots of a region with names. A node that has only one slot tries thousands of keys for its marker.
TOGETHER = 64

# How long a change waits for another one of the same node.
BUSY_NS = 5 * MILLISECOND


class Redirect(Refusal):
    """An error reply that sends a client on, or lets it wait; the command was not executed."""


def keys_of(words: list[bytes]) -> list[bytes]:
    """Return the keys of a command."""
    match words[0].lower():
        case b"eval" | b"evalsha":
            return words[3 : 3 + int(words[2])]
        case b"exists" | b"del":
            return words[1:]
        case b"time" | b"ping" | b"script" | b"asking" | b"client":
            return []
        case _:
            return words[1:2]


@dataclass(frozen=True)
class Loss:
    """A time at which a region lost keys, or may have.

    Attributes:
        epoch: that of the promotion, or -1 for a node that forgot its keys.
        since: the epoch in which the node has the region. Before a client knows that, it does not know of the loss.
    """

    at: int
    region: int
    node: int
    epoch: int = -1
    since: int = 0


class Node(Master):
    """A node of a cluster.

    Attributes:
        view: what it knows of all regions.
        deaf_until: until when no news reaches it.
        down_until: until when it answers that the cluster is down.
        migrating, importing: the regions on their way from it, each with its target, and to it.
    """

    cluster: Cluster

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.view: View = {}
        self.deaf_until = self.down_until = 0
        self.migrating: dict[int, int] = {}
        self.importing: set[int] = set()
        self._asked: set[Visitor] = set()

    @property
    def voter(self) -> int:
        return 0

    def wrong_role(self, role: str) -> Exception:
        return MasterNotFoundError(f"{self.name} is a {role} of its cluster now")

    def welcome(self, connection: Connection, scripts: dict[bytes, bytes]) -> None:
        # A client gives up the connection to a node that has no slot any more.
        connection.excused = True
        super().welcome(connection, scripts)

    def shake(self, handshake: GuardHandshake) -> tuple[bytes | None, int]:
        refusal = self.redirect([b"GET", handshake.key], False)
        if refusal is not None:
            raise reply_error(str(refusal))
        return super().shake(handshake)

    def _answer(self, visitor: Visitor, words: list[bytes]) -> Any:
        name = words[0].lower()
        if name == b"asking":
            self._asked.add(visitor)
            return OK
        asking = visitor in self._asked
        self._asked.discard(visitor)
        refusal = None if self.loading else self.redirect(words, asking)
        self.cluster.came(self, visitor, words, asking, refusal)
        if refusal is None:
            return super()._answer(visitor, words)
        visitor.caching = False
        self._executed(self.index, words, refusal)
        return refusal

    def redirect(self, words: list[bytes], asking: bool) -> Refusal | None:
        """Return what answers a command, a redirect in most cases, if it is not executed here."""
        keys = keys_of(words)
        if not keys:
            return None
        if self.world.now < self.down_until:
            return Refusal("CLUSTERDOWN The cluster is down")
        slot = slot_of(keys[0])
        region = self.cluster.region_of(slot)
        owner = self.view[region][1]
        if owner == self.index:
            target = self.migrating.get(region)
            there = [self.has(key) for key in keys] if target is not None else [True]
            if all(there):
                return None
            if any(there):
                return Redirect("TRYAGAIN Multiple keys request during rehashing of slot")
            return Redirect(f"ASK {slot} master-{target}:6379")
        if asking and region in self.importing:
            if len(set(keys)) > 1 and not all(self.has(key) for key in keys):
                return Redirect("TRYAGAIN Multiple keys request during rehashing of slot")
            return None
        return Redirect(f"MOVED {slot} master-{owner}:6379")

    def reads_what_was_given_up(self) -> bool:
        connection = self.reading
        return connection is not None and connection.is_given_up() and not connection.host.closing

    def has(self, key: bytes) -> bool:
        """Return whether a key is there."""
        self.keys.expire(key)
        return key in self.keys.values

    def learn(self, region: int, epoch: int, owner: int, takes_part: bool = False) -> None:
        """Take the news of a region; a node that takes part in the change hears of it anyway."""
        if self.world.now < self.deaf_until and not takes_part:
            self.world.at(self.deaf_until, self.learn, region, epoch, owner)
        elif epoch > self.view[region][0]:
            self.view[region] = epoch, owner
            self.migrating.pop(region, None)
            self.importing.discard(region)

    def _forget_keys(self) -> None:
        super()._forget_keys()
        self.cluster.forgot(self)

    def take(self, key: bytes, giver: Node, pushes: bool) -> None:
        """Take a key over from another node."""
        giver.keys.expire(key)
        if key not in giver.keys.values:
            return
        value, over = giver.keys.values[key], giver.keys.over.get(key)
        if pushes:
            giver.keys.evict(key)
        else:
            del giver.keys.values[key]
            giver.keys.over.pop(key, None)
        self.keys.values[key] = value
        if over is not None:
            self.keys.over[key] = over + (self._now_us() - giver._now_us()) // 1000
        self.sweep_later(key)

    def sweep_later(self, key: bytes) -> None:
        """Let a key that came without a command expire in time."""
        self._changed(key)


class Cluster:
    """The nodes of one cluster.

    Args:
        shards: how many nodes have slots at the beginning.
        pairs: the replica of some of them.
        keys: the keys whose slots are regions by themselves.
        came: called with each command: node, visitor, words, whether it came behind ASKING, and the redirect or None.

    Attributes:
        owner: for each region, the node that has it.
        losses: when regions lost keys.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[Node],
        shards: int,
        pairs: dict[int, int],
        keys: Sequence[bytes],
        came: Callable[[Node, Visitor, list[bytes], bool, Refusal | None], object],
    ) -> None:
        self.world = world
        self.nodes = nodes
        self.pairs = pairs | {replica: primary for primary, replica in pairs.items()}
        self.came = came
        self.losses: list[Loss] = []
        # How often keys were lost, or a node took over.
        self.memories = 0
        named = sorted({slot_of(key) // TOGETHER for key in keys})
        edges = {0, *[SLOTS * shard // shards for shard in range(shards)]}
        for block in named:
            edges |= {block * TOGETHER, (block + 1) * TOGETHER}
        self.starts = sorted(edges - {SLOTS})
        self.owner = [start * shards // SLOTS for start in self.starts]
        self._named = [self.region_of(block * TOGETHER) for block in named]
        self._epoch = 0
        self.epochs = [0] * len(self.starts)
        self._busy: set[int] = set()
        for node in nodes:
            node.cluster = self
            node.view = {region: (0, owner) for region, owner in enumerate(self.owner)}
        for replica in pairs.values():
            nodes[replica].keys.replica = True

    def region_of(self, slot: int) -> int:
        """Return the region of a slot."""
        return bisect_right(self.starts, slot) - 1

    def region_of_key(self, key: bytes) -> int:
        """Return the region of a key."""
        return self.region_of(slot_of(key))

    def regions_of(self, node: int) -> list[int]:
        """Return the regions of a node."""
        return [region for region, owner in enumerate(self.owner) if owner == node]

    def named(self, number: int) -> int:
        """Return the region of one of the names."""
        return self._named[number % len(self._named)] if self._named else 0

    def speaks_for(self, node: Master, key: bytes) -> bool:
        """Return whether what a node says of a key is the truth: it has the slot, or it takes the slot over."""
        assert isinstance(node, Node)
        region = self.region_of_key(key)
        return self.owner[region] == node.index or region in node.importing

    def holders_of(self, key: bytes) -> Iterator[Node]:
        """Yield the nodes that speak for a key."""
        return (node for node in self.nodes if self.speaks_for(node, key))

    def slots(self, node: Node) -> list[Any]:
        """Return a node's answer to CLUSTER SLOTS."""
        answer = []
        for owner, group in groupby(range(len(self.starts)), key=lambda region: node.view[region][1]):
            regions = list(group)
            end = self.starts[regions[-1] + 1] if regions[-1] + 1 < len(self.starts) else SLOTS
            others = [self.pairs[owner]] if owner in self.pairs and self._follows(self.pairs[owner], owner) else []
            entry = [[b"master-%d" % each, 6379, b"%040x" % each, []] for each in (owner, *others)]
            answer.append([self.starts[regions[0]], end - 1, *entry])
        return answer

    def _follows(self, replica: int, primary: int) -> bool:
        """Return whether a node is a replica, or was one in an old view that has not changed."""
        return self.nodes[replica].keys.replica or not self.regions_of(primary)

    def forgot(self, node: Node) -> None:
        """Record that a node has lost its keys."""
        self.memories += 1
        for region in range(len(self.starts)):
            coming = region in node.importing
            if coming or self.owner[region] == node.index:
                self.losses.append(Loss(self.world.now, region, node.index, since=self.epochs[region] + coming))

    # --- changes -------------------------------------------------------------------------------------------

    def _tell(self, region: int, owner: int, delays: dict[int, int], longest_ns: int) -> None:
        """Give a region to a node, and let each node know of it after a delay."""
        self._epoch += 1
        self.owner[region] = owner
        self.epochs[region] = self._epoch
        for node in self.nodes:
            delay = delays.get(node.index, int(self.world.chance.random() * longest_ns))
            news = partial(node.learn, region, self._epoch, owner, node.index in delays)
            if delay:
                self.world.at(self.world.now + delay, news)
            else:
                news()

    def _is_free(self, *nodes: int) -> bool:
        return not any(node in self._busy or self.nodes[node].keys.replica for node in nodes)

    def _may_move(self, region: int, giver: Node, taker: Node) -> bool:
        """Return whether a region can move: the nodes have nothing else to do, and know the last change of it."""
        knows = all(node.view[region][1] == giver.index for node in (giver, taker))
        ready = giver.up and taker.up and self._is_free(giver.index, taker.index)
        return giver is not taker and knows and ready

    def _keys_in(self, node: Node, region: int) -> list[bytes]:
        return [key for key in list(node.keys.values) if self.region_of_key(key) == region]

    def move(self, region: int, target: int, gap_ns: int, news_ns: int, pushes: bool) -> None:
        """Move a region at once; the target does not know it for a moment, so that both nodes redirect."""
        giver, taker = self.nodes[self.owner[region]], self.nodes[target]
        if not self._may_move(region, giver, taker):
            return
        self.world.note(self.world.now, "cluster", f"moves region {region} from {giver.index} to {target}")
        self._tell(region, target, {giver.index: 0, target: gap_ns}, news_ns)
        for key in self._keys_in(giver, region):
            taker.take(key, giver, pushes)

    def migrate(self, region: int, target: int, ns: int, gap_ns: int, news_ns: int) -> None:
        """Move a region key by key, while the giver answers ASK for keys that it has not."""
        giver, taker = self.nodes[self.owner[region]], self.nodes[target]
        if not self._may_move(region, giver, taker):
            return
        self.world.note(self.world.now, "cluster", f"begins to move region {region} from {giver.index} to {target}")
        self._busy |= {giver.index, target}
        giver.migrating[region] = target
        taker.importing.add(region)
        for key in self._keys_in(giver, region):
            at = self.world.now + int(self.world.chance.random() * ns)
            self.world.at(at, self._pass_on, region, giver, taker, key)
        self.world.at(self.world.now + ns, self._finish, region, giver, taker, gap_ns, news_ns)

    def _pass_on(self, region: int, giver: Node, taker: Node, key: bytes) -> None:
        if giver.migrating.get(region) == taker.index and giver.up and taker.up:
            taker.take(key, giver, True)

    def _finish(self, region: int, giver: Node, taker: Node, gap_ns: int, news_ns: int) -> None:
        if not (giver.up and taker.up):
            self.world.at(self.world.now + BUSY_NS, self._finish, region, giver, taker, gap_ns, news_ns)
            return
        for key in self._keys_in(giver, region):
            taker.take(key, giver, True)
        self._tell(region, taker.index, {giver.index: gap_ns, taker.index: 0}, news_ns)
        self._busy -= {giver.index, taker.index}

    def promote(self, primary: int, lag_ns: int, away_ns: int, news_ns: int, crashes: bool, tries: int = 40) -> None:
        """Promote the replica of a node, which has the keys as they are now, after `lag_ns`.

        The old primary does not know it for `away_ns`, and answers on, or it is down for that time.
        """
        if self.nodes[primary].keys.replica or primary not in self.pairs:
            return
        node = self.nodes[primary]
        knows = all(node.view[region][1] == primary for region in self.regions_of(primary))
        if not (knows and node.up and self._is_free(primary)) or self.world.now < node.deaf_until:
            if tries:
                args = primary, lag_ns, away_ns, news_ns, crashes, tries - 1
                self.world.at(self.world.now + BUSY_NS, self.promote, *args)
            return
        self._busy.add(primary)
        kept = node.keys.copies()
        self.world.at(self.world.now + lag_ns, self._take_over, primary, kept, away_ns, news_ns, crashes)

    def _take_over(self, primary: int, kept: Any, away_ns: int, news_ns: int, crashes: bool) -> None:
        old, new = self.nodes[primary], self.nodes[self.pairs[primary]]
        regions = self.regions_of(primary)
        self.world.note(self.world.now, "cluster", f"promotes {new.index} in place of {primary}")
        new.keys.replica = False
        new.histories += 1
        new.promoted = True
        new.keys.values, new.keys.over = kept
        for key in list(new.keys.values):
            new.sweep_later(key)
        self.memories += 1
        old.deaf_until = self.world.now + away_ns
        if crashes and old.up:
            old.crash(away_ns, keeps=True)
        for region in regions:
            self._tell(region, new.index, {new.index: 0, primary: away_ns}, news_ns)
            self.losses.append(Loss(self.world.now, region, primary, self._epoch))
        self.world.at(self.world.now + away_ns, self._demote, old)
        self._busy.discard(primary)
        self.promoted(new)

    def promoted(self, new: Node) -> None:
        """Called after a promotion."""

    def _demote(self, old: Node) -> None:
        """Let an old primary become a replica."""
        self.world.note(self.world.now, "cluster", f"{old.index} is a replica now")
        old.keys.replica = True
        old.keys.values.clear()
        old.keys.over.clear()

    def leave(self, node: int, target: int, gap_ns: int, down_ns: int) -> None:
        """Move all regions of a node to another one; then the node ends after a while."""
        if not self._is_free(node, target) or not (self.nodes[node].up and self.nodes[target].up):
            return
        for region in self.regions_of(node):
            self.move(region, target, gap_ns, gap_ns, True)
        if not self.regions_of(node):
            self._busy.add(node)
            self.world.at(self.world.now + down_ns, self._end, self.nodes[node])

    def _end(self, node: Node) -> None:
        if node.up:
            node.crash(1_000_000_000 * MILLISECOND, keeps=True)
