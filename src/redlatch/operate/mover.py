"""The mover: it hands the locks of one list of masters over to another list (M2, M3, M5; see `guard.handover`).

It may end at any step, run again, and run twice at once: it goes on where the markers say that a handover stands. All
its writes compare the whole marker that it has read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import redis.exceptions as redis_errors

from redlatch.config import Master
from redlatch.errors import MasterRefused
from redlatch.guard.founding import ATTEMPTS, RANDOM_VALUES
from redlatch.guard.handover import (
    LEFT_KEPT_MS,
    PENDING_KEPT_MS,
    final_marker,
    is_awaited,
    left_marker,
    names_of,
    pending_marker,
)
from redlatch.guard.handshake import GuardHandshake, HandshakeReport
from redlatch.guard.marker import FINAL, LEFT, PENDING, Marker, MarkerWrite
from redlatch.votes.scripts import kept_ms
from redlatch.votes.units import drift_ns, quorum_of
from redlatch.wire.connect import dial
from redlatch.wire.net import now_ns

# Seconds for one connect and for one handshake.
TIMEOUT = 2.0

# How often a write is tried again, because a client has raised a horizon meanwhile.
TRIES = 10

# A client may use a marker for this time before it looks whether it is the same: the time between two pulses.
PULSES_NS = 1_000_000_000


class CannotMove(Exception):
    """The handover cannot begin or go on now; the message says why, and what to do."""


@dataclass
class Seen:
    """What the mover has read of one master."""

    report: HandshakeReport
    marker: Marker | None

    def since(self) -> int:
        """Return the time of its marker, by its clock; 0 without one."""
        return 0 if self.marker is None else self.marker.since


@dataclass
class Mover:
    """Hands the locks of one list of masters over to another one.

    Args:
        old, new: the masters of both lists, as their clients name them.
        key: of the markers.
        gone: the names of old masters that will never run again, by the operator's word.
        drift_factor: the largest `drift_factor` of the clients.
        say: called with a line about each step.
        sleep: waits for some seconds.
    """

    old: list[Master]
    new: list[Master]
    key: bytes
    gone: frozenset[str] = frozenset()
    drift_factor: float = 0.01
    say: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep
    number: int = 0
    _known: Marker | None = field(default=None)

    @property
    def _previous(self) -> tuple[str, ...]:
        return names_of(tuple(master.name for master in self.old))

    @property
    def _successors(self) -> tuple[str, ...]:
        return names_of(tuple(master.name for master in self.new))

    @property
    def _asked(self) -> list[Master]:
        """The old masters that are not gone."""
        return [master for master in self.old if master.name not in self.gone]

    @property
    def _joining(self) -> list[Master]:
        """The masters that are in the new list only."""
        old = {master.name for master in self.old}
        return [master for master in self.new if master.name not in old]

    def run(self, dry: bool = False) -> None:
        """Do the whole handover, or what is left of it.

        Args:
            dry: only read, and say what would be done.

        Raises:
            CannotMove: the handover cannot begin or go on now.
        """
        found = self._read_all()
        finished = any(self._is_final(seen.marker) for seen in found.values())
        self._choose(found)
        if dry:
            self.say(f"it would take about {self._wait_ns(found) / 1e9:.0f} s, in which nobody gets a lock")
            return
        if not finished:
            for master in self._joining:
                self._make_pending(master)
            self.say(f"pending: {', '.join(self._successors)}")
            finished = self._leave_all()
        self._finish_all(finished)
        self.say(f"final: {', '.join(self._successors)}")

    # --- reading -------------------------------------------------------------------------------------

    def _read_all(self) -> dict[str, Seen]:
        """Read all masters of both lists, and refuse what contradicts a handover."""
        masters = {master.name: master for master in [*self._asked, *self.new]}
        found = self._each(masters.values(), self._read)
        servers = [seen.report.run_id.partition(" ")[0] for seen in found.values()]
        if len(set(servers)) < len(servers):
            raise CannotMove("two of the masters are the same server: they have one run_id")
        for name, seen in found.items():
            self._check(name, seen.marker, name in {master.name for master in self.old})
        return found

    def _check(self, name: str, marker: Marker | None, old: bool) -> None:
        """Refuse a marker that contradicts this handover."""
        if marker is None or self._is_final(marker) or is_awaited(marker, self._successors):
            return
        if old and marker.masters == self._previous and marker.stage == FINAL:
            return
        if not old and marker.stage == LEFT and marker.successors == self._previous:
            return  # by an earlier handover, which has ended since its successors are in use
        if old and marker.stage == LEFT:
            if marker.masters == self._previous and marker.successors == self._successors:
                return
            raise CannotMove(f"{name} was left for {', '.join(marker.successors)} already: end that handover first")
        raise CannotMove(
            f"{name} is one of {marker.shown_masters()} (stage {marker.stage}): name the masters as its clients do, "
            "or take another server"
        )

    def _is_final(self, marker: Marker | None) -> bool:
        """Return whether a new master is final by a handover from the old list."""
        return (
            marker is not None
            and marker.stage == FINAL
            and marker.masters == self._successors
            and marker.previous == self._previous
        )

    def _is_ours(self, seen: Seen, stage: str) -> bool:
        """Return whether a master has a marker of this handover that its process has kept."""
        marker = seen.marker
        ours = marker is not None and marker.stage == stage and marker.attempt == self.number
        return ours and marker is not None and marker.run_id == seen.report.run_id

    def _choose(self, found: dict[str, Seen]) -> None:
        """Choose the number of the handover: that of one that has begun, or a new one."""
        markers = [seen.marker for seen in found.values() if seen.marker is not None]
        known = [marker for marker in markers if marker.masters == self._previous and marker.stage in (FINAL, LEFT)]
        begun = [marker.attempt for marker in markers if self._is_final(marker) or marker.stage in (PENDING, LEFT)]
        if not known and not begun:
            raise CannotMove(f"no master has a marker of {', '.join(self._previous)}: no client has used that list")
        self._known = known[0] if known else None
        number = (max(1, time.time_ns() // 1000) * RANDOM_VALUES + random.randrange(RANDOM_VALUES)) * ATTEMPTS + 1
        before = max([marker.attempt for marker in markers], default=0)
        self.number = max(begun) if begun else max(number, before + 1)

    def _read(self, master: Master) -> Seen:
        return self._shake(master, None)

    def _shake(self, master: Master, write: MarkerWrite | None) -> Seen:
        """Shake hands with a master once; write a marker first if one is given."""
        try:
            connection = dial(master, TIMEOUT, False, GuardHandshake(self.key, write))
        except (OSError, redis_errors.RedisError, MasterRefused) as error:
            raise CannotMove(f"{master.name} cannot be used: {error}") from error
        connection.sock.close()
        report: HandshakeReport = connection.traits.report
        try:
            return Seen(report, Marker.read(report.marker))
        except (ValueError, TypeError, RecursionError) as error:
            raise CannotMove(f"{master.name} has a marker that is not ours") from error

    def _each(self, masters: Iterable[Master], work: Callable[[Master], Seen]) -> dict[str, Seen]:
        """Do something with all masters at once; return the results by name."""
        listed = list(masters)
        with ThreadPoolExecutor(max(1, len(listed))) as pool:
            return {master.name: seen for master, seen in zip(listed, pool.map(work, listed), strict=True)}

    # --- writing -------------------------------------------------------------------------------------

    def _write(self, master: Master, wanted: Callable[[Seen], Marker | None], kept: Callable[[Marker], int]) -> Seen:
        """Write a marker until it is there.

        Args:
            wanted: returns the marker to write in place of what was read; None if it is right.
            kept: returns for how many milliseconds the master keeps it.
        """
        seen = self._read(master)
        for _ in range(TRIES):
            marker = wanted(seen)
            if marker is None:
                return seen
            report = seen.report
            write = MarkerWrite(report.marker or b"", marker.text(), kept(marker), report.server_us)
            seen = self._shake(master, write)
        raise CannotMove(f"the marker of {master.name} changes all the time: is another handover under way?")

    def _make_pending(self, master: Master) -> None:
        def wanted(seen: Seen) -> Marker | None:
            marker = seen.marker
            if self._is_final(marker) or self._is_ours(seen, PENDING):
                return None
            self._check(master.name, marker, False)
            return pending_marker(self._old_marker(), seen.report, master.name, self._successors, self.number)

        self._write(master, wanted, lambda _: PENDING_KEPT_MS)

    def _leave(self, master: Master) -> Seen:
        """Mark an old master as left; return what it says then."""

        def wanted(seen: Seen) -> Marker | None:
            marker = seen.marker
            if self._is_final(marker) or self._is_ours(seen, LEFT):
                return None
            self._check(master.name, marker, True)
            # The process of no master is "": a marker made here is that of a forgetful master.
            old = marker or replace(self._old_marker(), run_id="", master=master.name)
            return left_marker(old, seen.report, self._successors, self.number)

        return self._write(master, wanted, lambda _: LEFT_KEPT_MS)

    def _old_marker(self) -> Marker:
        """Return a marker of the old list, whose options the markers of the handover take over."""
        if self._known is None:
            raise CannotMove("no old master has a marker any more, and the handover has not ended")
        return self._known

    def _leave_all(self) -> bool:
        """Mark all old masters as left and wait until their locks have expired; return whether another mover is ahead.

        Begin again if a master has forgotten meanwhile that it was left.
        """
        while True:
            # Of two movers to different lists, the one that is ahead on the first master goes on.
            first, *others = sorted(self._asked, key=lambda master: master.name)
            left = self._each([first], self._leave) | self._each(others, self._leave)
            acknowledged_ns = now_ns()
            if any(self._is_final(seen.marker) for seen in left.values()):
                return True
            wait_ns = self._wait_ns(left)
            self.say(f"left: {', '.join(left)}; waiting {wait_ns / 1e9:.1f} s for the locks to expire")
            while (left_ns := acknowledged_ns + wait_ns - now_ns()) > 0:
                self.sleep(left_ns / 1e9)
            again = self._each(self._asked, self._read)
            if any(self._is_final(seen.marker) for seen in again.values()):
                return True
            if all(self._is_ours(seen, LEFT) and seen.since() == left[name].since() for name, seen in again.items()):
                return False
            self.say("a master has forgotten that it was left; beginning again")

    def _wait_ns(self, found: dict[str, Seen]) -> int:
        """Return for how long locks may live that stand on old votes, with the time between two pulses.

        That is the longest ttl in use, if enough masters that have forgotten nothing say it; else the longest ttl.
        """
        old = {master.name for master in self._asked}
        markers = [
            (seen.marker, seen.report) for name, seen in found.items() if name in old and seen.marker is not None
        ]
        sure = [marker.horizon for marker, report in markers if marker.sure and marker.run_id == report.run_id]
        needed = len(self.old) - quorum_of(len(self.old)) + 1
        longest = max([marker.max_ttl for marker, _ in markers], default=self._known.max_ttl if self._known else 0)
        ttl_ms = max(sure) if len(sure) >= needed else longest
        return ttl_ms * 1_000_000 + drift_ns(ttl_ms, self.drift_factor) + PULSES_NS

    def _finish_all(self, finished: bool) -> None:
        """Make all new masters final.

        Args:
            finished: whether one of them is, so that others may hold locks already.
        """
        if not finished:
            for master in self._joining:
                self._make_pending(master)

        def finish(master: Master) -> Seen:
            def wanted(seen: Seen) -> Marker | None:
                marker = seen.marker
                if marker is None or not is_awaited(marker, self._successors):
                    return None
                if marker.run_id != seen.report.run_id or marker.attempt != self.number:
                    return None  # the guard keeps it out
                return final_marker(marker, master.name)

            return self._write(master, wanted, lambda marker: kept_ms(marker.horizon))

        seen = self._each(self.new, finish)
        for name, other in seen.items():
            if not self._is_final(other.marker):
                self.say(f"{name} is not final: clients keep it out until it may vote")
