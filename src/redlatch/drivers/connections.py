"""The connections of a client: the fleet, the dialling of its masters, and whether the client may be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ClientClosed, ClientForked, ConfigurationError, LockError, MasterQuarantined, MasterRefused
from ..guard.actions import Admission
from ..guard.handshake import HandshakeReport
from ..health import Health
from ..masters.master import Master
from ..quorum.policy import Doubts
from ..stats import MasterStats
from ..votes.redaction import shown
from ..votes.units import SECOND, Clock
from ..wire.dial.connect import LONGEST_PAUSE, Connection, Dialler
from ..wire.dial.switches import Switch
from ..wire.dial.topology import Topology
from .arrivals import DIAL_TIMEOUT, Arrival, Backoff, Deliver, MakeDialler, MakeFleet, MakeGuard, Outcome, Switches
from .lifecycle import Lifecycle
from .lifetime import Resources, disown_at_fork
from .master_log import MOST_SHOWN, MasterLog, refuse_list, refuse_twin, report_set_back, twin_of
from .status import causes_of, health_of_all, stats_of_masters
from .upkeep import report_lost_releases

if TYPE_CHECKING:
    from ..guard.master import GuardedMaster
    from ..quorum.hold import Hold
    from ..votes.ballot import Ballot
    from ..wire.engine.link import Link

logger = logging.getLogger("redlatch")


class Connections(Resources):
    """One client's masters: which are connected, which are dialled, and what is wrong with the list.

    Only one thread may call it at a time: the leader, or the thread of the event loop.

    Args:
        guard: makes the guard's `Admissions` from a callback for clocks that were set back; None lets all masters vote.
    """

    is_cluster = False

    def __init__(
        self,
        masters: list[Master],
        quorum: int,
        clock: Clock,
        make_fleet: MakeFleet,
        deliver: Deliver,
        tracking: bool = True,
        dialler: MakeDialler = Dialler,
        guard: MakeGuard | None = None,
        doubts: Doubts | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        super().__init__(clock, lifecycle)
        self.quorum = quorum
        self.room = 0
        self.replicas = 0  # see `Fleet.synced`
        self.untried = set(range(len(masters)))  # masters whose first dialling has no outcome yet
        self._misconfigured: dict[int, ConfigurationError] = {}
        self._make_fleet = make_fleet
        self._masters = masters
        self._log = MasterLog(masters, quorum, tracking)
        self._guard = None if guard is None else guard(partial(report_set_back, masters))
        self._tried: set[int] = set()  # masters that were dialled, with whatever outcome
        self._doubts = Doubts() if doubts is None else doubts
        self._backoff = Backoff()
        self._dialler = dialler(masters, DIAL_TIMEOUT, deliver, deliver, tracking)
        self._switches = Switches(masters, deliver)

    def make_fleet(self) -> Any:
        guarded, addresses = self._guard is not None, [master.address for master in self._masters]
        self.fleet = self._make_fleet(addresses, self.quorum, self._clock, guarded, self.room)
        self._own()
        return self.fleet

    def _own(self) -> None:
        self.fleet.synced = self.replicas
        disown_at_fork(self)

    def start(self) -> None:
        """Dial; only the thread that takes arrivals calls this.

        After an interrupt the next call may dial a master twice; then `arrive` closes the second connection.
        """
        while (index := len(self._dialled)) < len(self._masters):
            self._dial(index)
            self._dialled.append(index)

    def _dial(self, index: int, pause: float = 0.0) -> None:
        self._tried.discard(index)
        handshake = None if self._guard is None else self._guard.handshake(index)
        self.lifecycle.undialled[index] = self._clock.now() + SECOND  # it stays due until the thread runs
        try:
            self._switches.listen(index)
            self._dialler.start(index, pause, handshake)
        except RuntimeError as error:
            self._tried.add(index)
            self._note_outcome(index, error)
        else:
            self.lifecycle.undialled.pop(index, None)

    def dial_again(self) -> None:
        """Dial masters again: no thread could start, its start was interrupted, or they were left."""
        for index, due_ns in list(self.lifecycle.undialled.items()):
            link = self.fleet.links[index] if due_ns <= self._clock.now() and index < len(self._masters) else None
            if link is not None and not link.up:
                self._dial(index)
            elif link is not None:
                self.lifecycle.undialled.pop(index, None)
                if not self._votes(link):
                    self.fleet.drop(index, link.cause)

    def size(self) -> int:
        return len(self._masters)

    def needed(self) -> int:
        return self.quorum

    def is_quorate(self) -> bool:
        return self._connected() >= self.quorum or self.is_complete()

    def is_complete(self) -> bool:
        return not self.untried or self.lifecycle.closing

    def check(self) -> None:
        if self.lifecycle.forked:
            raise ClientForked("client: it was connected before this process was forked; make a Client in the child")
        if self.lifecycle.closing:
            raise ClientClosed("client: it is closed")
        for error in self._misconfigured.values():
            raise type(error)(*error.args)  # a new one: the kept one would keep the frames of all its callers

    def refusal(self) -> str:
        """Return why no call can succeed, or ""."""
        try:
            self.check()
        except LockError as error:
            return str(error)
        return ""

    def health(self, held: Iterable[Hold] = ()) -> Health:
        refused, now_ns = self.refusal(), self._clock.now()
        unused = self.lifecycle.closing or self.lifecycle.forked
        return health_of_all(*self._present(), self.needed(), refused, unused, held, now_ns)

    def _present(self) -> tuple[list[Master], list[Link] | None, list[GuardedMaster] | None]:
        """Return the masters, their links once there are any, and what the guard knows of them."""
        links = None if self.fleet is None else self.fleet.links
        return self._masters, links, None if self._guard is None else self._guard.masters

    def stats(self) -> tuple[MasterStats, ...]:
        if self.fleet is None or self.lifecycle.closing or self.lifecycle.forked:
            return ()
        return stats_of_masters(self.health(), None if self._guard is None else self._guard.masters)

    def causes(self) -> dict[str, BaseException]:
        masters, links, guarded = self._present()
        return causes_of(masters, links, guarded is not None)

    def record_silent(self, ballot: Ballot) -> None:
        self.check()
        self.fleet.record_silent(ballot)

    def record_all_silent(self, ballots: list[Ballot]) -> None:
        for ballot in ballots:
            if not ballot.decided:
                self.record_silent(ballot)

    def notify_lost(self) -> None:
        """Run `on_lost` for unawaited releases that found the lock lost. Call it outside the I/O section."""
        report_lost_releases(self.fleet.lost, self._doubts, self._clock.now())

    def arrive(self, index: int, outcome: Arrival) -> bool:
        """Take what was delivered for a master; return whether leases have come into doubt.

        The guard may let a connection wait until it has seen the other masters. An error in here becomes the cause for
        which this master has no vote.
        """
        doubted_ns = self._doubts.until_ns
        try:
            if outcome is None:
                self.start()
            elif isinstance(outcome, Switch):
                self._switch(index, outcome)
            elif not isinstance(outcome, Topology):
                self._take(index, outcome)
        except Exception as error:
            if outcome is None:
                self.failure = error
                return False
            logger.exception("master %s cannot be used", self._masters[index].address)
            self._reject(index, outcome, LONGEST_PAUSE)
            self._note_outcome(index, error)
        return self._doubts.until_ns != doubted_ns

    def _switch(self, index: int, switch: Switch) -> None:
        if switch.moved:
            self._dialler.hurry(index)
        if (cause := self._switches.cause_to_leave(index)) is not None:
            self.fleet.drop(index, cause)
        if index in self._waiting:
            self._take(index, self._waiting[index])

    def _take(self, index: int, outcome: Outcome) -> None:
        self._tried.add(index)
        cause = self._switches.cause_to_leave(index, outcome) if isinstance(outcome, Connection) else None
        if isinstance(outcome, Connection) and cause is not None:
            self._reject(index, outcome)
            outcome = cause
        if self._guard is None or not isinstance(outcome, Connection):
            self._note_outcome(index, outcome)
        else:
            self._let_wait(index, outcome)
        reports = self._reports()
        for place, connection in list(self._waiting.items()):  # `close` may take some meanwhile
            self._admit(place, connection, reports)

    def _reject(self, index: int, outcome: Arrival, pause: float = 0.0) -> None:
        """Close a connection, and one to the same master that waits for a decision; then dial again."""
        rejected = [each for each in (outcome, self._waiting.get(index)) if isinstance(each, Connection)]
        for connection in rejected:
            connection.sock.close()
        if rejected:
            self._dial(index, pause)
        self._waiting.pop(index, None)  # last: after an interrupt it is found closed, and dialled again

    def _note_outcome(self, index: int, outcome: Outcome) -> None:
        self._place(index, outcome)
        self.untried.discard(index)  # last: a thread that sees that all were tried must see the outcomes, too

    def _admit(self, index: int, connection: Connection, reports: list[HandshakeReport | None]) -> None:
        twin = self._twin(index, connection.traits.run_id)
        if self.lifecycle.closed or self.fleet.links[index].up or connection.sock.fileno() < 0 or twin is not None:
            self._waiting.pop(index, None)
            self._note_outcome(index, connection)  # closes it
            return
        assert self._guard is not None
        admission = self._guard.decide(index, connection.traits.report, reports)
        if admission is None:
            return
        if admission.forgot:
            # No vote of this master counts that an earlier connection brought.
            self._doubts.add(self.fleet.links[index].lost_ns + 1, index)
        elif self._guard.monitor(index).out:
            self._doubts.note_other(self.fleet.links[index].lost_ns + 1, index)
        if admission.admitted:
            if admission.votes:
                if admission.kept:
                    self._doubts.clear(index)
                self._note_outcome(index, connection)
            else:
                self._leave(index, connection, admission)
            self._waiting.pop(index, None)
            return
        connection.sock.close()
        self._dial(index, admission.wait_ns / SECOND)
        if admission.cause is not None and admission.settled:
            self._note_outcome(index, admission.cause)
        if admission.asks_others:
            self.fleet.look()
        self._waiting.pop(index, None)  # last, as in `_reject`

    def _leave(self, index: int, connection: Connection, admission: Admission) -> None:
        """Let a master that was left for another list only take releases (see `guard.handover`)."""
        assert admission.cause is not None
        self.fleet.adopt(index, connection.sock, connection.traits, connection.traits.dialect)
        self._switches.adopt(index, connection)
        self.fleet.links[index].cause = admission.cause
        self.lifecycle.undialled[index] = self._clock.now() + SECOND
        if admission.kept:
            self._doubts.clear(index)
        self._log.report_unusable(index, admission.cause, self._connected(), len(self.untried) > 1)
        self.untried.discard(index)

    def _reports(self) -> list[HandshakeReport | None]:
        """Return the reports of the waiting connections, and None for each master out of reach."""
        missing = [index for index in self._tried if index not in self._waiting and not self.fleet.links[index].up]
        return [connection.traits.report for connection in list(self._waiting.values())] + [None] * len(missing)

    def _place(self, index: int, outcome: Outcome) -> None:
        first = index in self.untried
        if isinstance(outcome, Connection):
            if self.lifecycle.closed or self.fleet.links[index].up:  # it was dialled twice, after an interrupt
                outcome.sock.close()
                return
            if outcome.sock.fileno() < 0:  # an interrupt struck while it was adopted
                self._dial(index)
                return
            twin = self._twin(index, outcome.traits.run_id)
            if twin is None:
                self._adopt(index, outcome)
                return
            self._reject(index, outcome, LONGEST_PAUSE)
            outcome = refuse_twin(index, twin, self._masters)
        if first and isinstance(outcome, MasterRefused) and not isinstance(outcome, MasterQuarantined):
            self._misconfigured[index] = refuse_list(index, outcome, self._masters)
            self.lifecycle.usable = False
        self._log.report_unusable(index, outcome, self._connected(), len(self.untried) > 1)
        if not self.fleet.links[index].up:
            self.fleet.fail(index, outcome)

    def _adopt(self, index: int, connection: Connection) -> None:
        traits, link = connection.traits, self.fleet.links[index]
        self._log.report_server(index, traits, link.traits, self._guard is not None)
        if traits.doubted_ns:
            self._doubts.add(traits.doubted_ns, index)
        trusted = self._guard is not None and self._guard.settings.trust_persistence
        if link.traits is not None and link.traits.run_id != traits.run_id and not trusted:
            self._doubts.note_other(link.lost_ns + 1, index)
        self._backoff.note_adopted(index, self._clock.now())
        monitor = None if self._guard is None else self._guard.monitor(index)
        self.fleet.adopt(index, connection.sock, traits, traits.dialect, monitor)
        self._switches.adopt(index, connection)
        self._log.report_back(index, self._connected())
        self._forget_refusal(index)

    def _forget_refusal(self, index: int) -> None:
        if self._misconfigured.pop(index, None) is not None:
            self.lifecycle.usable = not (self.lifecycle.closing or self.lifecycle.forked or self._misconfigured)

    def _connected(self) -> int:
        return sum([self._votes(link) for link in self.fleet.links])

    def _votes(self, link: Link) -> bool:
        return bool(link.up) and (self._guard is None or link.monitor is not None)

    def _twin(self, index: int, run_id: str) -> int | None:
        there = {link.index: link.traits.run_id for link in self.fleet.links if link.up}
        there |= {other: connection.traits.run_id for other, connection in list(self._waiting.items()) if other < index}
        return twin_of(index, run_id, there, self._masters)

    def redial(self, link: Link) -> bool:
        """Dial the master of a broken link; return whether leases are in doubt because its votes may be void."""
        doubted_ns = link.cause.doubted_ns if isinstance(link.cause, MasterQuarantined) else 0
        self._doubts.add(doubted_ns, link.index)
        logger.info("connection to master %s broke: %s", link.address, shown(link.cause, MOST_SHOWN))
        self._dial(link.index, self._backoff.pause_after(link.index, link.cause, self._clock.now()))
        return doubted_ns > 0
