"""A group of a master and its replicas that Sentinel watches: which sentinels to ask, and what they last named."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from redlatch.errors import ConfigurationError
from redlatch.masters.server import Server

# The host and the port of a server.
Address = tuple[str, int]


class Found(NamedTuple):
    """Where the sentinels say that the master is.

    Args:
        address: of the master.
        number: of the question. A later question has a larger number.
    """

    address: Address
    number: int


class Group:
    """One group, and its sentinels.

    Args:
        name: by which the sentinels know the group.
        sentinels: to ask. A majority of them must agree.
        host: reaches the masters at this host, whatever host the sentinels name; None for the host that they name.
        least_others: the client ignores a sentinel that knows fewer other sentinels.
        where: the argument that names this group, for the error.

    Attributes:
        majority: how many sentinels must agree.
        unanswered: the indexes of the sentinels whose last question by a dialling thread has not ended.

    Raises:
        ConfigurationError: a sentinel is listed twice. Its answer would count twice.
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
        """Return the addresses of the sentinels in order, without credentials."""
        return ",".join(sorted(sentinel.address for sentinel in self.sentinels))

    def reached(self, host: str, port: int) -> Address:
        """Return the address at which a server is reached that the sentinels name."""
        return (self._host or host, port)

    def number_question(self) -> int:
        """Return the number of a question to the sentinels that begins now."""
        return next(self._numbers)

    def note(self, found: Found) -> bool:
        """Record what the listener has found; return whether it is another address than before.

        Only one thread may call this.
        """
        before, self._latest = self._latest, found
        return before is None or before.address != found.address

    def successor(self, found: Found) -> Address | None:
        """Return the address that the listener has found by a later question; None if it is the same, or if none is."""
        latest = self._latest
        if latest is None or latest.number < found.number or latest.address == found.address:
            return None
        return latest.address
