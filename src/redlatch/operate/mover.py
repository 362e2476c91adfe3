"""The mover: it hands the locks of one list of masters over to another list (M2, M3, M5; see `guard.handover`).

It may be interrupted, run again, and run twice at once: the markers say how far a handover is, and each write compares
the whole marker that was read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from redlatch.guard.founding import ATTEMPTS, RANDOM_VALUES
from redlatch.guard.handover import (
    LEFT_KEPT_MS,
    PENDING_KEPT_MS,
    final_marker,
    forgetful_copy,
    has_moved,
    is_awaited,
    left_marker,
    names_of,
    pending_marker,
)
from redlatch.guard.marker import FINAL, LEFT, PENDING, Marker
from redlatch.masters.master import Master
from redlatch.operate.markers import TRIES, CannotMove, Markers, Seen, each, every
from redlatch.operate.others import OTHERS_CURE, OtherLock, named, outlast
from redlatch.options import Options
from redlatch.votes.scripts import KEPT_MS
from redlatch.votes.units import MILLISECOND, SECOND, drift_ns, quorum_of
from redlatch.wire.engine.net import now_ns

# A client checks its markers for changes this often.
PULSES_NS = SECOND


@dataclass
class Mover:
    """Hands the locks of one list of masters over to another list.

    Args:
        gone: the names of old masters that will never run again, as the operator states.
        drift_factor: the largest of the clients.
        others: returns the locks of other clients on old masters.
    """

    old: list[Master]
    new: list[Master]
    markers: Markers
    gone: frozenset[str] = frozenset()
    drift_factor: float = Options.drift_factor
    others: Callable[[list[Master]], list[OtherLock]] = lambda _: []
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
        return [master for master in self.old if master.name not in self.gone]

    @property
    def _joining(self) -> list[Master]:
        old = {master.name for master in self.old}
        return [master for master in self.new if master.name not in old]

    def run(self, dry: bool = False) -> None:
        if self._previous == self._successors:
            # The handover would leave the masters permanently.
            raise CannotMove("both lists have the same masters, so there is nothing to hand over")
        if dry:
            found = self._read_all()
            if locks := self.others(self._asked):
                self.say(named(locks))
            self.say(f"it would take about {self._wait_ns(found) / 1e9:.0f} s, in which nobody gets a lock")
            return
        self._await_others()
        if not self._begin():
            self._leave_all()
            self._await_others()
        self._finish_all()

    def _await_others(self) -> None:
        # Other clients keep using the old masters, so their locks must expire first.
        locks = outlast(lambda: self.others(self._asked), self.say, self.sleep)
        if locks:
            left = any(self._is_begun(seen.marker, LEFT) for seen in self._read_all().values())
            state = "Nobody gets a lock until the handover has ended" if left else "Nothing was changed so far"
            raise CannotMove(f"{named(locks)}. {state}. {OTHERS_CURE}")

    # --- reading -------------------------------------------------------------------------------------

    def _read_all(self) -> dict[str, Seen]:
        masters = {master.name: master for master in [*self._asked, *self.new]}
        found, failed = each(masters.values(), self.markers.read)
        servers = [seen.report.run_id.partition(" ")[0] for seen in found.values()]
        if len(set(servers)) < len(servers):
            raise CannotMove("two of the masters are the same server: they have one run_id")
        old = {master.name for master in self.old}
        for name, seen in found.items():
            self._check(name, seen.marker, name in old)
        left = any(self._is_begun(seen.marker, LEFT, FINAL) for seen in found.values())
        for name, error in failed.items():
            if name in old or not left:
                raise error
        self._choose(found)
        return found

    def _check(self, name: str, marker: Marker | None, old: bool) -> None:
        if marker is None or self._is_final(marker) or is_awaited(marker, self._successors):
            return
        if old and marker.masters == self._previous and marker.stage == FINAL:
            return
        if not old and marker.stage == LEFT and marker.successors == self._previous:
            # An earlier handover has ended, and its successors are in use.
            return
        if old and marker.stage == LEFT:
            if marker.masters == self._previous and marker.successors == self._successors:
                return
            raise CannotMove(f"{name} was left for {', '.join(marker.successors)} already: end that handover first")
        raise CannotMove(
            f"{name} is one of {marker.shown_masters()} (stage {marker.stage}): name the masters as its clients do, "
            "or take another server"
        )

    def _is_final(self, marker: Marker | None) -> bool:
        return has_moved(marker, self._previous, self._successors)

    def _is_begun(self, marker: Marker | None, *stages: str) -> bool:
        if marker is None or marker.stage not in stages:
            return False
        if marker.stage == LEFT:
            return (marker.masters, marker.successors) == (self._previous, self._successors)
        return (marker.previous, marker.masters) == (self._previous, self._successors)

    def _choose(self, found: dict[str, Seen]) -> None:
        markers = [seen.marker for seen in found.values() if seen.marker is not None]
        known = [marker for marker in markers if marker.masters == self._previous and marker.stage in (FINAL, LEFT)]
        # An earlier marker belongs to another handover between the same lists.
        founded = max([marker.attempt for marker in known if marker.stage == FINAL], default=0)
        begun = [marker.attempt for marker in markers if self._is_begun(marker, PENDING, LEFT, FINAL)]
        begun = [number for number in begun if number > founded]
        if not self._asked:
            raise CannotMove("--gone names all old masters: nobody can say which locks they have")
        if not known and not begun:
            raise CannotMove(
                f"no master has a marker of {', '.join(self._previous)}: no client uses that list with this prefix; "
                "name the masters as the clients do"
            )
        # Their max_ttl may differ while clients raise it.
        if known:
            longest = max([marker.longest for marker in known])
            self._known = replace(known[0], max_ttl=longest, raised=0)
        number = (max(1, time.time_ns() // 1000) * RANDOM_VALUES + random.randrange(RANDOM_VALUES)) * ATTEMPTS + 1
        newest = max([marker.attempt for marker in markers], default=0)
        self.number = max(begun) if begun else max(number, newest + 1)

    # --- writing -------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Mark the masters that are only in the new list as pending; return True if a new master is final already.

        While no old master is left, another mover could end the handover before the markers are there. So they are
        written only within the shortest time that a handover takes. After that, a master without a marker may have been
        final.
        """
        for _ in range(TRIES):
            began_ns = now_ns()
            found = self._read_all()
            if any(self._is_final(seen.marker) for seen in found.values()):
                return True
            left = any(self._is_begun(seen.marker, LEFT) for seen in found.values())
            within_ns = None if left else self._shortest_wait_ns(found) - (now_ns() - began_ns)
            joining = [master for master in self._joining if master.name in found]

            def make_pending(master: Master, left: bool = left, within_ns: int | None = within_ns) -> Seen:
                seen = found[master.name]  # noqa: B023 - it is used before the next turn of the loop
                if self._is_begun(seen.marker, PENDING) and seen.keeps(PENDING, self.number):
                    return seen
                marker = self._pending(master, seen, forgetful=left)
                return self.markers.write(master, seen, marker, PENDING_KEPT_MS, within_ns)

            pending = every(joining, make_pending)
            if all(seen.keeps(PENDING, self.number) for seen in pending.values()):
                self.say(f"pending: {', '.join(self._successors)}")
                return False
        raise CannotMove("the markers of the new masters change all the time: is another handover under way?")

    def _pending(self, master: Master, seen: Seen, forgetful: bool) -> Marker:
        # A `forgetful` master may have had a pending marker, and been final since then.
        marker = pending_marker(self._old_marker(), seen.report, master.name, self._successors, self.number)
        return forgetful_copy(marker, seen.report, master.name, marker.wall) if forgetful else marker

    def _leave(self, master: Master) -> Seen:
        def wanted(seen: Seen) -> Marker | None:
            marker = seen.marker
            if self._is_final(marker) or self._is_ours_left(seen):
                return None
            self._check(master.name, marker, True)
            # No master's process is "": a marker made here is that of a forgetful master.
            old = marker or replace(self._old_marker(), run_id="", master=master.name)
            # A larger value that a client has just raised is not on all masters.
            agreed = self._old_marker().max_ttl
            old = replace(old, max_ttl=agreed, raised=old.longest if old.longest > agreed else 0)
            return left_marker(old, seen.report, self._successors, self.number)

        return self.markers.ensure(master, wanted, lambda _: LEFT_KEPT_MS)

    def _old_marker(self) -> Marker:
        if self._known is None:
            raise CannotMove("no old master has a marker any more, and the handover has not ended")
        return self._known

    def _is_ours_left(self, seen: Seen) -> bool:
        return self._is_begun(seen.marker, LEFT) and seen.keeps(LEFT, self.number)

    def _leave_all(self) -> None:
        """Mark all old masters as left, and wait until their locks have expired or a new master is final.

        Begin again if a master has forgotten meanwhile that it was left.
        """
        while True:
            # Of two movers to different lists, only the one that is first on this master continues.
            first, *others = sorted(self._asked, key=lambda master: master.name)
            left = every([first], self._leave) | every(others, self._leave)
            acknowledged_ns = now_ns()
            if any(self._is_final(seen.marker) for seen in left.values()):
                return
            wait_ns = self._wait_ns(left)
            self.say(f"left: {', '.join(left)}; waiting {wait_ns / 1e9:.1f} s for the locks to expire")
            while (left_ns := acknowledged_ns + wait_ns - now_ns()) > 0:
                self.sleep(left_ns / 1e9)
            again = every(self._asked, self.markers.read)
            if any(self._is_final(seen.marker) for seen in again.values()):
                return
            if all(seen.report.marker == left[name].report.marker for name, seen in again.items()) and all(
                [self._is_ours_left(seen) for seen in again.values()]
            ):
                return
            self.say("a master has forgotten that it was left; beginning again")

    def _wait_ns(self, found: dict[str, Seen]) -> int:
        """Return how long locks acquired with old votes may live, plus the time between two pulses.

        This is the longest ttl in use if enough masters that have forgotten nothing report it; otherwise `max_ttl`.
        """
        old = {master.name for master in self._asked}
        markers = [
            (seen.marker, seen.report) for name, seen in found.items() if name in old and seen.marker is not None
        ]
        sure = [marker.horizon for marker, report in markers if marker.sure and marker.run_id == report.run_id]
        needed = len(self.old) - quorum_of(len(self.old)) + 1
        longest = max([marker.longest for marker, _ in markers], default=self._known.longest if self._known else 0)
        ttl_ms = max(sure) if len(sure) >= needed else longest
        return ttl_ms * MILLISECOND + drift_ns(ttl_ms, self.drift_factor) + PULSES_NS

    def _shortest_wait_ns(self, found: dict[str, Seen]) -> int:
        """Return the shortest wait of any mover that has read at least as much as this one."""
        markers = [seen.marker for seen in found.values() if seen.marker is not None]
        horizons = [marker.horizon for marker in markers if marker.masters == self._previous]
        return min(horizons, default=0) * MILLISECOND + PULSES_NS

    def _finish_all(self) -> None:
        # Clients later make those final that cannot be reached now.
        done, failed = each(self.new, self._finish)
        final = [name for name, seen in done.items() if self._is_final(seen.marker)]
        for name in done.keys() - set(final):
            self.say(f"{name} is not final: clients keep it out until it may vote")
        for error in failed.values():
            self.say(f"{error}; clients make it final when it is back")
        if len(final) < quorum_of(len(self.new)):
            raise CannotMove(
                f"only {len(final)} of {len(self.new)} new masters are final, which is no quorum: run this once more "
                "when the others can be reached"
            )
        self.say(f"final: {', '.join(sorted(final))}")

    def _finish(self, master: Master) -> Seen:
        def wanted(seen: Seen) -> Marker | None:
            marker = seen.marker
            if self._is_final(marker):
                return None
            if marker is None and master in self._joining:
                return self._pending(master, seen, forgetful=True)
            if marker is None or not self._is_begun(marker, PENDING, LEFT):
                return None
            if not seen.keeps(marker.stage, self.number):
                return None
            return final_marker(marker, master.name)

        return self.markers.ensure(master, wanted, lambda _: KEPT_MS)
