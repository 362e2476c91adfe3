"""A cluster behind proxies, whose nodes answer what a test says."""

from __future__ import annotations

from collections.abc import Callable

from .proxy import Command, Proxy, end_of
from .shards import Shards

# Returns the answer of a node, by its number, instead of its own, or None.
Says = Callable[[int, Command], bytes | None]

ADDRESS = b"127.0.0.1:%d"


class ProxiedShards:
    """The nodes of a cluster behind proxies: the nodes name the proxies instead of themselves.

    Attributes:
        says: what the nodes answer instead; None lets them answer.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.says: Says | None = None
        self.proxies = [Proxy(url) for url in shards.urls]
        self._ports = {
            int(url.rpartition(":")[2]): proxy.port for url, proxy in zip(shards.urls, self.proxies, strict=True)
        }
        for node, proxy in enumerate(self.proxies):
            proxy.spoil = self._translated
            proxy.instead = lambda command, node=node: None if self.says is None else self.says(node, command)
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)

    def __enter__(self) -> ProxiedShards:
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self.proxies:
            proxy.close()

    def moved(self, name: str, node: int, how: str = "MOVED") -> bytes:
        """Return the redirect of a name to a node."""
        return b"-%b %d 127.0.0.1:%d\r\n" % (how.encode(), self._shards.cluster.slot_of(name), self.proxies[node].port)

    def count(self, *words: bytes | str) -> int:
        return sum(proxy.count(*words) for proxy in self.proxies)

    def _translated(self, command: Command, reply: bytes) -> bytes:
        for port, instead in self._ports.items():
            if reply.startswith((b"-MOVED", b"-ASK")):
                reply = reply.replace(ADDRESS % port + b"\r\n", ADDRESS % instead + b"\r\n")
            elif command[:2] == (b"CLUSTER", b"SLOTS"):
                reply = reply.replace(b":%d\r\n" % port, b":%d\r\n" % instead)
        assert end_of(reply) == len(reply)
        return reply
