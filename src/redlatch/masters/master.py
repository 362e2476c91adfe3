"""A server that votes: its name in the list of masters, and how to reach it, perhaps through Sentinel."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from redlatch.errors import ConfigurationError
from redlatch.masters.server import SOME_NODES, Server, open_socket
from redlatch.masters.settings import wrong_value

Address = tuple[str, int]


class Found(NamedTuple):
    """The address of the master by the answers to a question; later questions have larger numbers."""

    address: Address
    number: int


class Group:
    """The sentinels of one group, of which a majority must agree.

    Args:
        host: use this host instead of the one that the sentinels name.
        least_others: ignore a sentinel that knows fewer other sentinels.
    """

    def __init__(
        self,
        name: str,
        sentinels: Sequence[Server],
        host: str | None = None,
        least_others: int = 0,
        where: str = "masters",
    ) -> None:
        self.name = name
        self.sentinels = tuple(sentinels)
        if len({sentinel.address for sentinel in self.sentinels}) < len(self.sentinels):
            raise ConfigurationError(f"{where}: a sentinel is listed twice; name each once, as its answer counts once")
        self.least_others = least_others
        self.majority = len(self.sentinels) // 2 + 1
        self.unanswered: set[int] = set()
        self._host = host
        self._numbers = itertools.count(1)
        self._latest: Found | None = None

    def __repr__(self) -> str:
        return f"<Group {self.name} at {self.addresses()}>"

    def addresses(self) -> str:
        return ",".join(sorted(sentinel.address for sentinel in self.sentinels))

    def reached(self, host: str, port: int) -> Address:
        return (self._host or host, port)

    def number_question(self) -> int:
        return next(self._numbers)

    def note(self, found: Found) -> bool:
        # The listener calls this in its thread.
        before, self._latest = self._latest, found
        return before is None or before.address != found.address

    def successor(self, found: Found) -> Address | None:
        latest = self._latest
        if latest is None or latest.number < found.number or latest.address == found.address:
            return None
        return latest.address


class Master(Server):
    """One master, perhaps of a group of Sentinel. Its `address` is for messages, and never has credentials."""

    by_db = False
    is_cluster = in_cluster = False

    # What to write instead, if this turns out to be a node of a cluster.
    instead = SOME_NODES

    def __init__(self, kind: type, options: dict[str, Any], group: Group | None = None, where: str = "masters") -> None:
        super().__init__(kind, options, where)
        try:
            self.db = int(options.get("db") or 0)
        except (TypeError, ValueError):
            raise wrong_value("db", where) from None
        self.group = group
        if group is not None:
            self.address = f"sentinel:{group.name}"

    @property
    def name(self) -> str:
        """The address, followed by "/db" if that is not 0. All clients must use the same name."""
        return f"{self.address}/{self.db}" if self.db else self.address

    def name_sentinels(self) -> None:
        # Another group in the list has the same name.
        if self.group is not None:
            self.address = f"sentinel:{self.group.name}@{self.group.addresses()}"

    def check_files(self, where: str) -> None:
        super().check_files(where)
        for sentinel in () if self.group is None else self.group.sentinels:
            sentinel.check_files(where)

    def connect_at(self, address: Address, timeout: float) -> socket.socket:
        connection = self._connection(timeout)
        connection.host, connection.port = address
        return open_socket(connection)
