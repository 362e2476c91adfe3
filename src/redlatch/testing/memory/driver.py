"""State and steps shared by both drivers in memory. All masters answer at once, so a call waits for callers or time."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from functools import partial
from typing import Any

from redlatch.drivers.base import BaseDriver
from redlatch.drivers.upkeep import Question, Renewal, work_of
from redlatch.errors import LockError
from redlatch.quorum.calls import Calls
from redlatch.quorum.claim import ASKING, RELEASING, UNDOING, WAITING
from redlatch.quorum.effects import Answer, Call, Send, Steps
from redlatch.quorum.hold import Hold
from redlatch.quorum.upkeep import Term
from redlatch.quorum.upkeep_schedule import LONGEST_NS, UpkeepSchedule
from redlatch.quorum.waiting.queues import QueueEntry
from redlatch.testing.memory.masters import MemoryMasters
from redlatch.testing.memory.timeline import Timeline, Wait
from redlatch.votes.ballot import Ballot
from redlatch.votes.commands import Command
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED

# Seconds to connect to a quorum, and then to the other masters.
QUORATE_WITHIN, COMPLETE_WITHIN = 4.0, 0.25

DRAIN_NS = 1 * SECOND

Performing = Generator[Wait, None, Any]


class VirtualCalls(Calls):
    """The calls of a client in memory. Their timeouts limit how far time may jump."""

    __slots__ = ("_timeline",)

    def __init__(self, timeline: Timeline, **settings: Any) -> None:
        super().__init__(clock=timeline.clock, **settings)
        self._timeline = timeline

    def acquire(
        self,
        hold: Hold,
        ttl_ms: int,
        timeout: float | None,
        ticket: object,
        lock: Any = None,
    ) -> Steps:
        self._timeline.note_timeout(self.clock.now() + ttl_ms * MILLISECOND)
        return super().acquire(hold, ttl_ms, timeout, ticket, lock)

    def _give_up_ns(self, timeout: float | None) -> int | None:
        until_ns = super()._give_up_ns(timeout)
        self._timeline.note_timeout(until_ns or 0)
        return until_ns

    def _until_ns(self, timeout: float | None) -> int:
        until_ns = super()._until_ns(timeout)
        self._timeline.note_timeout(0 if timeout is None else until_ns)
        return until_ns


class _VirtualSchedule(UpkeepSchedule):
    def expect_to_run(self, heartbeat_ns: int) -> None:
        """Do nothing: a jump of virtual time is no pause of the process."""


class MemoryDriver(BaseDriver):
    def __init__(self, memory: MemoryMasters, *args: Any, gil_patience_ns: int = -1) -> None:
        super().__init__(*args)
        self.schedule = _VirtualSchedule(self._quorum)
        self._memory = memory
        self._timeline = memory.timeline
        self._connected = False
        self.due_ns = UNBOUNDED
        self._timeline.join(weakref.ref(self))

    # --- calls ---------------------------------------------------------------------------------------------

    def _performing(self, steps: Steps) -> Performing:
        try:
            if not self._connected:
                yield from self._connecting()
            elif not self._lifecycle.usable:
                self._connections.check()
            for effect in steps:
                if isinstance(effect, Send):
                    self._submit(effect.ballots)
                    continue
                if not self._lifecycle.usable:
                    self._connections.check()
                if isinstance(effect, Answer):
                    return effect.value
                yield from self._awaiting(effect)
        except BaseException as error:
            steps.close()
            if isinstance(steps, Call):
                steps.recover(self, error)
            self.wake_called()
            raise
        self.wake_called()
        return steps.end() if isinstance(steps, Call) else None

    def _awaiting(self, effect: Any) -> Performing:
        if isinstance(effect, list):
            for ballot in effect:
                yield from self._waiting_for(ballot)
        elif isinstance(effect, Ballot):
            effect.waiter = self
            self._submit([effect])
            yield from self._waiting_for(effect)
        elif isinstance(effect, QueueEntry):
            self.due_ns = min(self.due_ns, self._clock.now() + LONGEST_NS)
            yield from self._waiting_for(effect)
            if not self._lifecycle.usable:
                self._connections.check()
        else:
            yield Wait(self._connections.is_closing, effect.until_ns)

    def _waiting_for(self, awaited: Ballot | QueueEntry) -> Performing:
        if not awaited.decided:
            yield Wait(partial(self._is_over, awaited), awaited.until_ns)
        if isinstance(awaited, Ballot) and not awaited.decided:
            self._connections.record_silent(awaited)

    def _is_over(self, awaited: Ballot | QueueEntry) -> bool:
        return awaited.decided or not self._lifecycle.usable or awaited.until_ns <= self._clock.now()

    def _connecting(self) -> Performing:
        connections = self._connections
        connections.check()
        if connections.fleet is None:
            connections.make_fleet()
        connections.start()
        self._timeline.settle()
        yield Wait(connections.is_quorate, self._clock.now() + int(QUORATE_WITHIN * SECOND))
        yield Wait(connections.is_complete, self._clock.now() + int(COMPLETE_WITHIN * SECOND))
        connections.check()
        self._connected = True

    def _submit(self, ballots: list[Ballot]) -> None:
        if not (self._lifecycle.closed or self._lifecycle.forked):
            for ballot in ballots:
                self._connections.fleet.submit(ballot)
            self._connections.fleet.flush()
            self._timeline.touch()
            self._timeline.settle()

    def send(self, commands: list[Command]) -> None:
        fleet = self._connections.fleet
        if fleet is not None:
            with self._timeline.monitor:
                self._submit([fleet.ballot_of(command) for command in commands])

    def wake_called(self) -> None:
        with self._timeline.monitor:
            self.queues.called.clear()
            self._timeline.settle()

    # --- an actor of the timeline --------------------------------------------------------------------------

    def turn(self) -> bool:
        fleet = self._connections.fleet
        if fleet is None or self._lifecycle.closed or self._lifecycle.forked:
            return False
        busy = self._take_arrivals()
        if fleet.staged or any([fleet.wires.unsent(link.index) for link in fleet.links]):
            fleet.flush()
            busy = True
        busy = self._memory.serve() or busy
        fleet.pump(0)
        return self._handle_events() or fleet.staged or busy

    def _take_arrivals(self) -> bool:
        arrivals = self._connections.arrivals
        came = bool(arrivals)
        while arrivals:
            if self._connections.arrive(*arrivals.popleft()):
                self.due_ns = 0
            if self.queues.watches.connected(self._connections.fleet):
                self.due_ns = 0
        return came

    def _handle_events(self) -> bool:
        fleet, watches = self._connections.fleet, self.queues.watches
        busy = bool(fleet.decided or fleet.fallen or fleet.changed)
        fleet.decided.clear()
        while fleet.fallen:
            link, sock = fleet.fallen.pop()
            watches.notify_all()
            if sock is not None:
                sock.close()
            if self._connections.redial(link):
                self.due_ns = 0
        while fleet.changed:
            if watches.changed(*fleet.changed.pop()):
                self.due_ns = 0
        self.queues.called.clear()
        return busy

    def attend(self) -> None:
        self.due_ns = UNBOUNDED
        if self._lifecycle.forked:
            return
        now = self._clock.now()
        terms, queue_ns = self.schedule.due(now), 0
        if not self._lifecycle.usable:
            self.schedule.conclude(terms, {}, LockError("the client cannot be used"))
        else:
            for work in work_of(self.schedule, self._quorum, terms):
                self._renew(work, self._performing(work.steps()))
            queue_ns = self.queues.expire(now)
            self.wake_called()
        self.schedule.next_ns(now)
        next_ns = self.schedule.next_ns(UNBOUNDED)
        due = [max(due_ns, now + MILLISECOND) for due_ns in (queue_ns, next_ns) if due_ns]
        self.due_ns = min([self.due_ns, *due])

    def _renew(self, renewal: Renewal | Question, performing: Performing) -> None:
        try:
            wait = next(performing)
        except StopIteration:
            renewal.succeed()
        except Exception as failure:
            renewal.fail(failure)
        else:
            wait.wake = partial(self._renew, renewal, performing)
            self._timeline.add(wait)
            return
        renewal.conclude()
        self.due_ns = self._clock.now()

    def add_upkeep(self, term: Term) -> None:
        with self._timeline.monitor:
            self.schedule.add(term)
            self.due_ns = min(self.due_ns, term.look_ns(self._clock.now()))
            if self._timeline.forgot:
                self.learn()
        # Also report a loss from before `on_lost` was set, as with real masters.
        self._timeline.report()

    def learn(self) -> None:
        # Begin the watch on the keys of new leases.
        self.schedule.next_ns(self._clock.now())
        self.schedule.keys.ask_now()
        for _ in range(2):
            # First the questions, then the losses that the answers have shown.
            self.attend()
            self._timeline.settle()

    def has_reports(self) -> bool:
        fleet = self._connections.fleet
        return bool(self.schedule.lost) or bool(fleet is not None and fleet.lost)

    def report(self) -> None:
        lost = self.schedule.lost
        while lost:
            try:
                lock, term, reason = lost.popleft()
            except IndexError:
                break
            lock._report_loss(reason, term)
        if self._connections.fleet is not None:
            self._connections.notify_lost()

    def deliver(self, index: int, outcome: Any) -> None:
        self._connections.arrivals.append((index, outcome))
        self._timeline.touch()

    # --- the end -------------------------------------------------------------------------------------------

    def _closing(self, release: bool, drain_ns: int | None) -> Performing:
        connections, fleet = self._connections, self._connections.fleet
        if self._lifecycle.closing:
            return
        connections.retire()
        if fleet is None or self._lifecycle.forked:
            connections.close()
            return
        try:
            if release:
                self.held_locks.end()
                self.attend()
                self.held_locks.release(self._submit)
            fleet.abandon()
            self._timeline.settle()
            yield Wait(self._is_idle, self._clock.now() + (DRAIN_NS if drain_ns is None else drain_ns))
            self.held_locks.report()
        finally:
            self.drop()

    def _is_idle(self) -> bool:
        busy = [hold for hold in self.queues.holds() if hold.state in (WAITING, ASKING, RELEASING, UNDOING)]
        return not (busy or self.queues.everybody() or self.held_locks.release(self._submit))

    def drop(self) -> None:
        with self._timeline.monitor:
            self._connections.close()
            # Then `attend` reports the loss of locks that are still held.
            self.due_ns = 0
