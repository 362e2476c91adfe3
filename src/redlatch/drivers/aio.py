"""The driver for asyncio (and uvloop): one flush a loop turn, replies wake their tasks, one timer for all.

Everything runs in the loop's thread. Commands of one turn leave in one write per master (`call_soon`);
what a socket has is parsed once per readable event. Only dialling happens elsewhere (`wire.connect`).

A client that is forgotten without `close` is collected. While a reference to the client or to one of its locks exists,
the loop keeps the driver alive: its callbacks are methods of the driver, because weak references would cost time with
each reply. When the last reference is gone (see `stands_for`), weak callbacks replace them. From then on only
unfinished calls keep the driver alive: each waiting call has a timer, whose callback is a method of the driver.

Longer than most modules here, as its twin for threads is: whoever asks which turn of the loop does what has one text.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from redlatch.config import Master
from redlatch.drivers.lifetime import DRAIN_NS, linger_at_exit
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
from redlatch.errors import LockError, WrongLoop
from redlatch.protocol.renewal import LONGEST_NS, Agenda, Care, renewal_failed, tell_all

from ..protocol import batch, quorum
from ..protocol.acquire import acquire
from ..protocol.ballot import Ballot
from ..protocol.commands import Command
from ..protocol.effects import Answer, Pause, Steps, Tell
from ..protocol.hold import HELD, Hold
from ..protocol.policy import SECOND, UNBOUNDED, Policy
from ..protocol.waiting import Lines, Turn
from ..wire.engine import Fleet
from .deadlines import Deadlines
from .verdict import Verdict

# So many commands leave at once, and not with what else this turn of the loop brings: the masters can begin.
MANY = 64


class Driver:
    """Runs the protocol's generators for any number of tasks of one event loop."""

    def __init__(
        self, masters: list[Master], policy: Policy, tracking: bool, dialler: MakeDialler, gate: MakeGate | None
    ) -> None:
        self._policy = policy
        self._clock = policy.clock
        self.protocol, self.batch = quorum, batch
        self.lines = Lines()
        self._roster = Roster(masters, policy.quorum, policy.clock, Fleet, weakly(self), tracking, dialler, gate)
        self._owner: Any = None  # a weak reference to the object that the client and its locks share
        self._forgotten = False  # no reference to the client is left, so the loop must not keep the driver alive
        self._fleet: Any = None  # made by connect()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quorate, self._complete = asyncio.Event(), asyncio.Event()
        self._flushing = False
        self._writing: dict[int, int] = {}  # link index: descriptor that is watched for room to send
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0  # when it goes off
        self._hurry: asyncio.TimerHandle | None = None  # looks for silent masters (see `Fleet.hurry`)
        self._hurry_ns = UNBOUNDED  # when it goes off
        self._arrivals = self._roster.arrivals
        self._agenda = Agenda(policy)
        self._attending: asyncio.TimerHandle | None = None  # when something is due for held locks,
        self._attending_ns = 0  # and when that is
        self._pauses: set[Verdict] = set()  # of those who wait for nothing but time
        self._renewals: set[asyncio.Task[None]] = set()
        self.home: asyncio.AbstractEventLoop | None = None  # the loop, once connected

    def stands_for(self, owner: object) -> None:
        """Watch the object that the client and all its locks refer to; call `forget` when it is collected."""
        reference = weakref.ref(self)

        def gone(_: object) -> None:
            driver = reference()
            if driver is not None:
                driver.forget()

        self._owner = weakref.ref(owner, gone)

    def forget(self) -> None:
        """Make the loop stop keeping this driver alive; called by the garbage collector, in any thread."""
        self._forgotten = True
        if self._loop is None or self._roster.closed or self._roster.forked:
            return
        try:
            self._loop.call_soon_threadsafe(self._let_loose)
        except RuntimeError:  # the loop is closed, so the client cannot be used again
            self._roster.close()

    def _let_loose(self) -> None:
        """Replace the loop's callbacks by weak ones, and cancel timers that no call needs."""
        if self._roster.closed:
            return
        for link in self._fleet.links:
            if link.up:
                self._listen(link.index)
            if link.index in self._writing:
                self._unwatch_room(link.index)
                self._watch_room(link.index)
        if self._attending is not None:
            self._attend_at(self._attending_ns)
        self._arm(self._clock.now())

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the client was connected in."""
        return self._roster.forked

    def acquire(self, hold: Hold, ttl_ms: int, timeout: float | None) -> Coroutine[Any, Any, bool]:
        """Claim a hold and try to win its lock; to be awaited at once.

        Returns:
            Whether it was won.

        Raises:
            AlreadyHeld, and what `run` does.
        """
        return self.run(self.acquiring(hold, ttl_ms, timeout), hold, object())  # type: ignore[return-value]

    def acquiring(self, hold: Hold, ttl_ms: int, timeout: float | None) -> Steps:
        """Return the steps of an acquire, for `run`. The calling task owns the lock, even if another task runs them."""
        give_up = None if timeout is None else self._clock.now() + int(timeout * SECOND) if timeout else 0
        return acquire(self._policy, self.lines, hold, ttl_ms, give_up)

    def release(self, hold: Hold, ttl_ms: int) -> Coroutine[Any, Any, bool | None]:
        """Release a held lock and wait for the answer; to be awaited at once."""
        return self.run(quorum.release(self._policy, self.lines, hold, self._policy.patience_ns(ttl_ms)), hold)

    def part(self, hold: Hold, farewell: object) -> Coroutine[Any, Any, bool | None]:
        """Release a held lock without waiting; to be awaited at once."""
        return self.run(quorum.part(self._policy, self.lines, hold, farewell), hold)

    async def run(self, steps: Steps, hold: Hold | None = None, ticket: object = None) -> bool | None:
        """Do what a generator yields, to its end or its answer, which is returned; of an acquire, whether it won.

        Args:
            steps: the generator.
            hold: what is to be settled when it is interrupted: an acquire with this ticket leaves nothing behind,
                a release (without one) goes on without its caller.

        Raises:
            ClientUnusable, ConfigurationError: what keeps this client from being used here.
            LockError: what the generator raises.

        Longer than a function should be: a second coroutine would cost each call its frame.
        """
        called = self.lines.called
        try:
            if ticket is not None and hold is not None:
                hold.claim(ticket)
            if asyncio.get_running_loop() is not self.home or not self._roster.usable:
                await self.connect()
            for effect in steps:
                if isinstance(effect, Tell):  # also when the client closes: nothing is to be left behind
                    self._tell(effect.ballots)
                    continue
                if called:
                    self._wake_called()
                if not self._roster.usable:
                    self._roster.check()
                if isinstance(effect, Ballot):
                    await self._ask(effect)
                    if not effect.decided:
                        self._roster.blame(effect)
                elif isinstance(effect, Answer):
                    return effect.value
                else:
                    await self._wait(effect)
        except BaseException as error:
            steps.close()  # it leaves its line
            self._recover(hold, ticket, error)
            raise
        if called:
            self._wake_called()
        return None if ticket is None or hold is None else hold.state == HELD

    async def _wait(self, effect: list[Ballot] | Turn | Pause) -> None:
        """Do what waits for something else than the votes on one ballot."""
        if isinstance(effect, list):
            await self._await_all(effect)
        elif isinstance(effect, Turn):
            if self._attending is None:
                self._attend_at(self._clock.now() + LONGEST_NS)
            await self._verdict(effect.ballot)
            if not self._roster.usable:
                self._roster.check()
        else:
            await self._pause(max(0, effect.until_ns - self._clock.now()) / SECOND)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not on when the client closes."""
        loop = asyncio.get_running_loop()
        verdict = Verdict(loop)
        timer = loop.call_later(seconds, self._end_pause, verdict)
        self._pauses.add(verdict)
        try:
            await verdict
        finally:
            timer.cancel()
            self._pauses.discard(verdict)

    def _end_pause(self, verdict: Verdict) -> None:
        verdict.wake_soon()  # a compiled method of `Verdict` is no callback

    def _recover(self, hold: Hold | None, ticket: object, error: BaseException) -> None:
        """Settle for an acquire or a release that was interrupted, or that failed."""
        command = None
        leaves = False  # whether it may be at the head of its line still
        if hold is not None and ticket is not None:
            leaves = hold.ticket is ticket
            command = hold.abandon(ticket)  # a release behind whatever was sent
        elif hold is not None and (not isinstance(error, LockError) or self._roster.cuts_short(hold)):
            leaves = True
            command = hold.insist(hold.ticket)
        if command is not None:
            self.tell([command])
        if hold is not None and leaves:
            self.lines.leave(hold, self._clock.now(), False)
        if self.lines.called:
            self._wake_called()

    def leave_line(self, hold: Hold) -> None:
        """Let the next in line have its turn."""
        self.lines.leave(hold, self._clock.now(), False)
        self._wake_called()

    async def connect(self) -> None:
        """Dial every master, and wait until a quorum is there and the others had a moment, too.

        Raises:
            ConfigurationError: a master is a replica or stands in the list twice.
            ClientClosed, ClientForked: as they say.
            WrongLoop: the client was first used in another event loop.
        """
        self._roster.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._fleet = self._roster.muster()
            self._roster.dismiss = partial(_dismiss, loop)
            wires = self._fleet.wires
            wires.patience_ns = wires.busy_until_ns = 1  # sends do not block, and are not worth giving the GIL up
            linger_at_exit(self)
            self._roster.start()
        elif self._loop is not loop:
            raise WrongLoop("client: it belongs to the event loop it was first used in; make one AsyncClient per loop")
        await _within(self._quorate, 2 * DIAL_TIMEOUT)
        await _within(self._complete, GRACE)
        self._roster.check()
        self.home = loop

    def tell(self, commands: list[Command]) -> None:
        """Send commands to every master at once, without waiting for an answer."""
        if self._fleet is None:
            return
        self._tell([self._fleet.ballot_of(command) for command in commands])
        if not (self._roster.forked or self._fleet.torn):
            self._flush()

    def _tell(self, ballots: list[Ballot]) -> None:
        """Submit ballots; in the next turn of the loop where an operation of the fleet is under way.

        The garbage collector may run inside an operation. It may close the coroutine of a forgotten task, which then
        releases its lock.
        """
        if self._fleet.torn and self._loop is not None:
            self._loop.call_soon(self._submit, ballots)
        else:
            self._submit(ballots)

    def _submit(self, ballots: list[Ballot]) -> None:
        if self._roster.closed or self._roster.forked:
            return
        for ballot in ballots:
            self._fleet.submit(ballot)
        self._settle()
        if len(ballots) < MANY:
            self._flush_soon()
        else:
            self._flush()

    async def close(self) -> None:
        """Undo what is under way, wait a bounded time for the answers, then close every connection.

        Raises:
            WrongLoop: the client was used in another event loop.
        """
        if self._roster.closing:
            return
        if self._fleet is None or self._roster.forked:
            self._roster.close()
            return
        if self._loop is not asyncio.get_running_loop():
            raise WrongLoop("client: it must be closed in the event loop it was used in")
        self._roster.retire()
        self._quorate.set()  # nobody goes on waiting for masters
        self._complete.set()
        try:
            self._fleet.abandon()
            self._settle()
            for ballot in self.lines.everybody():  # who waits leaves the masters' queues
                self._wake_soon(ballot)
            for verdict in list(self._pauses):
                verdict.wake_soon()
            await asyncio.sleep(0)  # whose verdict came this very turn goes on, and undoes what was not won
            await asyncio.sleep(0)  # and that is sent
            until = self._clock.now() + DRAIN_NS
            while self._fleet.owing() and self._clock.now() < until:
                await asyncio.sleep(0.001)
        finally:  # also when it is cancelled: nobody could close it a second time
            self._disconnect()

    def linger(self, until_ns: int) -> None:
        """Wait for the answers to releases when the interpreter ends, with no loop any more."""
        if self._roster.usable and self._loop is not None and not self._loop.is_running():
            self._fleet.linger(until_ns)
            self._roster.mourn()

    def abandon(self) -> None:
        """Close every connection of a client whose event loop is closed."""
        self._roster.close()

    def _disconnect(self) -> None:
        """Close every connection, and end the waits of those who are still in a call."""
        for link in self._fleet.links:
            if link.up:
                self._unwatch(link.index, self._fleet.wires.fileno(link.index))
        for link, sock in self._fleet.fallen:
            if sock is not None and sock.fileno() >= 0:
                self._unwatch(link.index, sock.fileno())
        self._roster.close()
        for timer in (self._timer, self._attending, self._hurry):
            if timer is not None:
                timer.cancel()
        self._timer = self._attending = self._hurry = None
        next_ns = self._agenda.next_ns(self._clock.now())
        if next_ns:  # the loss of what is still held is told
            self._attend_at(next_ns)
        for ballot in self._deadlines.clear() + self.lines.everybody():
            self._wake_soon(ballot)

    # --- one ask -----------------------------------------------------------------------------------

    def _ask(self, ballot: Ballot) -> Verdict:
        """Put a ballot to the vote; await what this returns until it is decided, or its time is over."""
        verdict = self._verdict(ballot)
        fleet = self._fleet
        if fleet.torn:
            self._tell([ballot])
            return verdict
        fleet.submit(ballot)
        if fleet.decided or fleet.fallen:
            self._settle()
        if not self._flushing:
            self._flush_soon()
        return verdict

    async def _await_all(self, ballots: list[Ballot]) -> None:
        """Wait until each of many ballots that were told is decided, or its time is over."""
        late_ns = 0  # whose time was over by then have had their last look
        for ballot in reversed(ballots):  # replies come in order: when the last is decided, mostly all are
            if ballot.decided or ballot.until_ns <= late_ns:
                continue
            if not self._roster.usable:  # closed meanwhile: nobody would wake us
                break
            await self._verdict(ballot)
            if not ballot.decided:
                late_ns = self._clock.now()
        for ballot in ballots:
            if not ballot.decided:
                self._roster.blame(ballot)

    def _verdict(self, ballot: Ballot) -> Verdict:
        assert self._loop is not None
        ballot.waiter = verdict = Verdict(self._loop)
        if not ballot.size and ballot.until_ns == UNBOUNDED:  # a turn that may be waited for for ever
            return verdict
        now = self._clock.now()
        if ballot.waits_for:  # it has been among the deadlines with another one, and is not to disturb their order
            self._loop.call_later(max(0, ballot.until_ns - now) / SECOND, self._wake_soon, ballot)
            return verdict
        self._deadlines.add(ballot, now)
        if self._timer is None or ballot.until_ns < self._timer_ns:
            self._arm(now)
        return verdict

    def _flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._loop.call_soon(self._flush)
            self._flushing = True  # last: an interrupt before it costs a second flush

    # --- callbacks of the loop ---------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what is staged; watch the sockets that did not take all of it."""
        self._flushing = False
        fleet = self._fleet
        if self._roster.closed:
            return
        if self._roster.undialled:
            self._roster.dial_again()
        fleet.flush()
        if fleet.decided or fleet.fallen:
            self._settle()
        for link in fleet.links:
            if fleet.wires.unsent(link.index):
                self._watch_room(link.index)
            elif link.index in self._writing:
                self._unwatch_room(link.index)

    def _readable(self, index: int) -> None:
        fleet = self._fleet
        fleet.receive(index)
        decided, fleet.decided = fleet.decided, []
        decided.reverse()
        try:
            while decided:  # no task is running: those who wait for these go on at once, the oldest first
                ballot = decided.pop()
                verdict, ballot.waiter = ballot.waiter, None  # freed now, for the next task to have
                verdict.wake()
        finally:
            fleet.decided += decided  # a task ended with SystemExit, say
            if fleet.decided or fleet.fallen or fleet.lost or fleet.changed:
                self._settle()
        if fleet.staged:  # a reply asked for a script's text
            self._flush_soon()
        if fleet.hurry_ns < self._hurry_ns:
            self._hurry_at(fleet.hurry_ns)

    def _hurry_at(self, due_ns: int) -> None:
        """Set the timer that looks for silent masters to `due_ns`."""
        if self._hurry is not None:
            self._hurry.cancel()
        self._hurry_ns = due_ns
        if self._loop is not None:
            self._hurry = self._loop.call_later(max(0, due_ns - self._clock.now()) / SECOND, self._hurry_up)

    def _hurry_up(self) -> None:
        """Read the sockets once more, then suspect silent masters and decide the ballots that lack only their votes."""
        self._hurry, self._hurry_ns = None, UNBOUNDED
        self._look()
        fleet = self._fleet
        fleet.hurry()
        self._settle()
        if fleet.hurry_ns < self._hurry_ns:
            self._hurry_at(fleet.hurry_ns)

    def _look(self) -> None:
        """Read what has arrived at the sockets, before anything is called late."""
        for link in self._fleet.links:
            if link.up:
                self._readable(link.index)

    def _settle(self) -> None:
        """Have the tasks of decided ballots woken, and broken connections dialled again."""
        fleet = self._fleet
        decided, fleet.decided = fleet.decided, []
        for ballot in decided:
            self._wake_soon(ballot)
        while fleet.lost and self._loop is not None:  # not here: whoever is told may use the client
            self._loop.call_soon(fleet.lost.pop().farewell.tell_lost)
        changed, fleet.changed = fleet.changed, []
        for index, key in changed:
            self.lines.changed(index, key)
        while fleet.fallen:
            link, sock = fleet.fallen.pop()
            self.lines.stir_all()
            if sock is not None:
                self._unwatch(link.index, sock.fileno())
                sock.close()
            doubted_ns = self._roster.redial(link.index, link.cause)
            if doubted_ns:
                self._policy.doubt(doubted_ns)
                self._attend_at(self._clock.now())  # what stands on them is verified
        if self.lines.called:
            self._wake_called()

    def _wake_called(self) -> None:
        """Have the tasks woken whose turn has come, or who wait for a key that has changed."""
        called = self.lines.called
        while called:
            self._wake_soon(called.popleft())

    def _wake_soon(self, ballot: Ballot) -> None:
        if ballot.waiter is not None:  # else its task is awake already
            ballot.waiter.wake_soon()

    def _watch_room(self, index: int) -> None:
        if index not in self._writing and self._loop is not None:
            self._writing[index] = self._fleet.wires.fileno(index)
            self._loop.add_writer(self._writing[index], self._callback("_flush"))

    def _listen(self, index: int) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._fleet.wires.fileno(index), self._callback("_readable"), index)

    def _callback(self, name: str) -> Callable[..., None]:
        """Return a callback for the loop: the bound method, or a weak one if the client was forgotten."""
        method: Callable[..., None] = getattr(self, name)
        return partial(_call, weakref.ref(self), name) if self._forgotten else method

    def _unwatch_room(self, index: int) -> None:
        descriptor = self._writing.pop(index, None)
        if descriptor is not None and self._loop is not None:
            self._loop.remove_writer(descriptor)

    def _unwatch(self, index: int, descriptor: int) -> None:
        self._unwatch_room(index)
        if self._loop is not None:
            self._loop.remove_reader(descriptor)

    # --- deadlines ---------------------------------------------------------------------------------

    def _arm(self, now_ns: int) -> None:
        """Set the one timer to the earliest deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        earliest = self._deadlines.earliest()
        if earliest is not None and self._loop is not None:
            self._timer_ns = earliest
            self._timer = self._loop.call_later(max(0, earliest - now_ns) / SECOND, self._expire)

    def _expire(self) -> None:
        """End the waits whose time is over, after one last look at the sockets."""
        self._timer = None
        self._look()
        now = self._clock.now()
        for ballot in self._deadlines.due(now):
            self._wake_soon(ballot)
        self._arm(now)

    # --- held locks --------------------------------------------------------------------------------

    def care_for(self, care: Care) -> None:
        """Renew a lock, or tell its loss, from now on."""
        self._agenda.add(care)
        if self._attending is None:  # what is released long before it is due is not kept until then
            self._attend_at(min(care.due_ns, self._clock.now() + LONGEST_NS))
        elif care.due_ns < self._attending_ns:
            self._attend_at(care.due_ns)

    def _attend_at(self, due_ns: int) -> None:
        if self._attending is not None:
            self._attending.cancel()
            self._attending = None
        if self._forgotten and not self.lines.lines:  # no waiters, and no references to our locks
            return
        if self._loop is not None and not (self._roster.forked or self._loop.is_closed()):
            self._attending_ns = due_ns
            # The loop's clock is read first: a pause between the two makes it too early, and never a loss told late.
            when = self._loop.time() + max(0, due_ns - self._clock.now()) / SECOND
            self._attending = self._loop.call_at(when, self._attend)

    def _attend(self) -> None:
        """Do what is due for held locks, and for who waits in line behind one that may run out."""
        self._attending = None
        now = self._clock.now()
        renewed, lost = self._agenda.due(now)
        try:
            self._take_care(renewed, now)
        finally:
            tell_all(lost)  # last: an `on_lost` may raise CancelledError

    def _take_care(self, renewed: list[Care], now: int) -> None:
        """Renew locks, call waiters whose turn has come, and set the timer for what is due next."""
        if not self._roster.usable:  # what is still held runs out, and that is told
            self._agenda.settle(renewed, {}, LockError("the client cannot be used"), now)
            next_ns = self._agenda.next_ns(now)
            if next_ns:
                self._attend_at(next_ns)
            return
        if renewed and self._loop is not None:
            task = self._loop.create_task(self._renew(renewed))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        line_ns = self.lines.expire(now)
        if line_ns:  # behind a lock that is acquired meanwhile, or in a line that begins, it may be due earlier
            line_ns = min(line_ns, now + LONGEST_NS)
        self._wake_called()
        due = [due_ns for due_ns in (line_ns, self._agenda.next_ns(now)) if due_ns]
        if due:
            self._attend_at(min(due))

    async def _renew(self, renewed: list[Care]) -> None:
        """Renew locks together."""
        errors: dict[int, LockError] = {}
        policy, now = self._policy, self._clock.now()
        error: LockError | None = LockError("the renewal failed")
        try:
            steps = [quorum.extend(policy, care.hold, care.ttl_left_ms(policy, now)) for care in renewed]
            await self.run(batch.together(steps, errors))
            error = None
        except Exception as failure:
            error = renewal_failed(failure)
        finally:
            lost = self._agenda.settle(renewed, errors, error, self._clock.now())
            due_ns = min([care.due_ns for care in renewed])
            if self._attending is None or due_ns < self._attending_ns:
                self._attend_at(due_ns)
            tell_all(lost)  # last, as in `_attend`

    # --- dialling ----------------------------------------------------------------------------------

    def deliver(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of a dialling thread, in that thread, to the loop."""
        self._arrivals.append((index, outcome))
        try:
            if self._loop is not None and not self._roster.closed:
                self._loop.call_soon_threadsafe(self._arrive)
        except RuntimeError:  # the loop is closed, and with it this client
            self._roster.close()
        if self._roster.closed:  # asked after it was put there: either we see this, or who closes sees that
            turn_away(outcome)

    def _arrive(self) -> None:
        if self._roster.closed:
            return
        while self._arrivals:
            index, outcome = self._arrivals.popleft()
            self._roster.arrive(index, outcome)
            self._policy.polls = not self._fleet.quorum_pushes()
            if self._fleet.links[index].up:
                self._listen(index)
        self._flush()
        if self._roster.is_quorate():
            self._quorate.set()
        if not self._roster.unsettled:
            self._complete.set()


def _call(reference: weakref.ref[Driver], name: str, *args: Any) -> None:
    driver = reference()
    if driver is not None:
        getattr(driver, name)(*args)


class _Dismissal:
    """Closes a socket of a collected driver: in its event loop, or when the loop closes and drops this callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock

    def __call__(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()

    def __del__(self) -> None:
        self._sock.close()


def _dismiss(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Close a socket of a collected driver, from any thread, after the loop has stopped watching it."""
    try:
        loop.call_soon_threadsafe(_Dismissal(loop, sock))
    except RuntimeError:  # the loop is closed and watches no socket
        sock.close()


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for at most `seconds`."""
    if not event.is_set():
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
