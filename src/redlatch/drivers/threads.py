"""The driver for threads: the first thread that waits drives the sockets for all.

Theory of operation. Whoever asks puts its ballot in the inbox and tries to take the role of driver. The
driver submits what is in the inbox, sends, polls and counts until its own ballot is decided; then it
leaves, and wakes one of the sleepers to take over. The others sleep on a lock of their own until their
ballot is decided or they are promoted. There is no I/O thread and no lock per connection; only what is still
owed when everybody has left is looked after by a janitor (see there).

Where many ballots are decided at once, their threads are woken one by one: each wakes the next when it goes to sleep
again with what it asked for in the inbox, and the last one the driver, who sleeps meanwhile and then has everybody's
commands to send. All at once they would only meet at the GIL, where each has to sleep and be woken a second time: for
64 threads that costs as much again as all the rest. Nobody need come back for that: a thread that leaves passes it on
at once when nobody drives, and a driver wakes all the others when nobody was woken for a moment. Threads that do not
come back at once wait for something else while they hold their locks; they are woken together, to wait together.

No wake-up is lost:
  * A sleeper enters the queue *before* it tries for the role a last time, and a driver looks at the queue
    *after* it gave the role up: one of the two sees the other.
  * The same holds for the inbox, which a leaving driver looks at once more.
  * A driver sets `_polling` before it looks at the inbox a last time and polls; who enqueues looks at
    `_polling` afterwards, and wakes the poll.

Which thread may take from the shared queues:
  * `_inbox` and `_arrivals`: any thread appends. Only the thread that has the role takes, so it may look first.
  * `_sleepers` and `Lines.called`: any thread appends, and any thread takes.
  * `_ready`: the thread that has the role appends, and any thread takes.
  * `_watchers`: each thread appends and removes an entry of its own.
  * `Fleet.lost`: the thread that has the role appends, and any thread takes.
Where any thread takes, the queue may become empty between a check and the next step. There the check only saves time,
and the step copes with an empty queue.

`close` waits for the role for a bounded time. A thread that keeps it longer may be using the sockets, so the janitor
closes them once the role is free. At interpreter shutdown a daemon thread may have died with the role. No other thread
runs then, so `close` takes the role over.

Ctrl-C may strike between any two bytecodes. The role is taken by `dict.setdefault`, one step that also
names the thread, so that a `finally` gives up just what was taken; where Ctrl-C strikes in that very
`finally`, the next one further up, or the thread's next call, finds the role still its own. The engine marks
half-done work as torn, and whoever leaves mends it.

Longer than most modules here, so that whoever asks whether a wake-up can be lost has one text to read.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redlatch.config import Master
from redlatch.drivers.janitor import Janitor
from redlatch.drivers.lifetime import DRAIN_NS, linger_at_exit, nested
from redlatch.drivers.roster import (
    DIAL_TIMEOUT,
    GRACE,
    MakeDialler,
    MakeGate,
    Outcome,
    Roster,
    turn_away,
    weakly,
)
from redlatch.drivers.warden import Warden
from redlatch.errors import ClientUnusable, LockError
from redlatch.protocol.renewal import LONGEST_NS, Agenda, Care, renewal_failed, tell_all

from ..protocol import batch, quorum
from ..protocol.acquire import acquire
from ..protocol.ballot import Ballot
from ..protocol.commands import Command
from ..protocol.effects import Answer, Steps, Tell
from ..protocol.hold import ASKING, HELD, Hold
from ..protocol.policy import MILLISECOND, SECOND, Policy
from ..protocol.waiting import Lines, Turn
from ..wire.engine import Fleet
from .sleeper import Sleeper

_ROLE = 0  # the one key of `Driver._role`

# A sleeper whose time is over lets the driver look at the sockets once more: after a pause of the whole
# process the answers may be there, unread.
_LAST_LOOK_NS = 50_000_000


# A thread that no other one has called in between for so long keeps the GIL while it waits.
ALONE_NS = 50_000_000


# More threads than this are woken one by one. When nobody was for STUCK_NS, or they took SLOW_NS each, they do more
# than to release their locks: then all are woken at once, for APART_NS.
FEW = 3
STUCK_NS = 500_000
SLOW_NS = 100_000
APART_NS = 100_000_000


class Driver:
    """Runs the protocol's generators for any number of threads."""

    def __init__(
        self,
        masters: list[Master],
        policy: Policy,
        tracking: bool,
        dialler: MakeDialler,
        gate: MakeGate | None,
        gil_patience_ns: int = -1,
    ) -> None:
        self._gil_patience_ns = gil_patience_ns  # -1: as long as replies usually take
        self._caller = 0  # the thread that called last,
        self._alone_ns = 0  # and from when on it counts as the only one; 0 when it does
        self._policy = policy
        self._clock = policy.clock
        self.protocol, self.batch = quorum, batch
        self.lines = Lines()
        self._roster = Roster(masters, policy.quorum, policy.clock, Fleet, weakly(self), tracking, dialler, gate)
        self._janitor = Janitor(self)
        self._warden = Warden(self)
        self._agenda = Agenda(policy)
        self._fleet: Any = None  # made by connect()
        self._role: dict[int, int] = {}  # the ident of the thread that drives; empty when none does
        self._inbox: deque[Ballot] = deque()  # ballots to submit
        self._arrivals = self._roster.arrivals
        self._sleepers: deque[Sleeper] = deque()
        self._ready: deque[Sleeper] = deque()  # whose ballot is decided, and who are woken one by one
        self._apart_ns = 0  # until when they are woken all at once
        self._begun_ns = self._passed = 0  # when that began, and how many were since
        self._passed_ns = 0  # when the last of them was,
        self._waker = 0  # and which thread it is: it wakes the next
        self._resting: Sleeper | None = None  # the driver, while they are
        self._polling = False
        self._connected = False
        self._hung_up = False  # `close` has come to its end
        self._taken: Ballot | None = None  # another thread's ballot that is being submitted, and goes out only once
        self._overdue = False  # it could not close the sockets in time; the janitor does
        self._connecting: dict[int, threading.Lock] = {}  # one per process id: a fork may copy a locked one
        self._watchers: deque[Sleeper] = deque()  # threads that wait for the roster to change

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the client was connected in."""
        return self._roster.forked

    def acquire(self, hold: Hold, ttl_ms: int, timeout: float | None, ticket: object) -> bool:
        """Claim a hold and try to win its lock.

        Args:
            ticket: identifies this claim. If this raises anything, the caller must call `abandon` with it.

        Returns:
            Whether it was won.

        Raises:
            AlreadyHeld, and what `run` does.
        """
        give_up = None if timeout is None else self._clock.now() + int(timeout * SECOND) if timeout else 0
        hold.claim(ticket)
        self.run(acquire(self._policy, self.lines, hold, ttl_ms, give_up))
        return hold.state == HELD

    def abandon(self, hold: Hold, ticket: object) -> None:
        """Leave nothing behind an acquire that was interrupted or that failed. If interrupted, it may be repeated."""
        if hold.ticket is ticket:
            try:
                undo = hold.undoing(ticket)  # a release behind whatever was sent
                if undo is not None:
                    self.tell([undo])
            finally:  # others may wait behind this hold
                self.leave_line(hold)
            hold.end_undoing(ticket)  # last: until then all of this can be done once more

    def release(self, hold: Hold, ttl_ms: int) -> None:
        """Release a held lock and wait for the answer. If this raises anything, the caller must call `insist`."""
        self.run(quorum.release(self._policy, self.lines, hold, self._policy.patience_ns(ttl_ms)))

    def part(self, hold: Hold, farewell: object) -> None:
        """Release a held lock without waiting. If this raises anything, the caller must call `insist`."""
        self.run(quorum.part(self._policy, self.lines, hold, farewell))

    def insist(self, hold: Hold, ticket: object, error: BaseException) -> None:
        """Have a release go on without its caller if it was interrupted. If interrupted, this may be repeated.

        Args:
            ticket: of the claim that is released. The lock object may have been acquired anew since then.
            error: what ended the release. After a `LockError` nothing is left to do, unless the client can no longer be
                used (`Roster.cuts_short`).
        """
        if isinstance(error, LockError) and not self._roster.cuts_short(hold):
            return
        if hold.ticket is ticket:
            try:
                again = hold.insist(ticket)
                if again is not None:
                    self.tell([again])
            finally:  # others may wait behind this hold
                self.leave_line(hold)

    def leave_line(self, hold: Hold) -> None:
        """Let the next in line have its turn."""
        self.lines.leave(hold, self._clock.now(), False)
        self._wake_called()

    def run(self, steps: Steps) -> bool | None:
        """Do what a generator yields, to its end or its answer, which is returned.

        Raises:
            ClientUnusable, ConfigurationError: what keeps this client from being used here.
            LockError: what the generator raises.
        """
        me = threading.get_ident()
        if self._role.get(_ROLE) == me:
            self._refuse_nested()
        if me != self._caller:
            self._caller = me
            self._alone_ns = self._clock.now() + ALONE_NS
        if not self._connected:
            self.connect()
        elif not self._roster.usable:
            self._roster.check()
        try:
            return self._perform(steps)
        except BaseException:
            try:
                self._end(steps)
            except BaseException:  # a second interrupt
                self._end(steps)
                raise
            raise

    def _end(self, steps: Steps) -> None:
        """End a generator that was interrupted or that failed. If interrupted, this may be repeated."""
        steps.close()  # it leaves its line
        if self.lines.called:
            self._wake_called()
        if self._role.get(_ROLE) == threading.get_ident():
            self._leave()
        elif not self._role:  # an interrupt may have struck just where a promotion is passed on
            self._promote()
            self._janitor.ring()  # reads for a sleeper that was taken off the queue and not woken

    def _perform(self, steps: Steps) -> bool | None:
        called = self.lines.called
        for effect in steps:
            if isinstance(effect, Tell):  # also when the client closes: nothing is to be left behind
                self._tell(effect.ballots)
                continue
            if called:
                self._wake_called()
            if not self._roster.usable:
                self._roster.check()
            if isinstance(effect, Ballot):
                self._ask(effect)
                if not effect.decided:
                    self._roster.blame(effect)
            elif isinstance(effect, list):
                self._await_all(effect)
            elif isinstance(effect, Answer):
                return effect.value
            elif isinstance(effect, Turn):
                self._await_turn(effect.ballot)
            else:
                self._watch(self._roster.is_closing, effect.until_ns)
        if called:
            self._wake_called()
        return None

    def connect(self) -> None:
        """Dial every master, and wait until a quorum is there and the others had a moment, too.

        Raises:
            ConfigurationError: a master is a replica or stands in the list twice.
            ClientClosed, ClientForked: as they say.
        """
        self._roster.check()
        with self._connecting.setdefault(os.getpid(), threading.Lock()):
            if self._fleet is None:
                fleet = self._roster.muster()
                self._janitor.start()
                linger_at_exit(self)
                self._fleet = fleet  # last: interrupted before it, all this is done again
                if self._roster.closed:  # `close` ran meanwhile and found no fleet to close
                    self._roster.close()
            self._roster.start()
        self._watch(self._roster.is_quorate, self._clock.now() + int(2 * DIAL_TIMEOUT * SECOND))
        self._watch(self._roster.is_complete, self._clock.now() + int(GRACE * SECOND))
        self._roster.check()
        self._connected = True

    def tell(self, commands: list[Command]) -> None:
        """Send commands to every master without waiting for an answer."""
        if self._fleet is not None:
            self._tell([self._fleet.ballot_of(command) for command in commands])

    def _tell(self, ballots: list[Ballot]) -> None:
        if self._roster.closed or self._roster.forked:
            return
        self._inbox.extend(ballots)
        if self._role.get(_ROLE) != threading.get_ident() or not nested():  # else the outer call sends it
            self._serve()

    def _refuse_nested(self) -> None:
        """Refuse a call inside a call of the same thread; clear away what an interrupt left of an earlier one.

        A signal handler or a finalizer that went on here would count replies for its own commands that the
        outer call has read and not counted yet.
        """
        if nested():
            raise ClientUnusable("client: this thread is using it already; no signal handler or finalizer may, too")
        self._leave()

    def close(self) -> None:
        """Undo what is under way, wait a bounded time for the answers, then close every connection."""
        if self._hung_up:
            return
        if self._role.get(_ROLE) == threading.get_ident():
            if self._roster.closing and nested():  # the outer call closes it
                return
            self._refuse_nested()
        drain_ns = 0  # if what follows is interrupted
        try:
            self._roster.retire()
            self._note_progress()
            if self._fleet is not None and not self._roster.forked:
                drain_ns = self._await_role()
        finally:
            try:
                self._hang_up(drain_ns)
            except BaseException:  # an interrupt
                self._hang_up(0)
                raise
        if self._fleet is not None and not self._roster.forked:
            self._roster.mourn()

    def _hang_up(self, drain_ns: int) -> None:
        """Close the connections, or leave that to the janitor if another thread drives. If interrupted, repeat it."""
        self._roster.retire()
        if self._fleet is None or self._roster.forked:
            self._roster.close()
            self._janitor.ring()  # a thread that is connecting may start the janitor: have it end
        elif self._role.get(_ROLE) == threading.get_ident():
            self._disconnect(drain_ns)
        else:  # the driving thread may be using the sockets; the janitor closes them when that thread has left
            self._overdue = True
            self._wake_everybody()
            self._janitor.ring()
        self._hung_up = True

    def _await_role(self) -> int:
        """Try to take the role of driver for a bounded time, to close the client.

        Returns:
            How long to wait for answers before the sockets are closed.
        """
        me, until = threading.get_ident(), self._clock.now() + DRAIN_NS
        while self._role.setdefault(_ROLE, me) != me and self._clock.now() < until:
            if sys.is_finalizing():
                # No other thread runs now. A daemon thread has died with the role, perhaps in the middle of an
                # operation, so no replies can be read.
                self._role[_ROLE] = me
                return 0
            self._fleet.wires.wake()  # the driving thread sees that the client is closing, and leaves
            time.sleep(0.0005)
        return DRAIN_NS

    def _disconnect(self, drain_ns: int) -> None:
        """Undo what is under way, wait up to `drain_ns` for answers, then close every connection; needs the role."""
        try:
            if self._roster.closed:  # an earlier call closed them, and was interrupted after that
                return
            self._take_all()
            self._fleet.abandon()
            self._wake_waiters()  # who leave the masters' queues
            until = self._clock.now() + drain_ns
            while (owing := self._fleet.owing()) or self.lines.everybody() or self._asking() or self._inbox:
                left = until - self._clock.now()
                if left <= 0:
                    break
                self._polling = True
                self._await_replies(left if owing else min(left, MILLISECOND))
                self._take_all()
        finally:
            self._roster.close()
            self._role.pop(_ROLE, None)
            self._wake_everybody()
            self._janitor.ring()  # it ends
            try:
                self._warden.ring(0)  # it ends once no lock is held
            except RuntimeError:
                pass  # no thread can start at interpreter shutdown

    def _asking(self) -> bool:
        """Tell whether anybody is between two steps of an acquire, and has something to undo yet."""
        return any([head.state == ASKING for head in list(self.lines.heads.values())])

    def _wake_everybody(self) -> None:
        """Wake every thread that is in a call, so that it sees that the client is closed."""
        self._wake_all()
        for sleeper in list(self._sleepers):
            sleeper.wake()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake everybody who waits in a line or for a change; for a client that closes."""
        for ballot in self.lines.everybody():
            if ballot.waiter is not None:
                ballot.waiter.wake()

    def linger(self, until_ns: int) -> None:
        """Wait for the answers to releases when the interpreter ends."""
        me = threading.get_ident()
        if self._fleet is None:  # no connection yet: `connect` was interrupted, or is still running
            return
        if self._roster.usable and self._role.setdefault(_ROLE, me) == me:  # else a daemon thread reads
            try:
                self._take_all()
                self._fleet.linger(until_ns)
            finally:
                self._leave()
        self._roster.mourn()

    # --- one ask -----------------------------------------------------------------------------------

    def _ask(self, ballot: Ballot) -> None:
        """Have a ballot decided, or its time pass."""
        me = threading.get_ident()
        try:
            if self._role.setdefault(_ROLE, me) == me:
                self._drive(ballot, ballot)
                return
        finally:
            if self._role.get(_ROLE) == me:
                self._leave()
        ballot.waiter = sleeper = Sleeper()
        try:
            self._inbox.append(ballot)
            self._wait_for(ballot, sleeper)
        except BaseException:
            self._withdraw(sleeper)
            raise

    def _await_all(self, ballots: list[Ballot]) -> None:
        """Have each of many ballots that were told decided, or its time pass.

        The last one first: replies come in order, so when it is decided mostly all are.
        """
        late_ns = 0  # whose time was over by then have had their last look
        for ballot in reversed(ballots):
            if ballot.decided or ballot.until_ns <= late_ns:
                continue
            ballot.waiter = sleeper = Sleeper()
            try:
                self._wait_for(ballot, sleeper)
            except BaseException:
                self._withdraw(sleeper)
                raise
            if not ballot.decided:
                late_ns = self._clock.now()
        for ballot in ballots:
            if not ballot.decided:
                self._roster.blame(ballot)

    def _await_turn(self, ballot: Ballot) -> None:
        """Sleep until another thread calls us, or our time is over; nobody who stands in line drives."""
        ballot.waiter = sleeper = Sleeper()
        self._warden.ring(self._clock.now() + LONGEST_NS)
        try:
            while not ballot.decided and self._roster.usable:
                left = ballot.until_ns - self._clock.now()
                if left <= 0:
                    break
                other = self._next_if_mine() if self._ready else None
                if not self._ready:
                    self._rouse()
                sleeper.sleep(left, other)
                sleeper.asleep = True
        except BaseException:
            self._withdraw(sleeper)
            raise
        if not self._roster.usable:
            self._roster.check()

    def _wake_called(self) -> None:
        """Wake whose turn has come, and who waits for a key that has changed."""
        called = self.lines.called
        while called:  # taken off when it is done, so that an interrupt loses none
            try:
                ballot = called[0]
                waiter = ballot.waiter
                if waiter is not None:  # else its thread is awake and looks itself
                    waiter.wake()
                if ballot.size and self._polling:  # who watches a key may be the one who polls
                    self._fleet.wires.wake()
                called.remove(ballot)
                if ballot.waiter is not waiter:  # it waits again, and `remove` may have removed a second call
                    ballot.waiter.wake()
            except (IndexError, ValueError):
                pass  # another thread was faster

    def _wait_for(self, ballot: Ballot, sleeper: Sleeper) -> None:
        """Sleep until another thread has driven our ballot to its verdict, or drive when nobody does."""
        try:
            self._sleep_or_drive(ballot, sleeper)
        finally:
            # A promotion that came while we were leaving is passed on; `asleep` first, so that either
            # the leaving driver sees it, or we see that there is no driver any more.
            sleeper.asleep = False
            if not self._role:
                self._promote()

    def _withdraw(self, sleeper: Sleeper) -> None:
        """Wake whom an interrupted thread would have woken, and count on it no more."""
        sleeper.asleep = False
        self._wake_next()

    def _sleep_or_drive(self, ballot: Ballot, sleeper: Sleeper) -> None:
        last_look = False
        me = threading.get_ident()
        while not ballot.decided and self._roster.usable:
            self._sleepers.append(sleeper)
            try:
                if self._role.setdefault(_ROLE, me) == me:
                    self._drive(ballot, None)
                    return
            finally:
                if self._role.get(_ROLE) == me:
                    self._leave()
            left = ballot.until_ns - self._clock.now()
            if left <= 0 and last_look:
                return
            last_look = left <= 0
            other = self._next_if_mine() if self._ready else None
            if not self._ready:
                self._rouse()
            sleeper.sleep(_LAST_LOOK_NS if last_look else left, other)
            sleeper.asleep = True  # before `decided` is looked at again, so that no verdict goes unheard

    # --- the role of driver ------------------------------------------------------------------------

    def _drive(self, ballot: Ballot, fresh: Ballot | None) -> None:
        """Move everybody's commands and replies until our own ballot is decided or its time is over.

        Args:
            ballot: our own.
            fresh: the same where it has not been submitted yet, else None.
        """
        fleet = self._fleet
        if not self._roster.usable:  # closed since our caller asked: there are no sockets any more
            return
        if self._next_asleep() is not None:
            self._rest()
        if fresh is not None:
            if self._inbox:  # our own release may be there: it goes first
                self._inbox.append(fresh)
            else:
                fleet.submit(fresh)
        while True:
            self._take_all()
            self._polling = True  # before the check: a thread that calls our ballot after it wakes the poll
            if ballot.decided:
                return
            left = ballot.until_ns - self._clock.now()
            self._await_replies(left)
            if ballot.decided or left <= 0 or not self._roster.usable:
                return

    def _await_replies(self, timeout_ns: int) -> None:
        """Wait for replies, unless the inbox or arrivals come first, and count them; the caller has set `_polling`."""
        fleet = self._fleet
        self._be_patient()
        if self._next_asleep() is not None:
            self._rest()
        elif not self._inbox and not self._arrivals:
            fleet.pump(timeout_ns)
        self._polling = False
        if fleet.decided or fleet.fallen or fleet.changed:
            self._settle()

    def _rest(self) -> None:
        """Sleep while threads are woken one by one: a driver that polls would meet each of them at the GIL."""
        self._resting = resting = Sleeper()
        try:
            resting.sleep(STUCK_NS, self._next_if_mine())
            while self._ready:
                resting.asleep = True
                now = self._clock.now()
                slow = now - self._begun_ns > STUCK_NS + SLOW_NS * self._passed
                if slow or now - self._passed_ns >= STUCK_NS:
                    self._apart_ns = now + APART_NS
                    self._wake_all()
                else:
                    resting.sleep(STUCK_NS)
            if self._passed_ns - self._begun_ns > SLOW_NS * self._passed:
                self._apart_ns = self._clock.now() + APART_NS
        finally:
            self._resting = None

    def _rouse(self) -> None:
        """Have the driver take what is enqueued."""
        resting = self._resting
        if resting is not None:
            resting.wake()
        elif self._polling:
            self._fleet.wires.wake()

    def _be_patient(self) -> None:
        """Keep the GIL while replies are about to come, unless other threads use this client, too.

        With a thread in the process that computes, each time it is given up costs 5 ms until it is had again; the wires
        find out whether there is one, and are patient only then. But threads of this client that want to enqueue need
        it, and cannot even say so: with 64 of them patience would cost half of the rate.
        """
        wires = self._fleet.wires
        if self._alone_ns and self._alone_ns <= self._clock.now():
            self._alone_ns = 0
        if self._alone_ns or self._sleepers or self._inbox:
            wires.patience_ns = 0
        elif self._gil_patience_ns < 0:
            wires.patience_ns = wires.usual_patience_ns()
        else:
            wires.patience_ns = self._gil_patience_ns

    def _take_all(self) -> None:
        """Submit what the others enqueued, and send."""
        fleet, inbox = self._fleet, self._inbox
        self._be_patient()
        if self._taken is not None:  # a second interrupt struck in `_leave`
            fleet.give_up(self._taken)
            self._taken = None
        while self._arrivals:  # taken off when it is done, so that an interrupt loses none
            self._roster.arrive(*self._arrivals[0])
            self._policy.polls = not fleet.quorum_pushes()
            self._note_progress()
            self._arrivals.popleft()
        if self._roster.undialled:
            self._roster.dial_again()
        while inbox:
            ballot = inbox[0]
            self._taken = ballot  # if an interrupt strikes before it was submitted, `_leave` lets it fail
            if ballot.command.releases:  # interrupted here, a release goes out twice rather than never
                fleet.submit(ballot)
                inbox.popleft()
            else:
                inbox.popleft()
                if not self._roster.closing:  # else nobody would undo it
                    fleet.submit(ballot)
            self._taken = None
        fleet.flush()
        if fleet.decided or fleet.fallen or fleet.changed:
            self._settle()

    def _settle(self) -> None:
        """Wake the owners of decided ballots, and have broken connections dialled again."""
        fleet = self._fleet
        while fleet.fallen:  # first: whose votes are void must not count for those who are woken now
            link, sock = fleet.fallen[-1]
            self.lines.stir_all()
            if sock is not None:
                sock.close()
            doubted_ns = self._roster.redial(link.index, link.cause)
            if doubted_ns:
                self._policy.doubt(doubted_ns)
                self._warden.hurry()  # what stands on them is verified
            fleet.fallen.pop()
        if fleet.decided:
            idle = self._next_asleep() is None
            while fleet.decided:  # taken off when it is done, so that an interrupt loses none
                sleeper = fleet.decided[-1].waiter
                sleeper.decided = True
                self._ready.append(sleeper)
                fleet.decided.pop()
            now = self._clock.now()
            if len(self._ready) <= FEW or now < self._apart_ns:
                self._wake_all()
            elif idle:
                self._begun_ns = now
                self._passed = 0
                self._wake_next()
        while fleet.changed:
            index, key = fleet.changed[-1]
            self.lines.changed(index, key)
            fleet.changed.pop()
        if self.lines.called:
            self._wake_called()

    def _next_asleep(self) -> Sleeper | None:
        """Return the next thread to be woken because its ballot is decided, or None.

        It leaves the queue when it is found awake, so that an interrupt before it is woken does not lose it.
        """
        while self._ready:
            try:
                sleeper = self._ready[0]
                if sleeper.asleep:
                    return sleeper
                self._ready.remove(sleeper)
            except (IndexError, ValueError):
                pass  # another thread was faster
        return None

    def _next_ready(self) -> Sleeper | None:
        """Return the same; it is about to be woken, and to wake the one after it."""
        sleeper = self._next_asleep()
        if sleeper is not None:
            self._passed_ns = self._clock.now()
            self._passed += 1
            self._waker = sleeper.thread
        return sleeper

    def _next_if_mine(self) -> Sleeper | None:
        """Return the next thread to be woken, if that is up to this one."""
        return self._next_ready() if self._waker == threading.get_ident() else None

    def _wake_next(self) -> None:
        sleeper = self._next_ready()
        if sleeper is not None:
            sleeper.wake()

    def _wake_all(self) -> None:
        while self._ready:
            self._wake_next()

    def _leave(self) -> None:
        """Give the role up, and see to it that somebody takes what is left to do."""
        self._polling = False
        self._resting = None
        try:
            self._fleet.mend()
            if self._taken is not None:
                self._fleet.give_up(self._taken)
                self._taken = None
            if self._fleet.staged:  # a reply asked for a script's text
                self._fleet.flush()
            self._settle()
        finally:
            del self._role[_ROLE]
            self._promote()
            if self._fleet.unanswered() or self._fleet.lost:
                self._janitor.ring()

    def _promote(self) -> None:
        """Wake a sleeper to drive; where nobody sleeps, do what is left."""
        while self._sleepers:
            try:
                sleeper = self._sleepers.popleft()
            except IndexError:  # another promoting thread was faster
                break
            if sleeper.asleep and not sleeper.decided:
                sleeper.wake()
                return
        self._wake_next()  # with nobody to drive, each passes it on when it leaves
        if self._inbox or self._arrivals:
            self._serve()

    def _serve(self) -> None:
        """Submit and send what is enqueued, or wake the driver to do it."""
        me = threading.get_ident()
        try:
            if self._role.setdefault(_ROLE, me) == me:
                self._take_all()
        finally:
            if self._role.get(_ROLE) == me:
                self._leave()
        if self._polling:
            self._fleet.wires.wake()

    def tidy(self) -> bool:
        """Count the replies that came when nobody was in a call; False when none will come any more."""
        me = threading.get_ident()
        try:
            if self._roster.usable and self._role.setdefault(_ROLE, me) == me:
                self._take_all()
                self._polling = True
                self._await_replies(0)
            elif self._overdue and not self._roster.closed:
                self._close_late()
        finally:
            if self._role.get(_ROLE) == me:
                self._leave()  # it rings again while replies are owed
        self._roster.mourn()
        return not self._roster.closed

    def _close_late(self) -> None:
        """Close the connections that `close` left open; if another thread drives, wake it and try again later."""
        me = threading.get_ident()
        if self._role.setdefault(_ROLE, me) == me:
            self._disconnect(DRAIN_NS)
        else:
            self._fleet.wires.wake()
            self._janitor.ring()

    # --- held locks --------------------------------------------------------------------------------

    def care_for(self, care: Care) -> None:
        """Renew a lock, or tell its loss, from now on."""
        self._agenda.add(care)
        self._warden.ring(care.due_ns)

    def attend(self) -> float | None:
        """Do what is due for held locks; return after how many seconds to come again, None if never.

        Longer waits are left to threads of their own: the loss of another lock may be due meanwhile.
        """
        if self._roster.forked:
            return None
        now = self._clock.now()
        renewed, lost = self._agenda.due(now)
        if lost:
            try:
                _thread.start_new_thread(tell_all, (lost,))  # whoever is told may take its time
                lost = []
            except RuntimeError:  # no more threads are to be had
                pass
        try:
            return self._attend(renewed, lost, now)
        finally:
            tell_all(lost)  # last, since `on_lost` may raise; and whatever else has raised

    def _attend(self, renewed: list[Care], lost: list[Any], now: int) -> float | None:
        """Renew what is due, and look after the waiters; add losses to `lost`."""
        if not self._roster.usable:  # what is still held runs out, and that is told
            self._agenda.settle(renewed, {}, LockError("the client cannot be used"), now)
            next_ns = self._agenda.next_ns(now)
            self._warden.wake_ns = next_ns
            return max(0, next_ns - now) / SECOND if next_ns else None
        if renewed:
            try:
                _thread.start_new_thread(self._renew, (renewed,))
            except RuntimeError as error:
                failure = LockError(f"the renewal could not begin: {error}")
                lost += self._agenda.settle(renewed, {}, failure, now)
        if self._agenda.next_ns(now):  # what masters push is heard also while nobody is in a call
            self.tidy()
        line_ns = self.lines.expire(now)
        self._wake_called()
        self._warden.wake_ns = now + LONGEST_NS
        now = self._clock.now()
        due = [due_ns for due_ns in (line_ns, self._agenda.next_ns(now), now + LONGEST_NS) if due_ns]
        self._warden.wake_ns = min(due)
        return max(0, min(due) - now) / SECOND

    def _renew(self, renewed: list[Care]) -> None:
        """Renew locks together; in a thread of its own."""
        errors: dict[int, LockError] = {}
        policy, now = self._policy, self._clock.now()
        error: LockError | None = LockError("the renewal failed")
        try:
            steps = [quorum.extend(policy, care.hold, care.ttl_left_ms(policy, now)) for care in renewed]
            self.run(batch.together(steps, errors))
            error = None
        except Exception as failure:
            error = renewal_failed(failure)
        finally:
            lost = self._agenda.settle(renewed, errors, error, self._clock.now())
            try:
                self._warden.ring(min([care.due_ns for care in renewed]))
            finally:
                tell_all(lost)

    # --- dialling ----------------------------------------------------------------------------------

    def deliver(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of a dialling thread, in that thread."""
        self._arrivals.append((index, outcome))
        if self._roster.closed:
            turn_away(outcome)
            return
        self._serve()

    def _note_progress(self) -> None:
        for sleeper in list(self._watchers):
            sleeper.wake()

    def _watch(self, done: Callable[[], bool], until_ns: int) -> None:
        """Sleep until `done`, which only the roster can bring about, or until `until_ns`.

        Not on a threading.Event: an interrupt inside its `set` or `wait` leaves its lock taken for ever.
        """
        sleeper = Sleeper()
        self._watchers.append(sleeper)
        try:
            while not done() and until_ns > self._clock.now():
                sleeper.sleep(until_ns - self._clock.now())
                sleeper.asleep = True
        finally:
            self._watchers.remove(sleeper)
