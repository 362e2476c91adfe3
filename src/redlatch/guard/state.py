"""What one client's guard knows: its settings, and each of its masters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from redlatch.guard.clock import Offset
from redlatch.guard.handshake import HandshakeReport
from redlatch.guard.marker import KEPT_MS, Marker
from redlatch.guard.master import GuardedMaster
from redlatch.guard.settings import Guard
from redlatch.votes.units import MILLISECOND, drift_ns


class GuardState:
    """What one client's guard knows.

    Args:
        addresses: of the masters.
        settings: the user's options.
        key: of the markers.
        drift_factor: by which share of the time clocks may go wrong.
        wall_us: returns microseconds since 1970. A client that finds an older marker takes the smaller of two times as
            the marker's age: that by this clock, and that by the master's own.
        clock_set_back: called with a master's index, and the ns by which its clock was set back.

    Attributes:
        kept_ms: how long a marker is kept that no client asks for.
        quarantine_ns: how long a master is quarantined that may have forgotten locks.
        masters: what is known of each of them.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        settings: Guard,
        key: bytes,
        drift_factor: float,
        wall_us: Callable[[], int],
        clock_set_back: Callable[[int, int], None],
    ) -> None:
        self.addresses = addresses
        self.settings = settings
        self.key = key
        self.wall_us = wall_us
        self.kept_ms = max(KEPT_MS, 2 * settings.max_ttl_ms)
        self.quarantine_ns = settings.max_ttl_ms * MILLISECOND + drift_ns(settings.max_ttl_ms, drift_factor)
        self.masters = [
            GuardedMaster(index, key, self.kept_ms, Offset(drift_factor), partial(clock_set_back, index))
            for index in range(len(addresses))
        ]

    def address(self, master: GuardedMaster) -> str:
        """Return the address of a master."""
        return self.addresses[master.index]

    def others(self, master: GuardedMaster) -> list[GuardedMaster]:
        """Return all other masters."""
        return [other for other in self.masters if other is not master]

    def expired_before(self, now_ns: int) -> int:
        """Return before when a marker must have been seen to have expired by itself since."""
        return now_ns - self.kept_ms * MILLISECOND

    def marker_seen_after(self, after_ns: int) -> Marker | None:
        """Return a marker that was seen on any master after that time."""
        for master in self.masters:
            if master.marker is not None and master.seen_ns > after_ns:
                return master.marker
        return None

    def wall(self) -> int:
        """Return the wall clock as markers have it."""
        return max(0, self.wall_us())

    def new_marker(self, master: GuardedMaster, report: HandshakeReport, new: bool) -> Marker:
        """Return a marker that begins now.

        Args:
            new: whether the master has forgotten nothing.
        """
        return Marker(
            run_id=report.run_id,
            since=report.server_us,
            wall=self.wall(),
            new=new,
            max_ttl=self.settings.max_ttl_ms,
            trusted=self.settings.trust_persistence,
            master=self.address(master),
            masters=tuple(sorted(self.addresses)),
        )

    def unmatched_address(self, known: Marker) -> str:
        """Return the only address in a marker's list that no other marker claims; "" if there are several."""
        there = [master.marker.master for master in self.masters if master.marker is not None]
        missing = [address for address in known.masters if address not in there]
        return missing[0] if len(missing) == 1 else ""
