"""A cluster, which is one master, and its nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import redis
from redis.connection import SSLConnection

from redlatch.errors import ConfigurationError, MasterRefused
from redlatch.masters.master import Address, Master
from redlatch.masters.server import address_of, check_host

Reached = Callable[[Address], Address]
HostMap = Mapping[str, str] | Callable[[str], str]

_PLACE, _OF_HANDSHAKES = ("host", "port"), ("client_name", "protocol")

_WANTED = "'host:port' is needed, such as '10.0.0.1:7000'"


class Node(Master):
    """One node of a cluster, with all options of the seeds.

    Args:
        reached: returns the address at which a node is reached, for the one that the cluster gives it.
    """

    in_cluster = True
    listed_as = "node"

    def __init__(self, kind: type, options: dict[str, Any], reached: Reached | None = None) -> None:
        super().__init__(kind, options)
        self._reached = reached

    @property
    def announced(self) -> Address:
        """The address that the cluster gives it."""
        return self._options["host"], self._options["port"]

    def connect(self, timeout: float) -> socket.socket:
        if self._reached is None:
            return super().connect(timeout)
        return self.connect_at(self._place(self._reached), timeout)

    def client(self, timeout: float, at: Address | None = None) -> redis.Redis:
        return super().client(timeout, at or (None if self._reached is None else self._place(self._reached)))

    def _place(self, reached: Reached) -> Address:
        try:
            host, port = reached(self.announced)
            return str(host), int(port)
        except Exception as error:
            raise MasterRefused(f"{self.address} has no place in host_map or address_remap: {error!r}") from error


class Cluster(Master):
    """A cluster: a master with several nodes, of which each has some of the names.

    Args:
        seeds: the addresses of some nodes, which name the cluster in messages; the cluster names the others.
        reached: as for `Node`; seeds are reached as they are.
        known: the addresses of further nodes.
    """

    is_cluster = True

    def __init__(
        self,
        kind: type,
        options: dict[str, Any],
        seeds: Sequence[Address],
        where: str = "masters",
        reached: Reached | None = None,
        known: Sequence[Address] = (),
    ) -> None:
        super().__init__(kind, {name: value for name, value in options.items() if name not in _PLACE}, where=where)
        # Nothing that refers to the client from which the options come.
        self._of_nodes = self._options | {name: options[name] for name in _OF_HANDSHAKES if name in options}
        if self.db:
            raise ConfigurationError(f"{where}: a cluster has no other database than 0; leave the database out")
        for host, _ in seeds:
            check_host(host, where)
        self.seeds = tuple(dict.fromkeys([*seeds, *known]))
        self.places = sorted({address_of(*seed) for seed in seeds})
        self.reached = reached
        self.address = f"cluster:{','.join(self.places)}"

    def connect(self, timeout: float) -> NoReturn:
        # Without an address, redis-py would connect to a server on this machine.
        raise MasterRefused(f"{self.address} is a cluster, and only its nodes can be asked")

    def client(self, timeout: float, at: Address | None = None) -> NoReturn:
        self.connect(timeout)

    def node(self, address: Address) -> Node:
        """Return the node to which the cluster gives an address."""
        return Node(self._kind, self._of_nodes | {"host": address[0], "port": address[1]}, self.reached)

    def seed(self, address: Address) -> Node:
        """Return a node by an address that the user has given."""
        return Node(self._kind, self._of_nodes | {"host": address[0], "port": address[1]})


def url_of_cluster(masters: Sequence[Master]) -> str:
    """Return what to write for a cluster instead of its nodes or parts, without credentials."""
    places: list[str] = []
    for master in masters:
        places += master.places if isinstance(master, Cluster) else [master.address]
    tls = any([issubclass(master._kind, SSLConnection) for master in masters])
    return f"{'rediss' if tls else 'redis'}+cluster://{','.join(dict.fromkeys(places))}"


def map_hosts(masters: Sequence[Master], host_map: object) -> None:
    """Reach the nodes of a cluster where `host_map` says.

    Raises:
        ConfigurationError: the master is no cluster, or an address in the map is malformed.
    """
    if host_map is None:
        return
    [first, *_] = masters
    if not isinstance(first, Cluster):
        raise ConfigurationError(
            "host_map: it is for the nodes of a cluster, and no cluster is given; leave it out, or write "
            "redis+cluster://"
        )
    if first.reached is not None:
        raise ConfigurationError("host_map: the RedisCluster has an address_remap already; give one of the two")
    if isinstance(host_map, Mapping):
        known = {_address(announced): _address(reached) for announced, reached in host_map.items()}
        first.reached = lambda address: known.get(address, address)
    elif callable(host_map):
        first.reached = lambda address: _address(host_map(address_of(*address)))
    else:
        raise TypeError(f"host_map: a mapping or a function is needed, not {type(host_map).__name__}")


def _address(text: object) -> Address:
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"host_map: {text!r} is no address; {_WANTED}")
    return host.removeprefix("[").removesuffix("]"), int(port)
