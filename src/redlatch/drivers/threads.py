"""The driver for threads: the first thread that waits drives the sockets for all (see `leader`)."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

from redlatch.drivers.arrivals import (
    DIAL_TIMEOUT,
    GRACE,
    Arrival,
    MakeDialler,
    MakeGuard,
    reject,
)
from redlatch.drivers.background import BackgroundThread, PushReader, run_aside
from redlatch.drivers.closing import Closing
from redlatch.drivers.lifetime import await_answers_at_exit
from redlatch.drivers.upkeep import Question, Renewal, ReportThreads, work_of
from redlatch.errors import LockError
from redlatch.guard.handover import Successor
from redlatch.masters.master import Master
from redlatch.quorum.upkeep import Term
from redlatch.quorum.upkeep_schedule import LONGEST_NS

from ..quorum.calls import Calls
from ..quorum.effects import Answer, Call, Send, Steps
from ..quorum.waiting.queues import QueueEntry
from ..votes.ballot import Ballot
from ..votes.commands import Command
from ..votes.units import SECOND
from .base import BaseDriver
from .followers import Followers
from .leader import Leader
from .wake_chain import WakeChain, Watchers


class Driver(BaseDriver):
    def __init__(
        self,
        masters: list[Master],
        quorum: Calls,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor | None = None,
        gil_patience_ns: int = -1,
    ) -> None:
        super().__init__(masters, quorum, tracking, dialler, guard, successor)
        clock, connections = self._clock, self._connections
        self._background = background = BackgroundThread(self)
        self._watchers = watchers = Watchers(clock)
        chain = WakeChain(clock)
        self._leader = leader = Leader(connections, quorum, chain, watchers, background, gil_patience_ns)
        self._followers = Followers(leader, chain, connections, background, clock)
        self._closing = Closing(
            leader, chain, watchers, connections, background, quorum, self.schedule, self.held_locks
        )
        self._reports = ReportThreads(self.schedule.lost, partial(run_aside, "report"))
        self._push_reader = PushReader(self)
        self._connected = False
        # One lock for each process id, because a fork may copy a locked one.
        self._connecting: dict[int, threading.Lock] = {}

    def run(self, steps: Steps) -> Any:
        self._leader.enter()
        try:
            if not self._connected:
                self.connect()
            elif not self._lifecycle.usable:
                self._connections.check()
            return self._perform(steps)
        except BaseException as error:
            try:
                self._recover(steps, error)
            except BaseException:
                self._recover(steps, error)
                raise
            raise

    def _recover(self, steps: Steps, error: BaseException) -> None:
        """End interrupted or failed steps. After an interrupt this is called again."""
        steps.close()
        self._leader.recover()
        if isinstance(steps, Call):
            steps.recover(self, error)

    def _perform(self, steps: Steps) -> Any:
        called = self.queues.called
        for effect in steps:
            # Even while the client closes, so that nothing is left behind.
            if isinstance(effect, Send):
                self._leader.send(effect.ballots)
                continue
            if called:
                self._leader.wake_called()
            if not self._lifecycle.usable:
                self._connections.check()
            if isinstance(effect, Ballot):
                self._followers.ask(effect)
            elif isinstance(effect, list):
                self._followers.await_all(effect)
            elif isinstance(effect, Answer):
                return effect.value
            elif isinstance(effect, QueueEntry):
                self._followers.await_entry(effect)
            else:
                self._watchers.wait(self._connections.is_closing, effect.until_ns)
        if called:
            self._leader.wake_called()
        if not isinstance(steps, Call):
            return None
        call: Call = steps
        return call.end()

    def connect(self, all_of_them: bool = False) -> None:
        self._connections.check()
        with self._connecting.setdefault(os.getpid(), threading.Lock()):
            if self._leader.fleet is None:
                fleet = self._connections.make_fleet()
                self._background.start()
                await_answers_at_exit(self)
                # Last: after an interrupt before this, all of it is done again.
                self._leader.fleet = fleet
                # `close` ran meanwhile and found no fleet to close.
                if self._lifecycle.closed:
                    self._connections.close()
        if not self._connections.all_dialled():
            self._connections.arrivals.append((0, None))
            # Inside a call of this thread (a signal handler or a finalizer), that call takes the arrival.
            if not (self._leader.has_role() or self._lifecycle.closed):
                self._leader.serve()
            self._connections.raise_failure()
        wait = 2 * DIAL_TIMEOUT if all_of_them else GRACE
        self._watchers.wait(self._connections.is_quorate, self._clock.now() + int(2 * DIAL_TIMEOUT * SECOND))
        self._watchers.wait(self._connections.is_complete, self._clock.now() + int(wait * SECOND))
        self._connections.check()
        self._connections.raise_failure()
        self._connected = self._connections.all_dialled()

    def send(self, commands: list[Command]) -> None:
        fleet = self._leader.fleet
        if fleet is not None:
            self._leader.send([fleet.ballot_of(command) for command in commands])

    def wake_called(self) -> None:
        self._leader.wake_called()

    def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        self._closing.close(release, drain_ns)

    def await_answers(self, until_ns: int) -> None:
        self._closing.await_answers(until_ns)

    @property
    def closed(self) -> bool:
        return self._lifecycle.closed

    def read_late_replies(self) -> None:
        """Read late replies.

        Closing and `on_lost` may take long, so they run in threads of their own: renewals may be due meanwhile.
        """
        self._leader.read_late_replies()
        if self._closing.overdue and not run_aside("close", self._closing.close_late):
            self._closing.close_late()
        if self._connections.fleet.lost and not run_aside("report", self._connections.notify_lost):
            self._connections.notify_lost()

    # --- held locks --------------------------------------------------------------------------------

    def add_upkeep(self, term: Term) -> None:
        self.schedule.add(term)
        now = self._clock.now()
        self._background.attend_by(min(term.look_ns(now), now + self.schedule.longest_ns))

    def sockets(self) -> list[int]:
        if self._lifecycle.closed or not self.schedule.keys.watching():
            return []
        fleet = self._leader.fleet
        return [fleet.wires.fileno(link.index) for link in fleet.links if link.up]

    def attend(self) -> float | None:
        """Return after how many seconds to come again, None if never.

        Longer waits are left to threads of their own: the loss of another lock may be due meanwhile.
        """
        if self._lifecycle.forked:
            return None
        now = self._clock.now()
        terms = self.schedule.due(now)
        # An `on_lost` may take long.
        aside = not self.schedule.lost or self._reports.start()
        try:
            return self._attend(terms, now)
        finally:
            # Last, since an `on_lost` may raise; and whatever else has raised.
            if not aside:
                self._reports.report()

    def _attend(self, terms: list[Term], now: int) -> float | None:
        # Locks that are still held run out, and their loss is reported.
        if not self._lifecycle.usable:
            self.schedule.conclude(terms, {}, LockError("the client cannot be used"))
            next_ns = self.schedule.next_ns(now)
            if next_ns:
                self._background.wake_ns = next_ns
            return max(0, next_ns - now) / SECOND if next_ns else None
        for work in work_of(self.schedule, self._quorum, terms):
            if isinstance(work, Question):
                self._push_reader.start()
            if not run_aside("renew", self._renew, work):
                work.fail(LockError("it could not begin: no thread could start"))
                work.conclude()
        # Pushes are read even while no thread leads: all threads may wait for a holder of this client.
        if self.schedule.next_ns(now) or self.queues.by_key:
            self.read_late_replies()
        queue_ns = self.queues.expire(now)
        self._leader.wake_called()
        self._background.wake_ns = now + LONGEST_NS
        now = self._clock.now()
        due = [due_ns for due_ns in (queue_ns, self.schedule.next_ns(now), now + LONGEST_NS) if due_ns]
        self._background.wake_ns = min(due)
        return max(0, min(due) - now) / SECOND

    def _renew(self, renewal: Renewal | Question) -> None:
        try:
            self.run(renewal.steps())
            renewal.succeed()
        except Exception as failure:
            renewal.fail(failure)
        finally:
            renewal.conclude()
            self._background.attend_by(self._clock.now())

    # --- dialling ----------------------------------------------------------------------------------

    def deliver(self, index: int, outcome: Arrival) -> None:
        self._connections.arrivals.append((index, outcome))
        if self._lifecycle.closed:
            reject(outcome)
            return
        self._leader.serve()
