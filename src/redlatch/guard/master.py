"""The state of one guarded master."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from redlatch.errors import MasterQuarantined, MasterRefused
from redlatch.guard.clock import Leap, Offset
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import Marker, MarkerWrite
from redlatch.votes.scripts import KEPT_MS, MARK_WITHIN_US
from redlatch.votes.units import MILLISECOND, Durations

# A marker on a master without one must arrive within the default ttl, or this if it is longer.
LEAST_WITHIN_US = 1_000_000

MOST_EARLIER = 100


@dataclass
class GuardedMaster:
    """The state of one guarded master.

    The engine uses five members as a connection's monitor: `pulse`, `horizon_ms`, `refusal`, `answered` and `flushed`.

    Attributes:
        allowed_ms: the longest ttl that clients may use (G5).
        clock_set_back: called with the ns by which the master's clock was set back.
        confirm: called with this object when a pulse has found its marker unchanged.
        earlier: the origins of its former markers.
        asked_ns, seen_ns: times before and after the marker was last read, or a pulse last found it unchanged.
        noted_ns: when its present marker was first read.
        replaced: whether a pulse has found another marker than before.
        empty_ns: since when it has no final marker, while other masters cannot be read.
        missed_ns: since when only this master lacks its marker.
        quarantine: identifies the cause of the quarantine, which counts once.
        until_ns: when the quarantine for its memory ends.
        found_us: when it was found to have forgotten, by its own clock.
        written: the identity of the marker that this client has written last, until it has read one.
        settles_ns: until then its quarantine is not reported, because its duration is known soon.
        unsure: the origin of an unsure marker, and when this client first saw it.
        unheard: whether others may still know that an unsure marker keeps it out for too short a time (G5).
        jumped_until_ns: when a quarantine ends that began with a jump of its clock, and that is in no marker.
        heals_ns: until when locks may be held that lack its vote, because it was kept out or restarted.
        writes: how many writes in a row have not led to the desired marker.
    """

    index: int
    key: bytes
    default_ttl_ms: int
    offset: Offset
    clock_set_back: Callable[[int], None]
    confirm: Callable[[GuardedMaster], None]
    allowed_ms: int = 0
    marker: Marker | None = None
    earlier: deque[tuple[str, int]] = field(default_factory=partial(deque, maxlen=MOST_EARLIER))
    asked_ns: int = 0
    seen_ns: int = 0
    noted_ns: int = 0
    replaced: bool = False
    empty_ns: int = 0
    missed_ns: int = 0
    quarantine: tuple[object, ...] = ()
    why: str = ""
    until_ns: int = 0
    found_us: int = 0
    contrary: str = ""
    written: bytes = b""
    settles_ns: int = 0
    unsure: tuple[tuple[str, int], int] | None = None
    unheard: bool = False
    jumped_until_ns: int = 0
    heals_ns: int = 0
    write: MarkerWrite | None = None
    writes: int = 0
    leap: Leap | None = None
    out: bool = False
    quarantines: int = 0
    reply_time: Durations = field(default_factory=Durations)

    # --- the engine's monitor ------------------------------------------------------------------------------

    def pulse(self) -> tuple[bytes, bytes, int]:
        assert self.marker is not None
        return self.key, self.marker.identity(), min(self.default_ttl_ms, self.allowed_ms)

    @property
    def horizon_ms(self) -> int:
        assert self.marker is not None
        return self.marker.horizon

    def refusal(self, ttl_ms: int) -> MasterRefused | None:
        if ttl_ms <= self.allowed_ms:
            return None
        return MasterRefused(
            f"other clients give max_ttl={self.allowed_ms / 1000:g}: a ttl of {ttl_ms / 1000:g} s may be used as soon "
            "as this client has reached all masters"
        )

    def answered(self, sent_ns: int, came_ns: int, server_us: int, horizon_ms: int) -> MasterQuarantined | None:
        """Record the answer to a pulse; return why the connection must end. `server_us` is 0 for another marker."""
        self.reply_time.count(came_ns - sent_ns)
        if server_us <= 0:
            self.replaced = True
            return MasterQuarantined("its marker was changed or is gone", doubted_ns=sent_ns)
        if self.offset.stands_still(sent_ns, server_us):
            return MasterQuarantined("its clock stands still", doubted_ns=sent_ns)
        self.seen_ns = came_ns
        if self._note_clock(sent_ns, came_ns, server_us):
            assert self.leap is not None
            return MasterQuarantined(self.leap.described(), doubted_ns=sent_ns)
        assert self.marker is not None
        self.asked_ns = sent_ns
        if self.marker.horizon != horizon_ms:
            self.marker = replace(self.marker, horizon=horizon_ms)
        self.confirm(self)
        return None

    def note_out(self, out: bool) -> None:
        self.quarantines += out and not self.out
        self.out = out

    def flushed(self, now_ns: int) -> MasterQuarantined:
        return MasterQuarantined("it was flushed", doubted_ns=now_ns)

    def marking_elsewhere(self, now_ns: int) -> tuple[bytes, bytes, int, int]:
        """Return the key, the text, the life in ms and the time of a marker whose slot has left its node."""
        assert self.marker is not None
        return self.key, self.marker.text(), KEPT_MS, self.offset.server_us(now_ns)

    # --- handshakes ------------------------------------------------------------------------------------------

    def handshake(self) -> GuardHandshake:
        # Only this handshake writes a marker that is due.
        write, self.write = self.write, None
        return GuardHandshake(self.key, write)

    def note_clock(self, report: HandshakeReport) -> bool:
        if self.offset.stands_still(report.sent_ns, report.server_us):
            self.offset.note(report.sent_ns, report.came_ns, report.server_us)
            return True
        self._note_clock(report.sent_ns, report.came_ns, report.server_us)
        return False

    def write_marker(self, marker: Marker, report: HandshakeReport, kept: int = 0) -> None:
        """Let the next handshake write a marker, kept for `kept` ms; 0: as long as a final one."""
        self.written = marker.identity()
        made_us = report.server_us
        if not report.marker:
            # The master may get another marker meanwhile, and forget that too. Then a late write would match, although
            # it counts from before. So it must arrive before the quarantine of the other marker can end.
            made_us -= MARK_WITHIN_US - min(MARK_WITHIN_US, max(LEAST_WITHIN_US, 1000 * self.default_ttl_ms))
        self.write = MarkerWrite(report.marker or b"", marker.text(), kept or KEPT_MS, made_us)

    def note_marker(self, marker: Marker, report: HandshakeReport) -> None:
        self.empty_ns = 0
        if self.marker is not None and self.marker.origin() != marker.origin():
            self.earlier.append(self.marker.origin())
        if self.marker is None or self.marker.identity() != marker.identity():
            self.noted_ns = report.came_ns
        self.marker, self.asked_ns, self.seen_ns = marker, report.sent_ns, report.came_ns
        # If the same marker returns later, it comes from an older copy of the master's data.
        self.written = b""

    def knew_marker(self, now_ns: int) -> bool:
        """Return True if the master had a marker that cannot have expired by itself."""
        return self.marker is not None and self.seen_ns > now_ns - KEPT_MS * MILLISECOND

    def testifies(self, after_ns: int, now_ns: int) -> bool:
        """Return True if the master is a witness (G4): its marker was read after that time, and is sure or over."""
        marker = self.marker
        over = self.until_ns <= now_ns and not self.unheard
        return marker is not None and self.asked_ns > after_ns and (marker.sure or over)

    def _note_clock(self, sent_ns: int, came_ns: int, server_us: int) -> bool:
        # Keys only live longer if the clock was set back.
        jump_ns = self.offset.note(sent_ns, came_ns, server_us)
        if jump_ns < 0:
            self.clock_set_back(-jump_ns)
        elif jump_ns:
            self.leap = Leap(jump_ns, sent_ns)
        return jump_ns > 0
