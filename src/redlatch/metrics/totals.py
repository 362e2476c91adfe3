"""The sums of the figures of several clients."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import ConfigurationError
from ..stats import LockStats, MasterStats, Stats, sum_of


def new_lock() -> AbstractContextManager[Any]:
    """Return a re-entrant lock for the sums of clients, which lives as long as the process.

    A fork waits until it is free: in the child, no thread would ever release it.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class Measured(Protocol):
    """What has figures: a `Client` or an `AsyncClient`."""

    def stats(self) -> Stats:
        """Return the figures of now."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The figures of several clients: those of each group, and those of each master by its address."""

    groups: Mapping[str, LockStats]
    masters: Mapping[str, MasterStats]


class Export:
    """The export of the figures of one client; `prometheus` and `otel` return it.

    Args:
        client: referred to weakly.
        group: the name for the group of those locks that have none.
        ended: called with this object when it is closed.
    """

    def __init__(self, client: Measured, group: str, ended: Callable[[Export], object]) -> None:
        self._client = weakref.ref(client)
        self._group = group
        self._ended = ended
        # What the client said last. It stands for a client that is gone.
        self._groups: Mapping[str, LockStats] = {group: LockStats()}
        self._masters: dict[str, MasterStats] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the export. What the client has counted stays in the sums of the other clients. Closing twice is fine."""
        self._ended(self)

    def of(self, client: Measured) -> bool:
        """Return whether this is the export of a client."""
        return self._client() is client

    @property
    def gone(self) -> bool:
        """True if the client was collected."""
        return self._client() is None

    def read(self) -> Sums:
        """Return the figures of the client. If it is gone, they are its counters of the last time."""
        client = self._client()
        if client is None:
            return Sums(self.left().groups, {})
        stats = client.stats()
        groups: dict[str, LockStats] = {self._group: LockStats()}
        for name, figures in stats.groups.items():
            _add(groups, name or self._group, figures)
        masters = {master.address: master for master in stats.masters}
        self._groups = groups
        # A client that is closed knows no masters any more, but what it has counted stays.
        self._masters |= masters
        return Sums(groups, masters)

    def left(self) -> Sums:
        """Return what stays of a client that is no longer exported: its counters."""
        groups = {name: replace(figures, held=0, waiting=0) for name, figures in self._groups.items()}
        return Sums(groups, self._masters)

    def unseen(self, seen: Sums) -> list[MasterStats]:
        """Return the masters that the client knew before, and that it does not see now."""
        return [master for address, master in self._masters.items() if address not in seen.masters]


class Totals:
    """Adds up the figures of clients. A counter never goes down, also when a client is closed or collected.

    Args:
        lock: guards the sums. It is re-entrant, because a finalizer may close an export while its thread reads.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._exports: list[Export] = []
        self._left = Sums({}, {})

    def add(self, client: Measured, group: str, ended: Callable[[Export], object]) -> Export:
        """Count a client from now on.

        Args:
            client, group, ended: as for `Export`.

        Raises:
            ConfigurationError: it is counted already.
        """
        with self._lock:
            if any([export.of(client) for export in self._exports]):
                raise ConfigurationError("the figures of this client are exported already: close that export first")
            # Also without a scrape: a program that makes many clients must not fill the memory.
            self._keep_the_gone()
            export = Export(client, group, ended)
            self._exports.append(export)
            return export

    def end(self, export: Export) -> bool:
        """Count a client no longer, and keep what it has counted.

        Returns:
            Whether no client is left.
        """
        with self._lock:
            if export in self._exports:
                export.read()
            self._keep(export)
            return not self._exports

    def read(self) -> Sums:
        """Return the sums. Those of a gauge are of the clients that are still there."""
        with self._lock:
            self._keep_the_gone()
            groups = dict(self._left.groups)
            masters: dict[str, MasterStats] = {}
            unseen = list(self._left.masters.values())
            for export in list(self._exports):
                sums = export.read()
                unseen += export.unseen(sums)
                for name, figures in sums.groups.items():
                    _add(groups, name, figures)
                for master in sums.masters.values():
                    _add_master(masters, master)
            for master in unseen:
                # Only its counters: it neither changes whether the master is up nor shows a master that nobody sees.
                if master.address in masters:
                    _add_master(masters, replace(master, voting=True, kept_out=0.0))
            return Sums(groups, masters)

    def _keep_the_gone(self) -> None:
        """Take the clients out that were collected."""
        for export in list(self._exports):
            if export.gone:
                self._keep(export)

    def _keep(self, export: Export) -> None:
        """Take a client out, unless it is out, and add what it has counted to what is left of others."""
        if export not in self._exports:
            return
        self._exports.remove(export)
        groups, masters = dict(self._left.groups), dict(self._left.masters)
        left = export.left()
        for name, figures in left.groups.items():
            _add(groups, name, figures)
        for master in left.masters.values():
            _add_master(masters, master)
        self._left = Sums(groups, masters)


def _add(groups: dict[str, LockStats], name: str, figures: LockStats) -> None:
    """Add the figures of a group."""
    groups[name] = LockStats(**sum_of([groups[name], figures])) if name in groups else figures


def _add_master(masters: dict[str, MasterStats], master: MasterStats) -> None:
    """Add what a client knows of a master. It is up if it is up for all clients."""
    known = masters.get(master.address)
    if known is None:
        masters[master.address] = master
        return
    masters[master.address] = MasterStats(
        master.address,
        known.voting and master.voting,
        max(known.kept_out, master.kept_out),
        known.quarantines + master.quarantines,
        known.reply_time + master.reply_time,
    )
