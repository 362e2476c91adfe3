"""The nodes of an embedded cluster: what each of them is asked, and what they say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from redlatch.testing.embedded import Masters
from redlatch.testing.topology import View, problem_of

__all__ = ["Nodes"]

# Seconds for a reply. CLUSTER SETSLOT waits 2 s for replicas.
REPLY_TIMEOUT = 5.0


class Nodes:
    """The servers of a cluster by index, shard by shard, each with a client and its id (CLUSTER MYID)."""

    def __init__(self, servers: Masters, shards: int, size: int) -> None:
        self.servers = servers
        self.shards = shards
        self.size = size
        self.ids: list[str] = []
        self.bus_ports: list[int] = []
        self._clients: list[Any] = []

    @property
    def count(self) -> int:
        return self.shards * self.size

    @property
    def living(self) -> list[int]:
        states = zip(self.servers.pids, self.servers.paused, strict=True)
        return [node for node, (pid, paused) in enumerate(states) if pid is not None and not paused]

    def connect(self) -> None:
        self._clients = [_client_of(url) for url in self.servers.urls]
        own = [View(self.ask(node, "CLUSTER", "NODES")) for node in range(self.count)]
        self.ids = [view.me for view in own]
        self.bus_ports = [view.peers[view.me].bus_port for view in own]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def checked(self, node: int) -> int:
        if not 0 <= node < self.count:
            raise IndexError(f"no node {node}: this cluster has nodes 0 to {self.count - 1}")
        if not self._clients:
            raise RuntimeError("this cluster is not running: use it inside its `with`")
        return node

    def members(self, shard: int) -> list[int]:
        if not 0 <= shard < self.shards:
            raise IndexError(f"no shard {shard}: this cluster has shards 0 to {self.shards - 1}")
        return list(range(shard * self.size, shard * self.size + self.size))

    def shard_of(self, node: int) -> int:
        return node // self.size

    def ask(self, node: int, *command: str | bytes | int) -> Any:
        reply = self._clients[node].execute_command(*command)
        return reply.decode() if isinstance(reply, bytes) else reply

    def views(self) -> tuple[dict[int, View], list[str]]:
        """Return what each living node sees, and in words which of them do not answer."""
        views, silent = {}, []
        for node in self.living:
            try:
                views[node] = View(self.ask(node, "CLUSTER", "NODES"))
            except redis.RedisError as error:
                silent.append(f"node {node} does not answer ({error})")
        return views, silent

    def primary(self, shard: int) -> int:
        """Return the node that most living nodes consider the primary of a shard."""
        views, silent = self.views()
        named = self.primaries(shard, views).values()
        return _most_common(named, f"no node names a primary of shard {shard}", silent)

    def primaries(self, shard: int, views: dict[int, View]) -> dict[int, int | None]:
        """Return for each node that is asked which one it considers the primary of a shard."""
        nodes = {self.ids[node]: node for node in self.members(shard)}
        return {node: nodes.get(view.primary_of(nodes) or "") for node, view in views.items()}

    def owner(self, slot: int) -> int:
        """Return the node that owns a slot, as most living nodes say."""
        views, silent = self.views()
        return _most_common(self.owners(slot, views).values(), f"no node names an owner of slot {slot}", silent)

    def owners(self, slot: int, views: dict[int, View]) -> dict[int, int | None]:
        """Return for each node that is asked which one it considers the owner of a slot."""
        nodes = {name: node for node, name in enumerate(self.ids)}
        return {node: nodes.get(view.owner_of(slot) or "") for node, view in views.items()}

    def strangers(self) -> str:
        """Return in words which living nodes do not know all nodes; an empty string if all do."""
        views, silent = self.views()
        for node, view in views.items():
            if unknown := set(self.ids) - set(view.peers):
                silent.append(f"node {node} does not know {len(unknown)} of {self.count} nodes")
        return "; ".join(silent)

    def problem(self) -> str:
        """Return in words why the living nodes are not ready; an empty string if they are."""
        views, found = self.views()
        living = [self.ids[node] for node in views]
        for node, view in views.items():
            if why := problem_of(view, self.info(node), living):
                found.append(f"node {node} {why}")
        if not found and len({view.slots for view in views.values()}) > 1:
            found.append("the nodes do not agree on the owners of the slots")
        return "; ".join(found)

    def info(self, node: int) -> dict[str, str]:
        """Return CLUSTER INFO and INFO REPLICATION of a node; nothing if it does not answer."""
        try:
            lines = [self.ask(node, "CLUSTER", "INFO"), self.ask(node, "INFO", "REPLICATION")]
        except redis.RedisError:
            return {}
        return dict(line.split(":", 1) for line in "\n".join(lines).splitlines() if ":" in line)


def _client_of(url: str) -> Any:
    options: dict[str, Any] = {"socket_timeout": REPLY_TIMEOUT, "retry": None, "protocol": 2}
    if url.startswith("rediss"):
        options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    client = redis.Redis.from_url(url, **options)
    # They parse the reply to INFO, and others in some versions.
    client.response_callbacks.clear()
    return client


def _most_common(named: Iterable[int | None], problem: str, silent: Sequence[str]) -> int:
    counted = Counter(node for node in named if node is not None)
    if not counted:
        raise RuntimeError("; ".join([problem, *silent]))
    return counted.most_common(1)[0][0]
