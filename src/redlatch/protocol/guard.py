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
  * Each second in which a lock is asked for, or extended, a pulse goes ahead of the commands: is the marker the same,
    and what time is it? A reply that is wrong comes before the votes behind it, and ends the connection.
  * A master that pushes says that it was flushed.
  * Where the clocks of a quorum have jumped alike, and no other's goes with ours, it was ours that stood still, as that
    of a suspended virtual machine may: nobody is kept out then, and what is held is in doubt.
  * Where all masters can be asked, and none has a marker, they are new, and nobody is kept out. (So are masters that
    have lost their memory all at once; only clients that knew them know better.) Where some cannot be asked, which may
    have one, the others wait for the longest ttl.
  * A marker that nobody has asked for goes after an hour, or twice the longest ttl.

It does no I/O, and reads no clock; the roster calls it. Longer than a module should be, so that who may vote has one
text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redlatch.errors import MasterQuarantined
from redlatch.protocol.policy import MILLISECOND, SECOND, Guard, drift_ns, quorum_of
from redlatch.protocol.said import shown
from redlatch.protocol.sighting import (
    JUMP_NS,
    KEPT_MS,
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

# Meanwhile the master is looked at again after so long.
LOOK_AGAIN_NS = 100 * MILLISECOND

# One that has no marker, unlike the others, is looked at again after so long: somebody may just be writing it. So is
# one that had no room for a marker, and then again after twice that, a second at most.
SECOND_LOOK_NS = 200 * MILLISECOND


@dataclass
class Watched:
    """What is known of one master.

    Attributes:
        gate, index: whose it is, and which one of its masters.
        offset: of its clock from ours.
        marker: as it was last seen.
        seen_ns: when that was.
        missed_ns: when it was first seen without a marker, unlike others; 0 while it is not.
        counted: what it is kept out for, so that the same is not counted twice.
        out_ns: until when it is kept out.
        why: the same in words.
        errand: what the next handshake is to write; None is nothing.
        errands: how many there were since the marker was last what it is to be.
        leap: how its clock has jumped forward last.
    """

    gate: Gate
    index: int
    offset: Offset
    marker: Marker | None = None
    seen_ns: int = 0
    missed_ns: int = 0
    counted: tuple[object, ...] = ()
    why: str = ""
    out_ns: int = 0
    errand: Errand | None = None
    errands: int = 0
    leap: Leap | None = None

    def question(self) -> tuple[bytes, bytes, int]:
        """Return what a pulse asks (see `commands.Pulse`)."""
        assert self.marker is not None
        return self.gate.key, self.marker.text(), self.gate.kept_ms

    def beat(self, sent_ns: int, came_ns: int, server_us: int) -> MasterQuarantined | None:
        """Take note of the answer to a pulse; return why its connection is to be ended, or None.

        Args:
            server_us: what it has said: its clock, or 0 where its marker is another one.
        """
        if server_us <= 0:
            return MasterQuarantined("its marker was changed or is gone", doubted_ns=sent_ns)
        if self.offset.stands_still(sent_ns, server_us):
            return MasterQuarantined("its clock stands still", doubted_ns=sent_ns)
        jump_ns = self.offset.note(sent_ns, came_ns, server_us)
        self.seen_ns = came_ns
        if jump_ns < 0:  # keys stay longer: nothing is forgotten
            self.gate.set_back(self.index, -jump_ns)
        if jump_ns <= 0:
            return None
        self.leap = Leap(jump_ns, sent_ns)
        return MasterQuarantined(f"its clock was set forward by {jump_ns / SECOND:.3f} s", doubted_ns=sent_ns)

    def flushed(self, now_ns: int) -> MasterQuarantined:
        """Return why its connection is to be ended: it has said that it was flushed."""
        return MasterQuarantined("it was flushed", doubted_ns=now_ns)


class Gate:
    """Decides for one client which of its masters may vote.

    Args:
        masters: their addresses.
        key: of the markers; also an attribute, as `masters` is.
        drift_factor: by which share of the time clocks may go wrong.
        wall_us: tells microseconds since 1970. Who comes later than a marker was written believes that as much time has
            passed as both this clock and the master's own say.
        set_back: told of a master, by its index, whose clock was set back, and by how many ns.

    Attributes:
        kept_ms: for how long a marker is kept that nobody asks for.
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
        errand, watched.errand = watched.errand, None
        return errand or Errand(self.key, kept_ms=self.kept_ms)

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
            return refuse(
                f"{self.masters[index]} has a marker that is not ours ({shown(error)}){self._how_to_change()}"
            )
        still = watched.offset.stands_still(sighting.sent_ns, sighting.server_us)
        jump_ns = watched.offset.note(sighting.sent_ns, sighting.came_ns, sighting.server_us)
        if still:  # or it was set back by just so much: the next look will tell
            return Ruling(False, SECOND, MasterQuarantined("its clock stands still"))
        if jump_ns < 0:
            self.set_back(index, -jump_ns)
        elif jump_ns:
            watched.leap = Leap(jump_ns, sighting.sent_ns)
        refusal = self._strange(index) if marker is None else self._disagreement(index, marker)
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
        if watched.errand is not None:  # its clock has jumped
            return self._ruling(watched, sighting.came_ns)
        trusted = self._guard.trust_persistence
        if trusted and not sighting.persists:
            return refuse(
                f"{self.masters[watched.index]} keeps no append-only file (aof_enabled:0), and so cannot be trusted "
                "to remember: appendonly yes is needed there, or a guard without trust_persistence"
            )
        if marker.run_id == sighting.run_id:
            if not marker.new or (self._knew_another(watched, marker, sighting) and not trusted):
                self._count_down(watched, marker, sighting)
            watched.marker, watched.seen_ns = marker, sighting.came_ns
        elif trusted or _is_the_same(marker, sighting):
            self._write(watched, sighting, replace(marker, run_id=sighting.run_id))
        else:
            self._doubt(watched, "it was restarted, or is another server now", sighting)
            self._tell(watched, marker, sighting)
        return self._ruling(watched, sighting.came_ns)

    def _knew_another(self, watched: Watched, marker: Marker, sighting: Sighting) -> bool:
        """Tell whether a master that looks new has had another marker, which cannot have gone by itself."""
        known = watched.marker
        recently = watched.seen_ns > sighting.came_ns - self.kept_ms * MILLISECOND
        return known is not None and recently and known.origin() != marker.origin()

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
            and abs(other.leap.by_ns - leap.by_ns) < 2 * JUMP_NS  # each is known to JUMP_NS
            and abs(other.leap.at_ns - leap.at_ns) < UNSURE_NS
        ]
        steady = [other for other in heard if other.leap is None or leap.at_ns - other.leap.at_ns > 2 * UNSURE_NS]
        ours = bool(alike) and not steady and len(alike) + 1 >= quorum_of(len(self.masters))
        why = f"its clock was set forward by {leap.by_ns / SECOND:.3f} s"
        if not (steady or ours) and len(self.masters) > 1 and sighting.came_ns - leap.at_ns < UNSURE_NS:
            return Ruling(False, LOOK_AGAIN_NS, MasterQuarantined(why))
        watched.leap = leap._replace(judged=True)
        if ours:
            return None
        self._keep_out(watched, why, (leap,), sighting.came_ns)
        if steady:
            self._tell(watched, marker, sighting)
        return None

    def _disagreement(self, index: int, marker: Marker) -> Ruling | None:
        """Refuse where clients, or masters, do not go together."""
        mine = self.masters[index]
        if marker.max_ttl != self._guard.max_ttl_ms:
            return refuse(
                f"{mine} is used with max_ttl={marker.max_ttl / 1000:g} by others, not {self._guard.max_ttl:g}: "
                f"all clients must give the same guard=Guard(max_ttl=...){self._how_to_change()}"
            )
        if marker.trusted != self._guard.trust_persistence:
            return refuse(
                f"{mine} is used with trust_persistence={marker.trusted} by others: all clients must give the same "
                f"guard{self._how_to_change()}"
            )
        if len(marker.masters) != len(self.masters):
            return refuse(
                f"{mine} is one of {len(marker.masters)} masters for others ({marker.shown_masters()}), and of "
                f"{len(self.masters)} here: all clients must have the same list, or another prefix"
                f"{self._how_to_change()}"
            )
        for other in self._watched:
            if other.index == index or other.marker is None:
                continue
            if other.marker.masters != marker.masters or other.marker.master == marker.master:
                return refuse(
                    f"{mine} is used as {marker.shown_master()} of {marker.shown_masters()}, and "
                    f"{self.masters[other.index]} as {other.marker.shown_master()} of {other.marker.shown_masters()}: "
                    f"all clients must have the same list{self._how_to_change()}"
                )
        return None

    def _strange(self, index: int) -> Ruling | None:
        """Refuse a master without a marker that the clients of the others do not have in their list.

        Not where they spell the addresses in another way, so that nothing can be said.
        """
        mine = self.masters[index]
        if self._watched[index].marker is not None:
            return None
        for other in self._watched:
            marker = other.marker
            if marker is None or marker.master != self.masters[other.index] or mine in marker.masters:
                continue
            return refuse(
                f"{mine} is not one of the masters that the others are used with ({marker.shown_masters()}); "
                f"all clients must have the same list{self._how_to_change()}"
            )
        return None

    def _how_to_change(self) -> str:
        key = self.key.decode(errors="replace").replace("\0", "\\x00")
        return f'; to change that, stop all clients, and on each master: DEL "{key}"'

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
            seen = [other.came_ns for other in others if other is not None]
            if max(seen) - min(seen) > SECOND:  # much may have happened since: all are looked at again
                return Ruling(False)
            new = None not in others
            unseen = [self.masters[other.index] for other in self._watched if not other.offset.at_ns]
            watched.why = "" if new else f"nobody can say whether it is new: {', '.join(unseen)} was never reached"
            self._write(watched, sighting, self._marker(watched, sighting, new))
            return self._ruling(watched, now)
        if watched.marker is None or watched.seen_ns <= since:
            watched.missed_ns = watched.missed_ns or now
            if now - watched.missed_ns < SECOND_LOOK_NS // 2:  # the pause is between a half and the whole of it
                return Ruling(False, SECOND_LOOK_NS)
        self._doubt(watched, "it has lost its marker, and maybe locks", sighting)
        marker, known = self._marker(watched, sighting, False), watched.marker or self._known(0)
        if known is not None:  # they may know the masters by other addresses
            mine = known.master if known is watched.marker else self._missing(known) or marker.master
            marker = replace(marker, master=mine, masters=known.masters)
        self._write(watched, sighting, marker)
        return self._ruling(watched, now)

    def _missing(self, known: Marker) -> str:
        """Return the one address in the list of others that no other master has; "" where there are several."""
        there = [watched.marker.master for watched in self._watched if watched.marker is not None]
        missing = [master for master in known.masters if master not in there]
        return missing[0] if len(missing) == 1 else ""

    def _marker(self, watched: Watched, sighting: Sighting, new: bool) -> Marker:
        return Marker(
            run_id=sighting.run_id,
            since=sighting.server_us,
            wall=max(0, self._wall_us()),
            new=new,
            max_ttl=self._guard.max_ttl_ms,
            trusted=self._guard.trust_persistence,
            master=self.masters[watched.index],
            masters=tuple(sorted(self.masters)),
        )

    def _tell(self, watched: Watched, marker: Marker, sighting: Sighting) -> None:
        """Have all clients told that from now on it is not to be believed what was before."""
        now_us = max(0, self._wall_us())
        marker = replace(marker, run_id=sighting.run_id, since=sighting.server_us, wall=now_us, new=False)
        self._write(watched, sighting, marker)

    def _write(self, watched: Watched, sighting: Sighting, marker: Marker) -> None:
        """Have a marker written, if there is still the one that was seen."""
        old = sighting.marker or b""
        watched.errand = Errand(self.key, old, marker.text(), sighting.server_us, self.kept_ms)

    def _doubt(self, watched: Watched, why: str, sighting: Sighting) -> None:
        self._keep_out(watched, why, (sighting.run_id, sighting.marker), sighting.came_ns)

    def _keep_out(self, watched: Watched, why: str, doubt: tuple[object, ...], now_ns: int) -> None:
        if watched.counted != doubt:
            watched.counted, watched.why = doubt, why
            watched.out_ns = now_ns + self._out_ns

    def _count_down(self, watched: Watched, marker: Marker, sighting: Sighting) -> None:
        """Keep a master out for what is left since somebody has seen that it forgets.

        Two clocks must have gone on since: a master's may be set forward, and so may that of a client, but both at
        once, and by as much, is not to be expected.
        """
        doubt = (marker.run_id, marker.since)
        if watched.counted == doubt:
            return
        waited_us = min(sighting.server_us - marker.since, self._wall_us() - marker.wall)
        left_ns = self._out_ns - max(0, waited_us) * 1000
        watched.counted = doubt
        if left_ns > 0 and watched.out_ns < sighting.came_ns + left_ns:
            watched.out_ns = sighting.came_ns + left_ns
            watched.why = watched.why or "it may have forgotten locks"

    def _ruling(self, watched: Watched, now_ns: int) -> Ruling:
        cause = None
        left_ns = watched.out_ns - now_ns
        if left_ns > 0:
            cause = MasterQuarantined(f"kept out for {left_ns / SECOND:.1f} s more: {watched.why}")
        if watched.errand is not None:
            pause_ns = min(SECOND, SECOND_LOOK_NS << min(watched.errands, 8)) if watched.errands else 0
            watched.errands += 1
            return Ruling(False, pause_ns, cause)
        watched.errands = 0
        if cause is not None:
            return Ruling(False, left_ns, cause)
        watched.why = ""
        return Ruling(True)


def _is_the_same(marker: Marker, sighting: Sighting) -> bool:
    """Tell whether only the history of keys has a new name: a master takes one with its first replica."""
    now = sighting.run_id.partition(" ")[0]
    return marker.origin()[0] == now and not sighting.promoted and marker.max_ttl <= sighting.backlog_ms
