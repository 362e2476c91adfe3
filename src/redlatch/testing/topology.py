"""What one node of a cluster knows about the others, and whether that is all that it should know."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

__all__ = ["SLOTS", "Peer", "View", "problem_of", "wait_for"]

SLOTS = 16384

LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Peer:
    """A node as another one, or itself, knows it."""

    id: str
    bus_port: int
    flags: frozenset[str]
    primary: str | None
    epoch: int
    linked: bool
    ranges: tuple[tuple[int, int], ...]

    @property
    def is_primary(self) -> bool:
        return "master" in self.flags

    @property
    def fails(self) -> bool:
        return bool(self.flags & {"fail", "fail?"})


class View:
    """The cluster as one of its nodes sees it: the reply to CLUSTER NODES.

    Attributes:
        me: the id of the node.
        peers: all nodes that it knows, itself included, by their ids.
    """

    __slots__ = ("me", "peers")

    def __init__(self, reply: str) -> None:
        peers = [_parse(line.split(" ")) for line in reply.splitlines()]
        self.me = next(peer.id for peer in peers if "myself" in peer.flags)
        self.peers = {peer.id: peer for peer in peers}

    @property
    def slots(self) -> frozenset[tuple[str, tuple[tuple[int, int], ...]]]:
        """Return the owners of all slots."""
        return frozenset((peer.id, peer.ranges) for peer in self.peers.values() if peer.ranges)

    @property
    def assigned(self) -> int:
        """Return how many slots have an owner."""
        return sum(last - first + 1 for _, ranges in self.slots for first, last in ranges)

    def slots_of(self, ids: Collection[str]) -> str:
        """Return the slots that nodes own, such as ``0-99 105-105``."""
        ranges = sorted(edges for name, ranges in self.slots for edges in ranges if name in ids)
        return " ".join(f"{first}-{last}" for first, last in ranges)

    def owner_of(self, slot: int) -> str | None:
        """Return the id of the node that owns a slot."""
        owners = (name for name, ranges in self.slots for first, last in ranges if first <= slot <= last)
        return next(owners, None)

    def primary_of(self, members: Collection[str]) -> str | None:
        """Return the id of the primary of a shard. Of two, it is the one that answers, or the later one."""
        found = [self.peers[name] for name in members if name in self.peers and self.peers[name].is_primary]
        return max(found, key=lambda peer: (not peer.fails, peer.epoch)).id if found else None


def problem_of(view: View, info: Mapping[str, str], living: Mapping[str, int], listed: Collection[str]) -> str:
    """Return in words why a node is not ready; an empty string if it is.

    Args:
        view: what the node sees.
        info: its CLUSTER INFO and INFO REPLICATION.
        living: the nodes that run, by their ids.
        listed: the ids of the nodes that it tells to clients (CLUSTER SLOTS).
    """
    state = info.get("cluster_state")
    if state != "ok" or view.assigned != SLOTS:
        return f"is in state {state}, with {view.assigned} of {SLOTS} slots assigned"
    peers = {node: view.peers.get(name) for name, node in living.items()}
    lost = [f"node {node}" for node, peer in peers.items() if peer is None or peer.fails or not peer.linked]
    if lost:
        return f"is not connected with {', '.join(lost)}"
    owners = {name for name, _ in view.slots}
    serving = [node for node, peer in peers.items() if peer is not None and owners & {peer.id, peer.primary}]
    hidden = [f"node {node}" for name, node in living.items() if node in serving and name not in listed]
    return _replication_problem(view, info, peers) or (
        f"does not list {', '.join(hidden)} in CLUSTER SLOTS" if hidden else ""
    )


def _replication_problem(view: View, info: Mapping[str, str], peers: Mapping[int, Peer | None]) -> str:
    me = view.peers[view.me]
    if not me.is_primary and info.get("master_link_status") != "up":
        return "does not follow its primary yet"
    followers = sum(peer is not None and peer.primary == view.me for peer in peers.values())
    online = sum(name.startswith("slave") and "state=online" in value for name, value in info.items())
    if online < followers:
        return f"sends its writes to {online} of {followers} replicas"
    return ""


def wait_for(look: Callable[[], str], seconds: float, problem: str) -> None:
    """Wait until `look` returns an empty string instead of what it saw.

    Raises:
        TimeoutError: it still saw something, which is in the text.
    """
    deadline = time.monotonic() + seconds
    while seen := look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem} after {seconds:g} s: {seen}")
        time.sleep(LOOK_SECONDS)


def _parse(words: list[str]) -> Peer:
    """Parse a line of CLUSTER NODES: id, ip:port@bus[,hostname], flags, primary, ping, pong, epoch, link, slots."""
    name, address, flags, primary, _, _, epoch, link, *ranges = words
    # [slot->-id] and [slot-<-id] are slots that move.
    edges = [text.partition("-") for text in ranges if not text.startswith("[")]
    return Peer(
        name,
        int(address.partition("@")[2].partition(",")[0] or 0),
        frozenset(flags.split(",")),
        None if primary == "-" else primary,
        int(epoch),
        link == "connected",
        tuple((int(first), int(last or first)) for first, _, last in edges),
    )
