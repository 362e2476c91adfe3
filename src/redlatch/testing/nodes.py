"""The nodes of an embedded cluster: what each of them is asked, and what they say together."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import redis

from redlatch.testing.embedded import Masters, clear_one
from redlatch.testing.groups import port_of
from redlatch.testing.topology import SLOTS, View, problem_of, wait_for

__all__ = ["Nodes"]

# Seconds for a reply. MIGRATE takes up to 3 s, and CLUSTER SETSLOT waits 2 s for replicas.
REPLY_TIMEOUT = 5.0

# The primaries of Redis 7 allow one fail-over of a shard in two node timeouts, and the replica waits longer than that.
ASK_AGAIN_SECONDS = 1.0


class Nodes:
    """The servers of a cluster, shard by shard, each with a client and its id (CLUSTER MYID)."""

    def __init__(self, servers: Masters, shards: int, size: int) -> None:
        self.servers = servers
        self.shards = shards
        self.size = size
        self.count = shards * size
        self.ids: list[str] = []
        self._clients: list[Any] = []

    @property
    def living(self) -> list[int]:
        states = zip(self.servers.pids, self.servers.paused, strict=True)
        return [node for node, (pid, paused) in enumerate(states) if pid is not None and not paused]

    def join(self, seconds: float) -> None:
        """Connect to all nodes, and make them a cluster."""
        self._clients = [_client_of(url) for url in self.servers.urls]
        for client in self._clients:
            # They parse the reply to INFO, and others in some versions.
            client.response_callbacks.clear()
        own = [View(self.ask(node, "CLUSTER", "NODES")) for node in range(self.count)]
        self.ids = [view.me for view in own]
        for node in range(self.count):
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", node + 1)
        for shard in range(self.shards):
            first, after = (SLOTS * edge // self.shards for edge in (shard, shard + 1))
            self.ask(self.members(shard)[0], "CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        # If each node met only one other, gossip would take a second to tell it of the rest.
        for node, other in itertools.combinations(range(self.count), 2):
            port, bus_port = port_of(self.servers.urls[other]), own[other].peers[self.ids[other]].bus_port
            self.ask(node, "CLUSTER", "MEET", "127.0.0.1", port, bus_port)
        wait_for(self.strangers, seconds, "the nodes do not know each other")
        for shard in range(self.shards):
            primary, *replicas = self.members(shard)
            for node in replicas:
                self.ask(node, "CLUSTER", "REPLICATE", self.ids[primary])
        if self.size > 1:
            shards = set(range(self.shards))
            wait_for(lambda: self.unwritten(shards), seconds, "the replicas do not follow")

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()

    def clear(self, node: int) -> None:
        with _client_of(self.servers.urls[self.checked(node)]) as server:
            clear_one(server)

    def ask(self, node: int, *command: str | bytes | int) -> Any:
        reply = self._clients[self.checked(node)].execute_command(*command)
        return reply.decode() if isinstance(reply, bytes) else reply

    def checked(self, node: int) -> int:
        if not 0 <= node < self.count:
            raise IndexError(f"no node {node}: this cluster has nodes 0 to {self.count - 1}")
        if not self._clients:
            raise RuntimeError("this cluster is not running: use it inside its `with`")
        return node

    def shard_of(self, node: int) -> int:
        return node // self.size

    def members(self, shard: int) -> list[int]:
        if not 0 <= shard < self.shards:
            raise IndexError(f"no shard {shard}: this cluster has shards 0 to {self.shards - 1}")
        return list(range(shard * self.size, shard * self.size + self.size))

    def views(self, nodes: Iterable[int] | None = None) -> tuple[dict[int, View], list[str]]:
        """Return what these nodes see, or all living ones, and in words which of them do not answer."""
        self.checked(0)
        views, silent = {}, []
        for node in self.living if nodes is None else nodes:
            try:
                views[node] = View(self.ask(node, "CLUSTER", "NODES"))
            except redis.RedisError as error:
                silent.append(f"node {node} does not answer ({error})")
        return views, silent

    def primary(self, shard: int) -> int:
        """Return the node that most living nodes consider the primary of a shard."""
        self.members(shard)
        views, silent = self.views()
        return _most_common(self._primaries(shard, views).values(), f"no node sees a primary of shard {shard}", silent)

    def owner(self, slot: int, nodes: Iterable[int] | None = None) -> int:
        """Return the node that owns a slot, as most of these nodes say, or of all living ones."""
        views, silent = self.views(nodes)
        return _most_common(self._owners(slot, views).values(), f"no node sees an owner of slot {slot}", silent)

    def strangers(self) -> str:
        """Return in words which nodes do not know all others; an empty string if all do."""
        views, found = self.views()
        for node, view in views.items():
            if unknown := set(self.ids) - set(view.peers):
                found.append(f"node {node} does not know {len(unknown)} of {self.count} nodes")
        return "; ".join(found)

    def unwritten(self, shards: set[int]) -> str:
        """Write to each shard whose replicas follow, and remove it from `shards`. Return in words what the others lack.

        CLUSTER SLOTS lists no replica before its first write.
        """
        found = []
        for shard in list(shards):
            primary, *replicas = self.members(shard)
            links = {node: self.info(node).get("master_link_status") for node in replicas}
            found += [f"the link of node {node} is {link}" for node, link in links.items() if link != "up"]
            if set(links.values()) == {"up"}:
                try:
                    self.ask(primary, "FLUSHALL")
                    shards.remove(shard)
                except redis.ResponseError as error:
                    # With min-replicas-to-write, it counts its replicas once a second.
                    found.append(f"node {primary} says {error}")
        return "; ".join(found)

    def unpromoted(self, shard: int, heirs: Collection[int]) -> str:
        """Return in words how the living nodes see a shard; an empty string if all see one living heir as primary."""
        views, silent = self.views()
        seen = self._primaries(shard, views)
        if not silent and len(set(seen.values())) == 1 and set(seen.values()) <= set(heirs) & set(views):
            return ""
        return "; ".join(silent + [f"node {node} sees node {primary} as primary" for node, primary in seen.items()])

    def promotion(self, shard: int, heir: int, words: Collection[str]) -> Callable[[], str]:
        """Return a function for `wait_for` that asks a replica to be promoted, and again if needed."""
        ask_at, refusal = time.monotonic(), ""

        def look() -> str:
            nonlocal ask_at, refusal
            if not (seen := self.unpromoted(shard, [heir])):
                return ""
            if time.monotonic() >= ask_at:
                try:
                    self.ask(heir, "CLUSTER", "FAILOVER", *words)
                    ask_at, refusal = time.monotonic() + ASK_AGAIN_SECONDS, ""
                except redis.RedisError as error:
                    refusal = f"; node {heir} says {error}"
            return seen + refusal

        return look

    def unmoved(self, slot: int, shard: int) -> str:
        """Return in words how the living nodes see a slot; an empty string if all see its owner in the shard."""
        views, found = self.views()
        for node, owner in self._owners(slot, views).items():
            if owner not in self.members(shard):
                found.append(f"node {node} sees node {owner} as owner")
        return "; ".join(found)

    def problem(self) -> str:
        """Return in words why the living nodes are not ready; an empty string if they are."""
        return self.unready() or self.discord()

    def unready(self) -> str:
        """Return in words which living nodes are not connected, or do not serve; an empty string if all do."""
        views, found = self.views()
        living = {self.ids[node]: node for node in views}
        for node, view in views.items():
            if why := problem_of(view, self.info(node), living, self.listed(node)):
                found.append(f"node {node} {why}")
        return "; ".join(found)

    def discord(self) -> str:
        """Return in words on which owners the living nodes do not agree; an empty string if they do."""
        views, found = self.views()
        for shard in range(self.shards):
            ids = [self.ids[node] for node in self.members(shard)]
            seen = {node: view.slots_of(ids) for node, view in views.items()}
            if len(set(seen.values())) > 1:
                found += [f"node {node} sees the slots {slots} in shard {shard}" for node, slots in seen.items()]
        return "; ".join(found)

    def service(self) -> str:
        """Return in words which living nodes serve their slots; an empty string if none does."""
        states = {node: self.info(node).get("cluster_state") for node in self.living}
        return "; ".join(f"node {node} is in state {state}" for node, state in states.items() if state != "fail")

    def info(self, node: int) -> dict[str, str]:
        """Return CLUSTER INFO and INFO REPLICATION of a node; nothing if it does not answer."""
        try:
            lines = [self.ask(node, "CLUSTER", "INFO"), self.ask(node, "INFO", "REPLICATION")]
        except redis.RedisError:
            return {}
        return dict(line.split(":", 1) for line in "\n".join(lines).splitlines() if ":" in line)

    def listed(self, node: int) -> set[str]:
        """Return the ids of the nodes that a node tells to clients; none if it does not answer."""
        try:
            slots = self.ask(node, "CLUSTER", "SLOTS")
        except redis.RedisError:
            return set()
        return {peer[2].decode() for _, _, *peers in slots for peer in peers}

    def _primaries(self, shard: int, views: dict[int, View]) -> dict[int, int | None]:
        nodes = {self.ids[node]: node for node in self.members(shard)}
        return {node: nodes.get(view.primary_of(nodes) or "") for node, view in views.items()}

    def _owners(self, slot: int, views: dict[int, View]) -> dict[int, int | None]:
        nodes = {name: node for node, name in enumerate(self.ids)}
        return {node: nodes.get(view.owner_of(slot) or "") for node, view in views.items()}


def _client_of(url: str) -> Any:
    options: dict[str, Any] = {"socket_timeout": REPLY_TIMEOUT, "retry": None, "protocol": 2}
    if url.startswith("rediss"):
        options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    return redis.Redis.from_url(url, **options)


def _most_common(seen: Iterable[int | None], problem: str, silent: list[str]) -> int:
    counted = Counter(node for node in seen if node is not None)
    if not counted:
        raise RuntimeError("; ".join([problem, *silent]))
    return counted.most_common(1)[0][0]
