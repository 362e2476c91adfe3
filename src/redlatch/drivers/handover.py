"""The way of a client from one list of masters to the next: it looks at the new masters until one of them is final.

`guard.handover` describes the handover. A client that was given both lists uses the old one, and goes over to the new
one when it finds a final marker there that names the old one (M1).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from ..config import Master
from ..guard.actions import Admission
from ..guard.handover import Successor
from ..guard.handshake import GuardHandshake
from ..guard.marker import FINAL, Marker
from ..quorum.policy import Policy
from ..votes.units import MILLISECOND, SECOND, quorum_of
from ..wire.connect import Connection
from .arrivals import DIAL_TIMEOUT, Deliver, MakeDialler, MakeGuard, Muster, Outcome, turn_away
from .connections import Connections
from .master_log import MasterLog, report_set_back

logger = logging.getLogger("redlatch")

# The outcomes of dialling the masters of different lists have different indexes: those of the new masters begin here
# while the client looks at them, and at twice this number while it uses them.
STRIDE = 1 << 16

# Seconds between two looks at a new master.
PAUSE = 0.25

# For how long failed attempts wait for a handover, besides the longest ttl. The mover may have to wait twice.
LONGEST_NS = 30 * SECOND


def offset(deliver: Deliver, by: int) -> Deliver:
    """Return a `deliver` that adds a number to the indexes."""
    return partial(_deliver, deliver, by)


def _deliver(deliver: Deliver, by: int, index: int, outcome: Outcome) -> None:
    deliver(index + by, outcome)


class Scout:
    """Looks at new masters until one of them is final: once at first, and again while the old masters do not vote.

    Args:
        successor: the new masters.
        deliver: takes the outcomes from dialling threads.
        dialler: makes the dialler.
    """

    def __init__(self, successor: Successor, deliver: Deliver, dialler: MakeDialler) -> None:
        self.successor = successor
        self._resting = set(range(len(successor.masters)))
        delivered = offset(deliver, STRIDE)
        self._dialler: Any = dialler(successor.masters, DIAL_TIMEOUT, delivered, delivered, False)

    def start(self) -> None:
        """Look at every new master, unless that is under way."""
        for index in sorted(self._resting):
            self._look(index, 0.0)
            self._resting.discard(index)

    def close(self) -> None:
        """Stop looking; harmless when repeated."""
        self._dialler.close()

    def finds(self, index: int, outcome: Outcome, again: bool) -> bool:
        """Return whether a look has found that the handover is over.

        Args:
            again: whether to look again if not.
        """
        turn_away(outcome)
        if not isinstance(outcome, Connection):
            return False  # the dialler tries again
        if self._is_final(outcome):
            return True
        if again:
            self._look(index, PAUSE)
        else:
            self._resting.add(index)
        return False

    def _look(self, index: int, pause: float) -> None:
        self._dialler.start(index, pause, GuardHandshake(self.successor.key))

    def _is_final(self, connection: Connection) -> bool:
        try:
            marker = Marker.read(connection.traits.report.marker)
        except (ValueError, TypeError, RecursionError):
            return False
        successor = self.successor
        return (
            marker is not None
            and marker.stage == FINAL
            and marker.masters == successor.names
            and marker.previous == successor.previous
        )


class MovingConnections(Connections):
    """The masters of a client that goes over to others after a handover.

    Args:
        policy: must know when the masters are replaced.
        successor: the masters to go over to.
    """

    def __init__(
        self,
        masters: list[Master],
        policy: Policy,
        muster: Muster,
        deliver: Deliver,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor,
    ) -> None:
        super().__init__(masters, policy.quorum, policy.clock, muster, deliver, tracking, dialler, guard, policy.doubts)
        self.room = len(successor.masters)
        self._policy = policy
        self._base = 0  # the index that the first master has in `arrive`
        self._scout: Scout | None = Scout(successor, deliver, dialler)
        later = offset(deliver, 2 * STRIDE)
        self._make_new_dialler = partial(dialler, successor.masters, DIAL_TIMEOUT, later, later, tracking)
        self._new_log = MasterLog(successor.masters, quorum_of(len(successor.masters)), tracking)

    def start(self) -> None:
        """Begin to dial every master that is not dialled yet, and to look at the new masters."""
        super().start()
        if self._scout is not None:
            self._scout.start()

    def arrive(self, index: int, outcome: Outcome) -> bool:
        """Take the outcome of dialling a master of any list (see `STRIDE`)."""
        own = index - self._base
        if 0 <= own < len(self._masters):
            return super().arrive(own, outcome)
        doubted_ns = self._doubts.until_ns
        if self._scout is None or not STRIDE <= index < 2 * STRIDE:
            turn_away(outcome)  # of a list that was left
        elif self._scout.finds(index - STRIDE, outcome, self._connected() < self.quorum):
            self._go_over(self._scout)
        return self._doubts.until_ns != doubted_ns

    def redial(self, link: Any) -> bool:
        """Dial the master of a link that broke, unless its list was left."""
        if link not in self.fleet.links:
            return False
        doubted = super().redial(link)
        if self._scout is not None and self._connected() < self.quorum:
            self._scout.start()
        return doubted

    def _leave(self, index: int, connection: Connection, admission: Admission) -> None:
        super()._leave(index, connection, admission)
        if self._scout is not None:
            self._policy.moving_ns = self._clock.now() + self._policy.max_ttl_ms * MILLISECOND + LONGEST_NS
            self._scout.start()

    def _go_over(self, scout: Scout) -> None:
        """Use the new masters from now on. After an interrupt this may be repeated."""
        masters, guard, *_ = scout.successor
        addresses = [master.address for master in masters]
        for dialler in (scout, self._dialler):
            dialler.close()
        while self._waiting:
            self._waiting.popitem()[1].sock.close()
        self._policy.use(tuple(addresses))
        self.quorum = self._policy.quorum
        self._doubts.add(self._clock.now() + 1)  # leases that stand on old votes are over
        self.fleet.replace(addresses, self.quorum, ConnectionAbortedError("this list of masters was left"))
        self._masters, self._guard = masters, guard(partial(report_set_back, masters))
        self._log = self._new_log
        self.untried, self._tried, self._dialled = set(range(len(masters))), set(), []
        self.undialled, self._misconfigured = {}, {}
        self.usable = not (self.closing or self.forked)
        self._dialler = self._make_new_dialler()
        self._base = 2 * STRIDE
        super().start()
        self._scout = None  # last: until then an interrupt makes the next try repeat all of this
        logger.info("the handover has ended; the masters are %s now", ", ".join(addresses))

    def _hang_up(self) -> None:
        super()._hang_up()
        if self._scout is not None:
            self._scout.close()
