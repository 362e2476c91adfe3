"""A cluster for operators: which node has a name, and what that node says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import redis
from redis.exceptions import AskError, MovedError

from redlatch.locks.connecting import cure_of
from redlatch.masters.cluster import Cluster, Node
from redlatch.operate.ending import end
from redlatch.operate.locks import OnMaster, Unreadable, connected, described, names_on, read
from redlatch.votes.key import SLOTS, slot_of
from redlatch.votes.redaction import shown
from redlatch.wire.dial.topology import TopologyReader

T = TypeVar("T")


class Shards:
    """The primaries of a cluster, as one node has seen them.

    Raises:
        Unreadable: no node tells it; or, in all methods, a node does not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        try:
            self.topology = TopologyReader(cluster, _unused).read()
        # A server may answer anything.
        except Exception as error:
            # A conversation redacts what it reads.
            text, cure = shown(str(error) or type(error).__name__), cure_of(error, True)
            raise Unreadable(f"{cluster.address}: {text}{f' ({cure})' if cure else ''}") from error
        self.nodes = [cluster.node(address) for address in self.topology.nodes]
        self.slots: list[set[int]] = [set() for _ in self.nodes]
        for first, last, place in self.topology.ranges:
            self.slots[place].update(range(first, last + 1))

    def unowned(self) -> list[tuple[int, int]]:
        """Return the slots that no node has, as ranges."""
        missing = set(range(SLOTS)).difference(*self.slots)
        firsts = sorted([slot for slot in missing if slot - 1 not in missing])
        lasts = sorted([slot for slot in missing if slot + 1 not in missing])
        return list(zip(firsts, lasts, strict=True))

    def names(self, prefix: bytes) -> set[bytes]:
        """Return the names on all nodes that begin with `prefix`."""
        return set().union(*self._on_all(self.nodes, lambda _, server: names_on(server, prefix)))

    def read(self, keys: Iterable[bytes]) -> list[tuple[str, OnMaster]]:
        """Return the state of each name, with the address of the node that has it."""
        listed = list(keys)
        groups: dict[Node, list[bytes]] = {}
        for key in listed:
            groups.setdefault(self._owner(key), []).append(key)

        def ask(node: Node, server: redis.Redis) -> dict[bytes, tuple[str, OnMaster]]:
            return {key: self._following(node, server, partial(read, key=key)) for key in groups[node]}

        found: dict[bytes, tuple[str, OnMaster]] = {}
        for some in self._on_all(list(groups), ask):
            found |= some
        return [found[key] for key in listed]

    def end(self, key: bytes, tokens: frozenset[bytes], owner: str | None) -> tuple[str, int]:
        """Delete the holders with these tokens; return the address of the node that has the name, and their number."""
        work = partial(end, key=key, tokens=tokens, owner=owner)
        [done] = self._on_all([self._owner(key)], lambda node, server: self._following(node, server, work))
        return done

    def _owner(self, key: bytes) -> Node:
        slot = slot_of(key)
        for node, slots in zip(self.nodes, self.slots, strict=True):
            if slot in slots:
                return node
        raise Unreadable(f"no node of {self._cluster.address} has slot {slot}")

    def _on_all(self, nodes: list[Node], work: Callable[[Node, redis.Redis], T]) -> list[T]:
        def one(node: Node) -> T:
            try:
                with connected(node) as server:
                    return work(node, server)
            except Exception as error:
                raise Unreadable(f"{node.address}: {described(error)}") from error

        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(one, nodes))

    def _following(self, node: Node, server: redis.Redis, work: Callable[..., T]) -> tuple[str, T]:
        """Call `work` with a node's client; once more with that of another node, if the slot has moved there."""
        try:
            return node.address, work(server, elsewhere=partial(self._client_at, node))
        except MovedError as error:
            moved = error
        other = self._named(node, moved)
        with connected(other) as there:
            return other.address, work(there, elsewhere=partial(self._client_at, other))

    def _client_at(self, asked: Node, redirect: AskError) -> redis.Redis:
        return connected(self._named(asked, redirect))

    def _named(self, asked: Node, redirect: AskError) -> Node:
        # Without a host it is that of the node which was asked.
        host = redirect.host or asked.announced[0]
        return self._cluster.node((host, redirect.port))


def _unused(_: int, __: object) -> None: ...
