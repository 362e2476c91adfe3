"""The driver of a client of one master, and the effects that its build knows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from redlatch import impl

from .faces import PATIENCE


class EffectRig:
    """A client, its driver, and what effects are made of.

    Args:
        build: the build of the client.
        client: a client of one master.
    """

    def __init__(self, build: impl.Implementation, client: Any) -> None:
        self.client: Any = client
        self.driver: Any = client._driver
        self.effects: ModuleType = build.module("quorum.effects")
        self.commands: ModuleType = build.module("votes.commands")
        self.clock = build.module("wire.engine.net").BootClock()
        self.new_entry = build.module("quorum.waiting.queues").QueueEntry

    def ballot(self, name: str, token: bytes = b"token", seconds: float = PATIENCE) -> Any:
        """Return a ballot on an acquire."""
        command = self.commands.Acquire(name.encode(), token, self.clock.now(), 60_000)
        return self.client._quorum.ballot(command, self.clock.now() + int(seconds * 10**9))
