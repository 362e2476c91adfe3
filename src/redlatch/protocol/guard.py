"""The guard: who may vote. It keeps out a master that may have forgotten locks, or whose clock has jumped.

A lock stands on a quorum of masters that remember it. One that was restarted without its data, flushed, or set forward
in time would help to give it to a second holder; so it is kept out until whatever it may have forgotten has run out:
for the longest ttl of all (`Guard.max_ttl`) and the drift of that, by the client's own clock. Source: the "delayed
restarts" of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

How it is seen:
  * Each master has a marker, a key beside the locks: which server process it is (run_id), since when, the longest ttl,
    and the list of masters. It is read in every handshake, before the connection is used; a restart ends all
    connections, so no vote comes from a process whose marker was not read. Where it is another process than the marker
    says, or there is no marker while the others have theirs, the master has lost its memory. Who sees that writes a new
    marker with the time: so all clients know, also those that start only now.
  * Each second in which a lock is asked for, a pulse goes ahead of the commands: is the marker the same, and what time
    is it? A reply that is wrong comes before the votes behind it, and ends the connection.
  * A master that pushes says that it was flushed.
  * Where the clocks of all masters have jumped alike, it was ours that stood still, as that of a suspended virtual
    machine may: nobody is kept out then, and what is held is in doubt.
  * Where all masters can be asked, and none has a marker, they are new, and nobody is kept out. (So are masters that
    have lost their memory all at once; only clients that knew them know better.) Where some cannot be asked, which may
    have one, the others wait for the longest ttl.
  * A marker that nobody has asked for goes after an hour.

It does no I/O, and reads no clock; the roster calls it. Longer than a module should be, so that who may vote has one
text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redlatch.errors import MasterQuarantined
from redlatch.protocol.policy import MILLISECOND, SECOND, Guard, drift_ns, quorum_of
from redlatch.protocol.sighting import (
    JUMP_NS,
    KEPT_MS,
    NOTHING,
    STILL_NS,
    Distrusted,
    Errand,
    Leap,
    Marker,
    Offset,
    Ruling,
    Sighting,
    refuse,
)

# Put behind a client's prefix: no name is empty, so that no lock has this key.
MARKER = b"\0guard"

# For so long a clock that has jumped is not judged while nothing is known of the others.
UNSURE_NS = SECOND

# One that has no marker, unlike the others, is looked at again after so long: somebody may just be writing it.
SECOND_LOOK_NS = SECOND


@dataclass
class Watched:
    """What is known of one master.

    Attributes:
        run_id, marker: as they were last seen.
        seen_ns: when that was.
        missed_ns: when it was first seen without a marker, unlike others; 0 while it is not.
        doubt: what it is kept out for, so that the same is not counted twice.
        out_ns: until when it is kept out.
        why: the same in words.
        errand: what its marker is, what it is to be, and when that was found by its clock.
        leap: how its clock has jumped forward last.
    """

    gate: Gate
    index: int
    offset: Offset
    run_id: str = ""
    marker: Marker | None = None
    seen_ns: int = 0
    missed_ns: int = 0
    doubt: tuple[object, ...] = ()
    why: str = ""
    out_ns: int = 0
    errand: tuple[bytes, bytes, int] = NOTHING
    leap: Leap | None = None

    def question(self) -> tuple[bytes, bytes, int]:
        """Return what a pulse asks (see `commands.Pulse`)."""
        assert self.marker is not None
        return self.gate.key, self.marker.text(), self.gate.kept_ms

    def beat(self, sent_ns: int, came_ns: int, server_us: int) -> Distrusted | None:
        """Take note of the answer to a pulse; return why its connection is to be ended, or None.

        Args:
            server_us: what it has said: its clock, or 0 where its marker is another one.
        """
        if server_us <= 0:
            return self.distrusted("its marker was changed or is gone", sent_ns)
        if self.offset.stands_still(sent_ns, server_us):
            return self.distrusted("its clock stands still", sent_ns)
        jump_ns = self.offset.note(sent_ns, came_ns, server_us)
        self.seen_ns = came_ns
        if jump_ns < 0:  # keys stay longer: nothing is forgotten
            self.gate.set_back(self.index, -jump_ns)
        if jump_ns <= 0:
            return None
        self.leap = Leap(jump_ns, sent_ns)
        return self.distrusted(f"its clock was set forward by {jump_ns / SECOND:.3f} s", sent_ns)

    def flushed(self, now_ns: int) -> Distrusted:
        """Take note that it has said so; return why its connection is to be ended."""
        return self.distrusted("it was flushed", now_ns)

    def distrusted(self, why: str, doubted_ns: int) -> Distrusted:
        """Return the error that ends its connection."""
        error = Distrusted(why)
        error.doubted_ns = doubted_ns
        return error


class Gate:
    """Decides for one client which of its masters may vote.

    Args:
        masters: their addresses.
        key: of the markers.
        drift_factor: by which share of the time clocks may go wrong.
        wall_us: tells microseconds since 1970; a hint, of how long ago somebody else has written a marker.
        set_back: told of a master, by its index, whose clock was set back, and by how many ns.
    """

    def __init__(
        self,
        masters: tuple[str, ...],
        guard: Guard,
        key: bytes,
        drift_factor: float,
        wall_us: Callable[[], int],
        set_back: Callable[[int, int], None],
    ) -> None:
        self.masters = masters
        self.set_back = set_back
        self._guard = guard
        self.key = key
        self._wall_us = wall_us
        self.kept_ms = max(KEPT_MS, 2 * guard.max_ttl_ms)
        self._out_ns = guard.max_ttl_ms * MILLISECOND + drift_ns(guard.max_ttl_ms, drift_factor)
        self._watched = [Watched(self, index, Offset(drift_factor)) for index in range(len(masters))]

    def errand(self, index: int) -> Errand:
        """Return what the next handshake with a master does about its marker."""
        watched = self._watched[index]
        errand, watched.errand = watched.errand, NOTHING
        return Errand(self.key, *errand, self.kept_ms)

    def watched(self, index: int) -> Watched:
        """Return what is known of a master that was let in."""
        return self._watched[index]

    def judge(self, index: int, sighting: Sighting, others: list[Sighting | None]) -> Ruling | None:
        """Decide on a connection; None while that depends on masters that are being dialled.

        Args:
            others: what was seen of those that wait for a decision like this one, itself among them; None stands for
                one that cannot be reached; who is still being dialled is missing.
        """
        watched = self._watched[index]
        try:
            marker = Marker.read(sighting.marker)
        except (ValueError, TypeError, RecursionError) as error:
            return refuse(f"{self.masters[index]} has a marker that is not ours ({error}); delete {self.key!r} there")
        still = watched.offset.stands_still(sighting.sent_ns, sighting.server_us)
        jump_ns = watched.offset.note(sighting.sent_ns, sighting.came_ns, sighting.server_us)
        if still:  # or it was set back by just so much: the next look will tell
            return Ruling(False, SECOND, MasterQuarantined("its clock stands still"))
        if jump_ns < 0:
            self.set_back(index, -jump_ns)
        elif jump_ns:
            watched.leap = Leap(jump_ns, sighting.sent_ns)
        refusal = self._disagreement(index, marker)
        if refusal is not None:
            return refusal
        if marker is None:
            return self._unmarked(watched, sighting, others)
        return self._marked(watched, marker, sighting)

    def _marked(self, watched: Watched, marker: Marker, sighting: Sighting) -> Ruling:
        """Decide on a master with a marker."""
        watched.missed_ns = 0
        if watched.leap is not None and not watched.leap.judged:
            unsure = self._judge_leap(watched, watched.leap, marker, sighting)
            if unsure is not None:
                return unsure
        if watched.errand != NOTHING:  # its clock has jumped
            return self._ruling(watched, sighting.came_ns)
        trusted = self._guard.trust_persistence
        if trusted and not sighting.persists:
            return refuse(
                f"{self.masters[watched.index]} keeps no append-only file (aof_enabled:0), and so cannot be trusted "
                "to remember: appendonly yes is needed there, or a guard without trust_persistence"
            )
        if marker.run_id == sighting.run_id:
            knew = watched.run_id not in ("", sighting.run_id) and not trusted
            if not marker.new or knew:
                self._count_down(watched, marker, sighting)
            watched.run_id, watched.marker, watched.seen_ns = sighting.run_id, marker, sighting.came_ns
        elif trusted:
            self._write(watched, sighting, replace(marker, run_id=sighting.run_id))
        else:
            self._doubt(watched, "it was restarted, or is another server now", sighting)
            self._tell(watched, marker, sighting)
        return self._ruling(watched, sighting.came_ns)

    def _judge_leap(self, watched: Watched, leap: Leap, marker: Marker, sighting: Sighting) -> Ruling | None:
        """Keep a master out whose clock was set forward, since its keys go too soon; a ruling while that is not sure.

        Where a quorum has jumped alike, and nobody's clock goes with ours, it was ours. All clients are told by its
        marker only where another master's clock goes with ours.
        """
        heard = [other for other in self._watched if other is not watched and other.offset.at_ns > leap.at_ns]
        alike = [
            other
            for other in heard
            if other.leap is not None
            and abs(other.leap.by_ns - leap.by_ns) < 2 * JUMP_NS
            and abs(other.leap.at_ns - leap.at_ns) < UNSURE_NS
        ]
        steady = [other for other in heard if other.leap is None or leap.at_ns - other.leap.at_ns > 2 * UNSURE_NS]
        ours = bool(alike) and not steady and len(alike) + 1 >= quorum_of(len(self.masters))
        why = f"its clock was set forward by {leap.by_ns / SECOND:.3f} s"
        if not (steady or ours) and len(self.masters) > 1 and sighting.came_ns - leap.at_ns < UNSURE_NS:
            return Ruling(False, STILL_NS, MasterQuarantined(why))
        watched.leap = leap._replace(judged=True)
        if ours:
            return None
        self._keep_out(watched, why, (leap,), sighting.came_ns)
        if steady:
            self._tell(watched, marker, sighting)
        return None

    def _disagreement(self, index: int, marker: Marker | None) -> Ruling | None:
        """Refuse where clients, or masters, do not go together."""
        mine = self.masters[index]
        if marker is None:
            marker, before = self._known(0), self._watched[index].marker
            if marker is not None and before is None and mine not in marker.masters:
                return refuse(
                    f"{mine} is not one of the masters that the others are used with ({', '.join(marker.masters)}); "
                    "all clients must have the same list"
                )
            return None
        if marker.max_ttl != self._guard.max_ttl_ms:
            return refuse(
                f"{mine} is used with max_ttl={marker.max_ttl / 1000:g} by others, not {self._guard.max_ttl:g}: "
                "all clients must give the same guard=Guard(max_ttl=...)"
            )
        if len(marker.masters) != len(self.masters):
            return refuse(
                f"{mine} is one of {len(marker.masters)} masters for others ({', '.join(marker.masters)}), and of "
                f"{len(self.masters)} here: all clients must have the same list, or another prefix"
            )
        for other in self._watched:
            if other.index == index or other.marker is None:
                continue
            if other.marker.masters != marker.masters or other.marker.master == marker.master:
                return refuse(
                    f"{mine} is used as {marker.master} of {', '.join(marker.masters)}, and "
                    f"{self.masters[other.index]} as {other.marker.master} of {', '.join(other.marker.masters)}: "
                    "all clients must have the same list"
                )
        return None

    def _known(self, after_ns: int) -> Marker | None:
        """Return a marker that was seen on any master after that."""
        for watched in self._watched:
            if watched.marker is not None and watched.seen_ns > after_ns:
                return watched.marker
        return None

    def _unmarked(self, watched: Watched, sighting: Sighting, others: list[Sighting | None]) -> Ruling | None:
        """Decide on a master without a marker."""
        now = sighting.came_ns
        since = now - self.kept_ms * MILLISECOND  # older ones are gone by themselves
        if self._known(since) is None and not any([other is not None and other.marker for other in others]):
            if len(others) < len(self.masters):
                return None
            latest_ns = max([other.came_ns for other in others if other is not None])
            if latest_ns - now > SECOND:  # much may have happened since
                return Ruling(False)
            new = None not in others
            watched.why = "" if new else "whether it is new cannot be said before all masters can be asked"
            self._write(watched, sighting, self._marker(watched, sighting, new))
            return self._ruling(watched, now)
        if watched.marker is None or watched.seen_ns <= since:
            watched.missed_ns = watched.missed_ns or now
            if now - watched.missed_ns < SECOND_LOOK_NS:
                return Ruling(False, SECOND_LOOK_NS, MasterQuarantined("it has no marker yet"))
        self._doubt(watched, "it has lost its marker, and maybe locks", sighting)
        marker, known = self._marker(watched, sighting, False), watched.marker or self._known(0)
        if known is not None:  # they may know the masters by other addresses
            mine = known.master if known is watched.marker else marker.master
            marker = replace(marker, master=mine, masters=known.masters)
        self._write(watched, sighting, marker)
        return self._ruling(watched, now)

    def _marker(self, watched: Watched, sighting: Sighting, new: bool) -> Marker:
        return Marker(
            run_id=sighting.run_id,
            since=sighting.server_us,
            new=new,
            max_ttl=self._guard.max_ttl_ms,
            master=self.masters[watched.index],
            masters=tuple(sorted(self.masters)),
        )

    def _tell(self, watched: Watched, marker: Marker, sighting: Sighting) -> None:
        """Have all clients told that from now on it is not to be believed what was before."""
        self._write(watched, sighting, replace(marker, run_id=sighting.run_id, since=sighting.server_us, new=False))

    def _write(self, watched: Watched, sighting: Sighting, marker: Marker) -> None:
        """Have a marker written, if there is still the one that was seen."""
        watched.errand = sighting.marker or b"", marker.text(), sighting.server_us

    def _doubt(self, watched: Watched, why: str, sighting: Sighting) -> None:
        self._keep_out(watched, why, (sighting.run_id, sighting.marker), sighting.came_ns)

    def _keep_out(self, watched: Watched, why: str, doubt: tuple[object, ...], now_ns: int) -> None:
        if watched.doubt != doubt:
            watched.doubt, watched.why = doubt, why
            watched.out_ns = now_ns + self._out_ns

    def _count_down(self, watched: Watched, marker: Marker, sighting: Sighting) -> None:
        """Keep a master out for what is left since somebody has seen that it forgets, by whose clock that is most."""
        doubt = (marker.run_id, marker.since)
        if watched.doubt == doubt:
            return
        waited_us = min(sighting.server_us, self._wall_us()) - marker.since
        left_ns = self._out_ns - max(0, waited_us) * 1000
        watched.doubt = doubt
        if left_ns > 0 and watched.out_ns < sighting.came_ns + left_ns:
            watched.out_ns = max(watched.out_ns, sighting.came_ns + left_ns)
            watched.why = watched.why or "it may have forgotten locks"

    def _ruling(self, watched: Watched, now_ns: int) -> Ruling:
        cause = None
        left_ns = watched.out_ns - now_ns
        if left_ns > 0:
            cause = MasterQuarantined(f"kept out for {left_ns / SECOND:.1f} s more: {watched.why}")
        if watched.errand != NOTHING:
            return Ruling(False, 0, cause)
        if cause is not None:
            return Ruling(False, left_ns, cause)
        watched.why = ""
        return Ruling(True)
