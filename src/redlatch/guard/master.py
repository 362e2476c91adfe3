"""What the guard knows of one master; it also monitors the connection by pulses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redlatch.errors import MasterQuarantined
from redlatch.guard.clock import Leap, Offset
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import Marker, MarkerWrite


@dataclass
class GuardedMaster:
    """What the guard knows of one master.

    The engine calls three methods, as those of a connection's monitor: `pulse`, `answered` and `flushed`.

    Attributes:
        index: the master's place in the client's list.
        key, kept_ms: of its marker.
        offset: of its clock from ours.
        clock_set_back: called with the ns by which its clock was set back.
        marker: the marker that was last read.
        seen_ns: when that was.
        missed_ns: since when the marker is missing, though other masters have theirs; 0 while it is not.
        quarantine: what the master is quarantined for, so that nothing is counted twice.
        why: the same in words.
        until_ns: when the quarantine ends.
        write: the marker that the next handshake writes; None if it only reads.
        writes: how many writes were due since the marker was last as it should be.
        leap: how its clock has last jumped forward.
    """

    index: int
    key: bytes
    kept_ms: int
    offset: Offset
    clock_set_back: Callable[[int], None]
    marker: Marker | None = None
    seen_ns: int = 0
    missed_ns: int = 0
    quarantine: tuple[object, ...] = ()
    why: str = ""
    until_ns: int = 0
    write: MarkerWrite | None = None
    writes: int = 0
    leap: Leap | None = None

    # --- the engine's monitor ------------------------------------------------------------------------------

    def pulse(self) -> tuple[bytes, bytes, int]:
        """Return what a pulse asks (see `votes.commands.Pulse`)."""
        assert self.marker is not None
        return self.key, self.marker.text(), self.kept_ms

    def answered(self, sent_ns: int, came_ns: int, server_us: int) -> MasterQuarantined | None:
        """Note the answer to a pulse; return why the connection must end, or None.

        Args:
            server_us: the answer: the server's clock, or 0 if its marker is another one.
        """
        if server_us <= 0:
            return MasterQuarantined("its marker was changed or is gone", doubted_ns=sent_ns)
        if self.offset.stands_still(sent_ns, server_us):
            return MasterQuarantined("its clock stands still", doubted_ns=sent_ns)
        self.seen_ns = came_ns
        if not self._note_clock(sent_ns, came_ns, server_us):
            return None
        assert self.leap is not None
        return MasterQuarantined(self.leap.described(), doubted_ns=sent_ns)

    def flushed(self, now_ns: int) -> MasterQuarantined:
        """Return why the connection must end after the master has pushed that it was flushed."""
        return MasterQuarantined("it was flushed", doubted_ns=now_ns)

    # --- handshakes ------------------------------------------------------------------------------------------

    def handshake(self) -> GuardHandshake:
        """Return what the next handshake does; a marker that is due is written by this one only."""
        write, self.write = self.write, None
        return GuardHandshake(self.key, self.kept_ms, write)

    def note_clock(self, report: HandshakeReport) -> bool:
        """Note the clock of a report; return whether it stands still."""
        if self.offset.stands_still(report.sent_ns, report.server_us):
            self.offset.note(report.sent_ns, report.came_ns, report.server_us)
            return True
        self._note_clock(report.sent_ns, report.came_ns, report.server_us)
        return False

    def write_marker(self, marker: Marker, report: HandshakeReport) -> None:
        """Have the next handshake write a marker, if the master still has the one of this report."""
        self.write = MarkerWrite(report.marker or b"", marker.text(), report.server_us)

    def quarantine_until(self, until_ns: int, why: str, quarantine: tuple[object, ...]) -> None:
        """Quarantine the master, unless it is for the same reason already."""
        if self.quarantine != quarantine:
            self.quarantine, self.why = quarantine, why
            self.until_ns = until_ns

    def _note_clock(self, sent_ns: int, came_ns: int, server_us: int) -> bool:
        """Note a reading; return whether the clock was set forward. If it was set back, keys only live longer."""
        jump_ns = self.offset.note(sent_ns, came_ns, server_us)
        if jump_ns < 0:
            self.clock_set_back(-jump_ns)
        elif jump_ns:
            self.leap = Leap(jump_ns, sent_ns)
        return jump_ns > 0
