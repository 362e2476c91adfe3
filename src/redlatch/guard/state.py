"""The guard of one client: its settings, and its masters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from redlatch.guard.clock import Offset
from redlatch.guard.founding import Founding
from redlatch.guard.handover import names_of
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import DRAFT, FINAL, Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.settings import Guard
from redlatch.votes.units import MILLISECOND, drift_ns, quorum_of


class GuardState:
    """The settings of one client's guard, and the state of its masters.

    Args:
        wall_us: returns microseconds since 1970. A client that finds an older marker takes the smaller of two times as
            the marker's age: that by this clock, and that by the master's own.
        note_since: called with the time of each marker, in microseconds since 1970 by the master's clock. The numbers
            of fenced locks must exceed it (FE1).
        clock_set_back: called with a master's index, and the ns by which its clock was set back.

        synced: whether each vote was on all replicas before it counted, so that a promoted one has forgotten nothing.

    Attributes:
        left: a marker that says that this list was left.
        longest_ms: the longest ttl that any client may use, as far as this one knows.
        allowed_ms: the longest ttl that this client may use; 0 while no marker was read (G5).
        awaited: a marker of a master that will join this list by a handover, and when it was read.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        settings: Guard,
        key: bytes,
        default_ttl_ms: int,
        drift_factor: float,
        wall_us: Callable[[], int],
        random: Callable[[], float],
        note_since: Callable[[int], None],
        clock_set_back: Callable[[int, int], None],
        owner: str = "",
        synced: bool = False,
    ) -> None:
        self.addresses = addresses
        self.settings = settings
        self.key = key
        self.owner = owner
        self.synced = synced
        self.default_ttl_ms = default_ttl_ms
        self.wall_us = wall_us
        self._drift_factor = drift_factor
        self._note_since = note_since
        self.names = names_of(addresses)
        self.left: Marker | None = None
        self.awaited: tuple[Marker, int] | None = None
        self.longest_ms = settings.max_ttl_ms
        self.allowed_ms = 0
        # Last reading of a marker that allowed less.
        self._less_ns = 0
        self.founding = Founding(self.wall, random)
        self.masters = [
            GuardedMaster(
                index, key, default_ttl_ms, Offset(drift_factor), partial(clock_set_back, index), self.confirm_limits
            )
            for index in range(len(addresses))
        ]

    def address(self, master: GuardedMaster) -> str:
        return self.addresses[master.index]

    def others(self, master: GuardedMaster) -> list[GuardedMaster]:
        return [other for other in self.masters if other is not master]

    def out_ns(self, ttl_ms: int) -> int:
        return ttl_ms * MILLISECOND + drift_ns(ttl_ms, self._drift_factor)

    def horizon_for(self, master: GuardedMaster, after_ns: int, now_ns: int) -> int | None:
        """Return the longest ttl that the other masters know; None while too few of them are witnesses (G4).

        Readings of the others before `after_ns`, when the master was found to have forgotten, do not count.
        """
        needed = len(self.masters) - quorum_of(len(self.masters)) + 1
        horizons = [
            other.marker.horizon
            for other in self.others(master)
            if other.marker is not None and other.testifies(after_ns, now_ns)
        ]
        return max(horizons) if len(horizons) >= needed else None

    def may_be_sure(self) -> bool:
        # Other masters can shorten the quarantine only then.
        return len(self.masters) > 1 and self.default_ttl_ms < self.longest_ms

    @property
    def alone(self) -> bool:
        """True if the only master stays in use after it has forgotten locks (R1)."""
        return len(self.masters) == 1 and not self.settings.strict

    def known_marker(self) -> Marker | None:
        return next((master.marker for master in self.masters if master.marker is not None), None)

    def note_limits(self, master: GuardedMaster, marker: Marker, now_ns: int) -> None:
        # When a new marker allows less, the masters may have been founded again, and a client that reads only some of
        # them could not know. So earlier permissions count only once another marker repeats them.
        self.longest_ms = max(self.longest_ms, marker.longest)
        known = master.marker is not None and master.marker.identity() == marker.identity()
        if marker.max_ttl < self.allowed_ms and not known:
            self.allowed_ms, self._less_ns = 0, now_ns
        self._allow(marker)

    def confirm_limits(self, master: GuardedMaster) -> None:
        if master.marker is not None and master.asked_ns >= self._less_ns:
            self._allow(master.marker)

    def _allow(self, marker: Marker) -> None:
        self.allowed_ms = max(self.allowed_ms, marker.max_ttl)
        for master in self.masters:
            master.allowed_ms = self.allowed_ms

    def raised(self, master: GuardedMaster, marker: Marker, now_ns: int) -> Marker:
        """Return the marker that a master must get, so that all clients may use the longest ttl (G5)."""
        on_all = self.longest_ms if self.raises_all() and self.had_at_once() else 0
        max_ttl = max(marker.max_ttl, self._allowed_elsewhere(master, now_ns), on_all)
        return replace(marker, max_ttl=max_ttl, raised=self.longest_ms if self.longest_ms > max_ttl else 0)

    def _allowed_elsewhere(self, master: GuardedMaster, now_ns: int) -> int:
        # 0 if none can exist any more. A client remembers markers that have expired: after 35 days without any client,
        # others may have written new ones.
        there = [other.marker for other in self.others(master) if other.knew_marker(now_ns)]
        return min(self.allowed_ms, max([marker.max_ttl for marker in there if marker is not None], default=0))

    def raises_all(self) -> bool:
        known = [master.marker.longest for master in self.masters if master.marker is not None]
        everywhere = len(known) == len(self.masters) and min(known) >= self.longest_ms
        return everywhere and self.allowed_ms < self.longest_ms

    def had_at_once(self) -> bool:
        """Return True if all masters had the markers that were last read at one moment.

        Otherwise one of them may have forgotten its marker before another one had it.
        """
        return max([master.noted_ns for master in self.masters]) <= min([master.asked_ns for master in self.masters])

    def heard(self, master: GuardedMaster, after_ns: int) -> bool:
        # A quorum needs this many others.
        read = [other for other in self.others(master) if other.marker is not None and other.asked_ns >= after_ns]
        return len(read) >= quorum_of(len(self.masters)) - 1

    def note_marker(self, master: GuardedMaster, marker: Marker, report: HandshakeReport) -> None:
        master.note_marker(marker, report)
        self._note_since(marker.since)

    def wall(self) -> int:
        return max(0, self.wall_us())

    def new_marker(self, master: GuardedMaster, report: HandshakeReport, out_ms: int = 0, attempt: int = 0) -> Marker:
        """Return a marker that begins now; `attempt` is 0 for a final one, `out_ms` is 0 if nothing was forgotten."""
        every = bool(attempt) or len(self.masters) == 1
        allowed_ms = self._allowed_elsewhere(master, report.came_ns)
        max_ttl = self.longest_ms if every else max(allowed_ms, min(self.default_ttl_ms, self.longest_ms))
        return Marker(
            run_id=report.run_id,
            since=report.server_us,
            wall=self.wall(),
            out=out_ms,
            attempt=attempt,
            stage=DRAFT if attempt else FINAL,
            sure=not out_ms,
            max_ttl=max_ttl,
            raised=self.longest_ms if self.longest_ms > max_ttl else 0,
            trusted=self.settings.trust_persistence,
            strict=self.settings.strict,
            synced=self.synced,
            master=self.address(master),
            masters=self.names,
            owner=self.owner,
            horizon=min(self.default_ttl_ms, max_ttl),
        )

    def unmatched_address(self, known: Marker) -> str:
        there = [master.marker.master for master in self.masters if master.marker is not None]
        missing = [address for address in known.masters if address not in there]
        return missing[0] if len(missing) == 1 else ""
