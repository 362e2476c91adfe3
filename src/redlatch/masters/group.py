"""A master and its replicas that Sentinel watches: the sentinels to ask, and their last answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from redlatch.errors import ConfigurationError
from redlatch.masters.server import Server

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
