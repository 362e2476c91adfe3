from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from ..errors import ConfigurationError
from ..stats import LockStats, MasterStats, Stats, sum_of


def new_lock() -> AbstractContextManager[Any]:
    """Return a re-entrant lock for the life of the process. A fork waits until it is free."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class Measured(Protocol):
    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class Sums:
    groups: Mapping[str, LockStats]
    masters: Mapping[str, MasterStats]


class Export:
    """The export of the figures of one client, by `prometheus` or `otel`."""

    def __init__(self, client: Measured, group: str, ended: Callable[[Export], object]) -> None:
        self._client = weakref.ref(client)
        self._group = group
        self._ended = ended
        # The latest figures stay when the client is gone.
        self._groups: Mapping[str, LockStats] = {group: LockStats()}
        self._masters: dict[str, MasterStats] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the export. The client's counts stay in the sums. Closing twice is harmless."""
        self._ended(self)

    def of(self, client: Measured) -> bool:
        return self._client() is client

    @property
    def gone(self) -> bool:
        return self._client() is None

    def read(self) -> Sums:
        client = self._client()
        if client is None:
            return Sums(self.left().groups, {})
        stats = client.stats()
        groups: dict[str, LockStats] = {self._group: LockStats()}
        for name, figures in stats.groups.items():
            _add(groups, name or self._group, figures)
        masters = {master.address: master for master in stats.masters}
        self._groups = groups
        self._masters |= masters
        return Sums(groups, masters)

    def left(self) -> Sums:
        groups = {name: replace(figures, held=0, waiting=0) for name, figures in self._groups.items()}
        return Sums(groups, self._masters)

    def unseen(self, seen: Sums) -> list[MasterStats]:
        return [master for address, master in self._masters.items() if address not in seen.masters]


class Totals:
    """Adds up the figures of clients. No counter decreases, even if a client is closed or garbage-collected."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._exports: list[Export] = []
        self._left = Sums({}, {})

    def add(self, client: Measured, group: str, ended: Callable[[Export], object]) -> Export:
        with self._lock:
            if any([export.of(client) for export in self._exports]):
                raise ConfigurationError("the figures of this client are exported already: close that export first")
            # Otherwise many clients would fill the memory between scrapes.
            self._keep_the_gone()
            export = Export(client, group, ended)
            self._exports.append(export)
            return export

    def end(self, export: Export) -> bool:
        with self._lock:
            if export in self._exports:
                export.read()
            self._keep(export)
            return not self._exports

    def read(self) -> Sums:
        # Gauges count only clients that exist.
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
                # Add its counters only, and no master that no client has now.
                if master.address in masters:
                    _add_master(masters, replace(master, voting=True, kept_out=0.0))
            return Sums(groups, masters)

    def _keep_the_gone(self) -> None:
        for export in list(self._exports):
            if export.gone:
                self._keep(export)

    def _keep(self, export: Export) -> None:
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
    groups[name] = LockStats(**sum_of([groups[name], figures])) if name in groups else figures


def _add_master(masters: dict[str, MasterStats], master: MasterStats) -> None:
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
