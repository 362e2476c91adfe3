"""A cluster, which is one master, and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redlatch.errors import ConfigurationError
from redlatch.masters.master import Address, Master
from redlatch.masters.server import address_of


class Node(Master):
    """One node of a cluster, with all options of the seeds."""

    in_cluster = True
    listed_as = "node"


class Cluster(Master):
    """A cluster: a master with several nodes, of which each has some of the names.

    Args:
        seeds: the addresses of some nodes; the cluster names the others.
        reached: returns the address at which a node is reached, for the one that the cluster gives it.
    """

    is_cluster = True

    def __init__(
        self,
        kind: type,
        options: dict[str, Any],
        seeds: Sequence[Address],
        where: str = "masters",
        reached: Callable[[Address], Address] | None = None,
    ) -> None:
        self._of_nodes = {name: value for name, value in options.items() if name not in ("host", "port")}
        super().__init__(kind, self._of_nodes, where=where)
        if self.db:
            raise ConfigurationError(f"{where}: a cluster has no other database than 0; leave the database out")
        self.seeds = tuple(dict.fromkeys(seeds))
        self._reached = reached
        self.address = f"cluster:{','.join(sorted([address_of(*seed) for seed in self.seeds]))}"

    def node(self, address: Address) -> Node:
        """Return the node to which the cluster gives an address."""
        host, port = address if self._reached is None else self._reached(address)
        return Node(self._kind, self._of_nodes | {"host": host, "port": port})

    def seed(self, address: Address) -> Node:
        """Return a node by an address that the user has given."""
        return Node(self._kind, self._of_nodes | {"host": address[0], "port": address[1]})
