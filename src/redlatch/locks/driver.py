"""The seam between locks and drivers.

A lock asks the quorum of its client for a call (`quorum.calls`), and the driver runs it. The driver for threads blocks
the calling thread, that for asyncio returns an awaitable.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from ..quorum.effects import Steps
from ..quorum.upkeep import Term
from ..votes.commands import Command


class Driver(Protocol):
    # A `drivers.status.ClientStatus`.
    status: Any

    def run(self, steps: Steps) -> Any:
        """Run a call; recover it if it fails or is interrupted."""

    def send(self, commands: list[Command]) -> None:
        """Send commands to every master without waiting for an answer."""

    def wake_called(self) -> None:
        """Wake callers whose turn has come, and callers that watch a key that has changed."""

    def add_upkeep(self, term: Term) -> None:
        """Renew a lock, or report its loss, from now on."""


class ThreadDriver(Driver, Protocol):
    def connect(self, all_of_them: bool = False) -> None: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> None: ...


class TaskDriver(Driver, Protocol):
    @property
    def home(self) -> Any:
        """The event loop, once the client is connected."""

    def connect(self, all_of_them: bool = False) -> Coroutine[Any, Any, None]: ...

    def close(self, release: bool = False, drain_ns: int | None = None) -> Coroutine[Any, Any, None]: ...

    def stands_for(self, owner: object) -> None:
        """Let go of the loop when `owner` is collected, to which the client and all its locks refer."""

    def drop(self) -> None:
        """Close the connections at once: the event loop cannot run `close`."""
