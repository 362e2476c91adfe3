"""A server that votes: its name in the list of masters, and how to reach it, perhaps through Sentinel."""

from __future__ import annotations

import socket
from typing import Any

from redlatch.masters.group import Address, Group
from redlatch.masters.server import Server, open_socket
from redlatch.masters.settings import wrong_value


class Master(Server):
    """One master, perhaps of a group of Sentinel. Its `address` is for messages, and never has credentials."""

    by_db = False

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
