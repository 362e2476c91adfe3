"""The way of a client from one list of masters to the next (see `guard.handover`).

A client that was given both lists uses the old one, and goes over to the new one when it finds a final marker there
that names the old one (M1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import MasterRefused
from ..guard.actions import Admission
from ..guard.founding import read_quietly
from ..guard.handover import Successor, has_moved
from ..guard.handshake import GuardHandshake
from ..masters.master import Master
from ..quorum.quorum import Quorum
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED, Clock, quorum_of
from ..wire.dial.connect import Connection
from .arrivals import DIAL_TIMEOUT, Arrival, Deliver, MakeDialler, MakeFleet, MakeGuard, Switches, reject
from .connections import Connections
from .lifecycle import Lifecycle
from .master_log import MasterLog, report_set_back

logger = logging.getLogger("redlatch")

# The outcomes for new masters have indexes from here on while the client looks at them, and from twice this number
# while it uses them.
STRIDE = 1 << 16

# Seconds between two looks at a new master.
PAUSE = 0.25

# For how long failed attempts wait for a handover, besides the longest ttl. The mover may have to wait twice.
LONGEST_NS = 30 * SECOND

# For how long they wait after a connection broke, or the client went over: a handover may be the reason.
LOOK_NS = 2 * SECOND


def offset(deliver: Deliver, by: int) -> Deliver:
    return partial(_deliver, deliver, by)


def _deliver(deliver: Deliver, by: int, index: int, outcome: Arrival) -> None:
    deliver(index + by, outcome)


class SuccessorProbe:
    """Looks at new masters until one of them is final: once at first, and again while the old masters do not vote.

    Args:
        postpone: has `start` called again later, because no thread may have started.
    """

    def __init__(
        self, successor: Successor, deliver: Deliver, dialler: MakeDialler, postpone: Callable[[], None]
    ) -> None:
        self.successor = successor
        self._postpone = postpone
        self._resting = set(range(len(successor.masters)))
        delivered = offset(deliver, STRIDE)
        self._dialler: Any = dialler(successor.masters, DIAL_TIMEOUT, delivered, delivered, False)

    def start(self) -> None:
        for index in sorted(self._resting):
            self._look(index, 0.0)

    def close(self) -> None:
        self._dialler.close()

    def finds(self, index: int, outcome: Arrival, again: bool) -> bool:
        """Return whether a look has found that the handover is over."""
        reject(outcome)
        if not isinstance(outcome, Connection):
            # The dialler tries again.
            return False
        if has_moved(read_quietly(outcome.traits.report), self.successor.previous, self.successor.names):
            return True
        if again:
            self._look(index, PAUSE)
        else:
            self._resting.add(index)
        return False

    def _look(self, index: int, pause: float) -> None:
        # Until the thread runs, so that an interrupt loses nothing.
        self._resting.add(index)
        self._postpone()
        try:
            self._dialler.start(index, pause, GuardHandshake(self.successor.key))
        except RuntimeError as error:
            logger.info("cannot look at %s: %s", self.successor.masters[index].address, error)
        else:
            self._resting.discard(index)


def _postpone(undialled: dict[int, int], clock: Clock) -> None:
    undialled[STRIDE] = clock.now() + SECOND


class MovingConnections(Connections):
    def __init__(
        self,
        masters: list[Master],
        quorum: Quorum,
        make_fleet: MakeFleet,
        deliver: Deliver,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        super().__init__(
            masters,
            quorum.majority,
            quorum.clock,
            make_fleet,
            deliver,
            tracking,
            dialler,
            guard,
            quorum.doubts,
            lifecycle,
        )
        self.room = len(successor.masters)
        self._quorum = quorum
        # The index that the first master has in `arrive`.
        self._base = 0
        # A bound method would keep this object alive.
        postpone = partial(_postpone, self.lifecycle.undialled, self._clock)
        self._probe: SuccessorProbe | None = SuccessorProbe(successor, deliver, dialler, postpone)
        later = offset(deliver, 2 * STRIDE)
        self._make_new_dialler = partial(dialler, successor.masters, DIAL_TIMEOUT, later, later, tracking)
        self._make_new_switches = partial(Switches, successor.masters, later)
        self._new_log = MasterLog(successor.masters, quorum_of(len(successor.masters)), tracking)

    def start(self) -> None:
        super().start()
        self._look_ahead(LOOK_NS)

    def dial_again(self) -> None:
        if self.lifecycle.undialled.get(STRIDE, UNBOUNDED) <= self._clock.now():
            del self.lifecycle.undialled[STRIDE]
            if self._probe is not None:
                self._probe.start()
        super().dial_again()

    def _look_ahead(self, wait_ns: int) -> None:
        """Look at the new masters. Failed attempts wait for the result."""
        if self._probe is not None:
            self._quorum.moving_ns = max(self._quorum.moving_ns, self._clock.now() + wait_ns)
            self._probe.start()

    def arrive(self, index: int, outcome: Arrival) -> bool:
        """Take what was delivered for a master of any list (see `STRIDE`)."""
        own = index if outcome is None else index - self._base
        if 0 <= own < len(self._masters):
            return super().arrive(own, outcome)
        doubted_ns = self._doubts.until_ns
        if self._probe is None or not STRIDE <= index < 2 * STRIDE:
            reject(outcome)
        elif self._probe.finds(index - STRIDE, outcome, self._connected() < self.quorum):
            self._go_over(self._probe)
        return self._doubts.until_ns != doubted_ns

    def redial(self, link: Any) -> bool:
        if link not in self.fleet.links:
            return False
        doubted = super().redial(link)
        self._look_ahead(LOOK_NS)
        return doubted

    def _leave(self, index: int, connection: Connection, admission: Admission) -> None:
        if self._probe is not None and self._guard is not None and self._guard.left is not None:
            if self._guard.left.successors == self._probe.successor.names:
                address = self._masters[index].address
                cause = MasterRefused(f"{address} was left, and the new masters wait for the end of the handover")
                admission = admission._replace(cause=cause)
        super()._leave(index, connection, admission)
        longest_ms = self._quorum.max_ttl_ms if self._guard is None else self._guard.longest_ms
        self._look_ahead(longest_ms * MILLISECOND + LONGEST_NS)

    def _go_over(self, probe: SuccessorProbe) -> None:
        """Use the new masters from now on. After an interrupt this may be repeated."""
        masters, guard, *_ = probe.successor
        addresses = [master.address for master in masters]
        for left in (probe, self._dialler, self._switches):
            left.close()
        while self._waiting:
            self._waiting.popitem()[1].sock.close()
        self._quorum.use(tuple(addresses))
        self.quorum = self._quorum.majority
        # Leases that stand on old votes are over.
        self._doubts.add(self._clock.now() + 1)
        for index in range(len(masters)):
            self._doubts.note_other(self._clock.now() + 1, index)
        self.fleet.replace(addresses, self.quorum, ConnectionAbortedError("this list of masters was left"))
        self._masters, self._guard = masters, guard(partial(report_set_back, masters))
        self._log = self._new_log
        self.untried, self._tried, self._dialled = set(range(len(masters))), set(), []
        self.lifecycle.undialled, self._misconfigured = {}, {}
        self.lifecycle.usable = not (self.lifecycle.closing or self.lifecycle.forked)
        self._dialler, self._switches = self._make_new_dialler(), self._make_new_switches()
        self._base = 2 * STRIDE
        super().start()
        self._quorum.moving_ns = self._clock.now() + LOOK_NS
        # Last: until then an interrupt makes the next try repeat all of this.
        self._probe = None
        logger.info("the handover has ended; the masters are %s now", ", ".join(addresses))

    def _hang_up(self) -> None:
        super()._hang_up()
        if self._probe is not None:
            self._probe.close()
