"""The driver for asyncio (and uvloop): one flush in each turn of the loop, replies wake their tasks, one timer for all.

A client that is forgotten without `close` is collected. While a reference to the client or to one of its locks exists,
the loop keeps the driver alive: its callbacks are methods of the driver, because weak references would cost time with
each reply. When the last reference is gone (see `stands_for`), weak callbacks replace them. From then on only the
timers of unfinished calls keep the driver alive.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from asyncio import get_running_loop
from collections.abc import Callable
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
from redlatch.drivers.lifetime import DRAIN_NS, await_answers_at_exit
from redlatch.drivers.upkeep import Question, Renewal, lost_releases, report_losses, work_of
from redlatch.errors import LockError, WrongLoop
from redlatch.guard.handover import Successor
from redlatch.masters.master import Master
from redlatch.quorum.upkeep import Term
from redlatch.quorum.upkeep_schedule import LONGEST_NS

from ..quorum.calls import Calls
from ..quorum.effects import Answer, Call, Pause, Send, Steps
from ..quorum.waiting.queues import QueueEntry
from ..votes.ballot import Ballot, last_open
from ..votes.commands import Command
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED
from .base import BaseDriver
from .task_futures import Deadlines, LightFuture, new_light_future

# So many commands leave at once, instead of at the end of the turn, so that the masters can begin.
MANY = 64


class Driver(BaseDriver):
    def __init__(
        self,
        masters: list[Master],
        quorum: Calls,
        tracking: bool,
        dialler: MakeDialler,
        guard: MakeGuard | None,
        successor: Successor | None = None,
    ) -> None:
        super().__init__(masters, quorum, tracking, dialler, guard, successor)
        self._owner: Any = None
        # Then the loop must not keep the driver alive.
        self._forgotten = False
        self._fleet: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: Any = None
        self._quorate, self._complete = asyncio.Event(), asyncio.Event()
        self._flushing = False
        # Link index: descriptor that is watched for room to send.
        self._writing: dict[int, int] = {}
        self._deadlines = Deadlines()
        # A field, because the compiled build knows its C type.
        self._never_ns = UNBOUNDED
        self._arrivals = self._connections.arrivals
        # The timers of ballots, of silent masters (see `Fleet.hurry`) and of held locks, and when each goes off.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._hurry: asyncio.TimerHandle | None = None
        self._hurry_ns = UNBOUNDED
        self._attending: asyncio.TimerHandle | None = None
        self._attending_ns = 0
        self._pauses: set[LightFuture] = set()
        self._renewals: set[asyncio.Task[None]] = set()
        self.home: asyncio.AbstractEventLoop | None = None

    def stands_for(self, owner: object) -> None:
        reference = weakref.ref(self)

        def gone(_: object) -> None:
            driver = reference()
            if driver is not None:
                driver.forget()

        self._owner = weakref.ref(owner, gone)

    def forget(self) -> None:
        """Make the loop stop keeping this driver alive; the garbage collector calls it in any thread."""
        self._forgotten = True
        if self._loop is None or self._lifecycle.closed or self._lifecycle.forked:
            return
        try:
            self._loop.call_soon_threadsafe(self._let_loose)
        except RuntimeError:
            self._connections.close()

    def _let_loose(self) -> None:
        if self._lifecycle.closed:
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

    async def run(self, steps: Steps) -> Any:
        """Perform the effects of an iterator. A second coroutine would cost each call its frame."""
        called = self.queues.called
        try:
            if get_running_loop() is not self.home or not self._lifecycle.usable:
                await self.connect()
            checked = True
            for effect in steps:
                # Even while the client closes, so that nothing is left behind.
                if isinstance(effect, Send):
                    self._send(effect.ballots)
                    continue
                if called:
                    self.wake_called()
                if not (checked or self._lifecycle.usable):
                    self._connections.check()
                # Others run while this call waits.
                checked = False
                if isinstance(effect, Ballot):
                    await self._ask(effect)
                    self._note_silence(effect)
                elif isinstance(effect, Answer):
                    return effect.value
                else:
                    await self._wait(effect)
            if called:
                self.wake_called()
            return self._answer_of(steps)
        except BaseException as error:
            # Not in a function of its own, because a second interrupt may come before that function's `try`.
            try:
                self._recover(steps, error)
            except BaseException:
                # An interrupt; no caller repeats this.
                self._recover(steps, error)
                raise
            raise

    def _answer_of(self, steps: Steps) -> Any:
        if not isinstance(steps, Call):
            return None
        call: Call = steps
        return call.end()

    def _note_silence(self, ballot: Ballot) -> None:
        if not ballot.decided:
            self._connections.record_silent(ballot)

    async def _wait(self, effect: list[Ballot] | QueueEntry | Pause) -> None:
        if isinstance(effect, list):
            await self._await_all(effect)
            if not self._lifecycle.usable and effect[0].command.undo() is not None:
                # A client that closes has undone them.
                self._connections.check()
        elif isinstance(effect, QueueEntry):
            now = self._clock.now()
            self._attend_by(now + LONGEST_NS, now)
            effect.waiter = future = self._future(effect.until_ns)
            await future
            if not self._lifecycle.usable:
                self._connections.check()
        else:
            await self._pause(max(0, effect.until_ns - self._clock.now()) / SECOND)

    async def _pause(self, seconds: float) -> None:
        loop = get_running_loop()
        future = new_light_future(loop, UNBOUNDED)
        timer = loop.call_later(seconds, self._end_pause, future)
        self._pauses.add(future)
        try:
            await future
        finally:
            timer.cancel()
            self._pauses.discard(future)

    def _end_pause(self, future: LightFuture) -> None:
        # Cython cannot pass the compiled method itself as a callback.
        future.wake_soon()

    def _recover(self, steps: Steps, error: BaseException) -> None:
        """End interrupted or failed steps. After an interrupt this is called again."""
        steps.close()
        if isinstance(steps, Call):
            steps.recover(self, error)
        if self.queues.called:
            self.wake_called()

    async def connect(self, all_of_them: bool = False) -> None:
        self._connections.check()
        loop = get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._ended = loop.create_future()
            self._ended.set_result(None)
            self._fleet = self._connections.make_fleet()
            self._connections.dismiss = partial(_dismiss, loop)
            wires = self._fleet.wires
            # Sends do not block, so they keep the GIL.
            wires.gil_patience_ns = wires.busy_until_ns = 1
            await_answers_at_exit(self)
            self._connections.start()
        elif self._loop is not loop:
            raise WrongLoop("client: it belongs to the event loop it was first used in; make one AsyncClient per loop")
        await _within(self._quorate, 2 * DIAL_TIMEOUT)
        await _within(self._complete, 2 * DIAL_TIMEOUT if all_of_them else GRACE)
        self._connections.check()
        self.home = loop

    def send(self, commands: list[Command]) -> None:
        if self._fleet is None:
            return
        self._send([self._fleet.ballot_of(command) for command in commands])
        if not (self._lifecycle.forked or self._fleet.torn):
            self._flush()

    def _send(self, ballots: list[Ballot]) -> None:
        """If an operation of the fleet is under way, submit in the next turn of the loop.

        The garbage collector may run inside an operation, and close the coroutine of a forgotten task, which then
        releases its lock.
        """
        if self._fleet.torn and self._loop is not None:
            self._loop.call_soon(self._submit, ballots)
        else:
            self._submit(ballots)

    def _submit(self, ballots: list[Ballot]) -> None:
        if self._lifecycle.closed or self._lifecycle.forked:
            return
        for ballot in ballots:
            self._fleet.submit(ballot)
        self._handle_events()
        if len(ballots) < MANY:
            self._flush_soon()
        else:
            self._flush()

    async def close(self, release: bool = False, drain_ns: int | None = None) -> None:
        """Undo what is under way, wait `drain_ns` (default 1 s) for the answers, then close every connection."""
        if self._lifecycle.closing:
            return
        if self._fleet is None or self._lifecycle.forked:
            self._connections.close()
            return
        if self._loop is not get_running_loop():
            raise WrongLoop("client: it must be closed in the event loop it was used in")
        self._connections.retire()
        self._quorate.set()
        self._complete.set()
        try:
            if release:
                self._release_held()
            await self._drain(DRAIN_NS if drain_ns is None else drain_ns)
        finally:
            # Even after a cancellation, because a second call of `close` does nothing.
            try:
                # Once more, because an interrupt may have struck before.
                if release:
                    self.held_locks.end()
                    self._send_releases()
            finally:
                self._disconnect()

    async def _drain(self, drain_ns: int) -> None:
        self._fleet.abandon()
        self._handle_events()
        self._wake_waiters()
        for future in list(self._pauses):
            future.wake_soon()
        # Tasks that were woken in this turn undo what they have not won; then the undos are sent.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        until = self._clock.now() + drain_ns
        while (self._send_releases() or self._fleet.owing()) and self._clock.now() < until:
            await asyncio.sleep(0.001)
        self.held_locks.report()

    def _release_held(self) -> None:
        self.held_locks.end()
        try:
            # An `on_lost` may raise CancelledError.
            self._attend()
        finally:
            self._send_releases()

    def _send_releases(self) -> bool:
        sent: bool = self.held_locks.release(self._submit)
        if sent:
            self._flush()
        return sent

    def await_answers(self, until_ns: int) -> None:
        if self._lifecycle.usable and self._loop is not None and not self._loop.is_running():
            self._fleet.await_answers(until_ns)
            self._connections.notify_lost()

    def drop(self) -> None:
        self._connections.close()

    def _disconnect(self) -> None:
        for link in self._fleet.links:
            if link.up:
                self._unwatch(link.index, self._fleet.wires.fileno(link.index))
        for link, sock in self._fleet.fallen:
            if sock is not None and sock.fileno() >= 0:
                self._unwatch(link.index, sock.fileno())
        self._connections.close()
        for timer in (self._timer, self._attending, self._hurry):
            if timer is not None:
                timer.cancel()
        self._timer = self._attending = self._hurry = None
        next_ns = self.schedule.next_ns(self._clock.now())
        if next_ns:
            self._attend_at(next_ns)
        for future in self._deadlines.clear():
            future.wake_soon()
        self._wake_waiters()

    # --- ballots -----------------------------------------------------------------------------------

    def _ask(self, ballot: Ballot) -> LightFuture:
        ballot.waiter = future = self._future(ballot.until_ns)
        fleet = self._fleet
        if fleet.torn:
            self._send([ballot])
            return future
        fleet.submit(ballot)
        if fleet.decided or fleet.fallen:
            self._handle_events()
        if not self._flushing:
            self._flush_soon()
        return future

    async def _await_all(self, ballots: list[Ballot]) -> None:
        late_ns = 0
        # From the last one: replies come in order, so when it is decided, usually all are.
        place = len(ballots)
        while (place := last_open(ballots, place, late_ns)) >= 0:
            if not self._lifecycle.usable:
                break
            ballot = ballots[place]
            ballot.waiter = future = self._future(ballot.until_ns)
            await future
            if not ballot.decided:
                late_ns = self._clock.now()
        if last_open(ballots, len(ballots), 0) >= 0:
            self._connections.record_all_silent(ballots)

    def _future(self, until_ns: int) -> LightFuture:
        assert self._loop is not None
        future = new_light_future(self._loop, until_ns)
        # Only a queue entry without a time limit needs no deadline.
        if until_ns != self._never_ns:
            now = self._clock.now()
            self._deadlines.add(future, now)
            if self._timer is None:
                self._arm(now)
            elif until_ns < self._timer_ns:
                self._set_timer(until_ns, now)
        return future

    def _flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._loop.call_soon(self._flush)
            # Last: after an interrupt before this there are two flushes instead of none.
            self._flushing = True

    # --- callbacks of the loop ---------------------------------------------------------------------

    def _flush(self) -> None:
        self._flushing = False
        fleet = self._fleet
        if self._lifecycle.closed:
            return
        if self._lifecycle.undialled:
            self._connections.dial_again()
        fleet.flush()
        if fleet.decided or fleet.fallen:
            self._handle_events()
        for link in fleet.links:
            if fleet.wires.unsent(link.index):
                self._watch_room(link.index)
            elif link.index in self._writing:
                self._unwatch_room(link.index)
        # A ballot may wait for a silent master although no byte was sent.
        if fleet.silence.due_ns < self._hurry_ns:
            self._hurry_at(fleet.silence.due_ns)

    def _readable(self, index: int) -> None:
        fleet = self._fleet
        fleet.receive(index)
        decided, fleet.decided = fleet.decided, []
        decided.reverse()
        woken, part = 0, self._first_part(len(decided))
        try:
            while decided:
                if woken == part and self._flushing:
                    self._flush()
                woken += 1
                ballot = decided.pop()
                # Freed now, so that the next task can reuse its memory.
                future, ballot.waiter = ballot.waiter, None
                future.wake(self._ended)
        finally:
            # A task may have ended with SystemExit.
            fleet.decided += decided
            if fleet.decided or fleet.fallen or fleet.lost or fleet.changed:
                self._handle_events()
        if fleet.staged:
            self._flush_soon()
        if fleet.silence.due_ns < self._hurry_ns:
            self._hurry_at(fleet.silence.due_ns)

    def _first_part(self, count: int) -> int:
        """Return how many of `count` tasks run before their commands are sent, so that the masters can begin.

        An additional write costs a system call for each of the N masters. With 4 to 512 tasks it paid if it had at
        least N + 1 commands for each call (docs/speed.md).
        """
        size = self._quorum.size
        return max(size * (size + 1), count // 2)

    def _hurry_at(self, due_ns: int) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
        self._hurry_ns = due_ns
        if self._loop is not None:
            self._hurry = self._loop.call_later(max(0, due_ns - self._clock.now()) / SECOND, self._hurry_up)

    def _hurry_up(self) -> None:
        self._hurry, self._hurry_ns = None, UNBOUNDED
        self._look()
        fleet = self._fleet
        fleet.hurry()
        self._handle_events()
        if fleet.staged:
            self._flush_soon()
        if fleet.silence.due_ns < self._hurry_ns:
            self._hurry_at(fleet.silence.due_ns)

    def _look(self) -> None:
        """Read what has arrived, before any ballot counts as late."""
        for link in self._fleet.links:
            if link.up:
                self._readable(link.index)

    def _handle_events(self) -> None:
        fleet = self._fleet
        decided, fleet.decided = fleet.decided, []
        for ballot in decided:
            self._wake_soon(ballot)
        # In a later turn, because an `on_lost` may use the client.
        if fleet.lost and self._loop is not None:
            for report in lost_releases(fleet.lost, self._quorum.doubts, self._clock.now()):
                self._loop.call_soon(report)
        changed, fleet.changed = fleet.changed, []
        alarmed = False
        for index, key in changed:
            alarmed = self.queues.watches.changed(index, key) or alarmed
        if alarmed:
            self._attend_at(self._clock.now())
        while fleet.fallen:
            link, sock = fleet.fallen.pop()
            self.queues.watches.notify_all()
            if sock is not None:
                self._unwatch(link.index, sock.fileno())
                sock.close()
            if self._connections.redial(link):
                # Leases that stand on void votes are verified.
                self._attend_at(self._clock.now())
        if self.queues.called:
            self.wake_called()

    def wake_called(self) -> None:
        called = self.queues.called
        while called:
            self._wake_soon(called.pop(0))

    def _wake_waiters(self) -> None:
        for awaited in self.queues.everybody():
            self._wake_soon(awaited)

    def _wake_soon(self, awaited: Ballot | QueueEntry) -> None:
        if awaited.waiter is not None:
            awaited.waiter.wake_soon()

    def _watch_room(self, index: int) -> None:
        if index not in self._writing and self._loop is not None:
            self._writing[index] = self._fleet.wires.fileno(index)
            self._loop.add_writer(self._writing[index], self._callback(self._flush, _call_flush))

    def _listen(self, index: int) -> None:
        if self._loop is not None:
            readable = self._callback(self._readable, _call_readable)
            try:
                self._loop.add_reader(self._fleet.wires.fileno(index), readable, index)
            except RuntimeError:
                self._loop.call_soon(readable, index)

    def _callback(self, method: Callable[..., None], weakly: Callable[..., None]) -> Callable[..., None]:
        return partial(weakly, weakref.ref(self)) if self._forgotten else method

    def _unwatch_room(self, index: int) -> None:
        descriptor = self._writing.pop(index, None)
        if descriptor is not None and self._loop is not None:
            self._loop.remove_writer(descriptor)

    def _unwatch(self, index: int, descriptor: int) -> None:
        self._unwatch_room(index)
        if self._loop is not None:
            self._loop.remove_reader(descriptor)

    # --- deadlines ---------------------------------------------------------------------------------

    def _set_timer(self, due_ns: int, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not None:
            self._timer_ns = due_ns
            self._timer = self._loop.call_later(max(0, due_ns - now_ns) / SECOND, self._expire)

    def _arm(self, now_ns: int) -> None:
        earliest = self._deadlines.earliest()
        if earliest is not None:
            self._set_timer(earliest, now_ns)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """End the waits whose time is over, after one last look at the sockets."""
        self._timer = None
        try:
            self._look()
        finally:
            now = self._clock.now()
            for future in self._deadlines.due(now):
                future.wake_soon()
            self._arm(now)

    # --- held locks --------------------------------------------------------------------------------

    def add_upkeep(self, term: Term) -> None:
        self.schedule.add(term)
        # At `longest_ns` the latest, so that released locks are not kept until they are due.
        now = self._clock.now()
        self._attend_by(min(term.look_ns(now), now + self.schedule.longest_ns), now)

    def _attend_by(self, due_ns: int, now_ns: int) -> None:
        if self._attending is not None and self._attending_ns < now_ns:
            # It goes off in this turn, or an interrupt has struck as it went off.
            self._attending = None
            due_ns = min(due_ns, now_ns + MILLISECOND)
        if self._attending is None or due_ns < self._attending_ns:
            self._attend_at(due_ns)

    def _attend_at(self, due_ns: int) -> None:
        """Attend at that time. After an interrupt, the timer that was set before goes off, perhaps with the new one."""
        before, timer = self._attending, None
        if self._forgotten and not self.queues.by_key:
            # No waiters, and no references to our locks.
            pass
        elif self._loop is not None and not (self._lifecycle.forked or self._loop.is_closed()):
            # The loop's clock is read first. After a pause between the two readings the call comes early, never late.
            when = self._loop.time() + max(0, due_ns - self._clock.now()) / SECOND
            timer = self._loop.call_at(when, self._attend)
        self._attending_ns = due_ns
        self._attending = timer
        if before is not None:
            before.cancel()

    def _attend(self) -> None:
        terms: list[Term] = []
        try:
            timer, self._attending = self._attending, None
            # Usually it is the one that has just fired, but two must never run at once.
            if timer is not None:
                timer.cancel()
            now = self._clock.now()
            terms = self.schedule.due(now)
            self._attend_to(terms, now)
        except BaseException:
            # Ctrl-C; without a next call no lock would be renewed any more.
            self.schedule.conclude(terms, {}, LockError("the renewal was interrupted"))
            self._attend_at(self._clock.now() + LONGEST_NS)
            raise
        finally:
            # Last: an `on_lost` may raise CancelledError.
            report_losses(self.schedule.lost)

    def _attend_to(self, terms: list[Term], now: int) -> None:
        # Locks that are still held run out, and their loss is reported.
        if not self._lifecycle.usable:
            self.schedule.conclude(terms, {}, LockError("the client cannot be used"))
            next_ns = self.schedule.next_ns(now)
            if next_ns:
                self._attend_at(next_ns)
            return
        for work in work_of(self.schedule, self._quorum, terms):
            assert self._loop is not None
            task = self._loop.create_task(self._renew(work))
            self._renewals.add(task)
            # Not at the end of the task: a task that is cancelled before its first step never runs.
            task.add_done_callback(partial(self._end_renewal, work))
        queue_ns = self.queues.expire(now)
        # A lock that is acquired meanwhile, or a new queue, may be due earlier.
        if queue_ns:
            queue_ns = min(queue_ns, now + LONGEST_NS)
        self.wake_called()
        due = [due_ns for due_ns in (queue_ns, self.schedule.next_ns(now)) if due_ns]
        if due:
            self._attend_at(min(due))

    async def _renew(self, renewal: Renewal | Question) -> None:
        try:
            await self.run(renewal.steps())
            renewal.succeed()
        except Exception as failure:
            renewal.fail(failure)

    def _end_renewal(self, renewal: Renewal | Question, task: asyncio.Task[None]) -> None:
        self._renewals.discard(task)
        renewal.conclude()
        self._attend_at(self._clock.now())

    # --- dialling ----------------------------------------------------------------------------------

    def deliver(self, index: int, outcome: Arrival) -> None:
        self._arrivals.append((index, outcome))
        try:
            if self._loop is not None and not self._lifecycle.closed:
                self._loop.call_soon_threadsafe(self._arrive)
        except RuntimeError:
            self._connections.close()
        # Checked after `append`: either this thread sees `closed`, or `close` sees the outcome.
        if self._lifecycle.closed:
            reject(outcome)

    def _arrive(self) -> None:
        if self._lifecycle.closed:
            return
        try:
            # Taken off last, so that an interrupt loses none.
            while self._arrivals:
                if self._connections.arrive(*self._arrivals[0]):
                    self._attend_at(self._clock.now())
                if self.queues.watches.connected(self._fleet):
                    # The keys of held locks are not tracked on a new connection.
                    self._attend_at(self._clock.now())
                for link in self._fleet.links:
                    if link.up:
                        self._listen(link.index)
                self._arrivals.popleft()
        except Exception:
            # It would fail again.
            self._arrivals.popleft()
            raise
        except BaseException:
            if self._loop is not None:
                self._loop.call_soon(self._arrive)
            raise
        self._handle_events()
        self._flush()
        if self._connections.is_quorate():
            self._quorate.set()
        if not self._connections.untried:
            self._complete.set()


# Functions, because Cython passes an unbound cpdef method on as a C function of another signature.
def _call_flush(reference: weakref.ref[Driver]) -> None:
    driver = reference()
    if driver is not None:
        driver._flush()


def _call_readable(reference: weakref.ref[Driver], index: int) -> None:
    driver = reference()
    if driver is not None:
        driver._readable(index)


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
    try:
        loop.call_soon_threadsafe(_Dismissal(loop, sock))
    except RuntimeError:
        sock.close()


async def _within(event: asyncio.Event, seconds: float) -> None:
    if not event.is_set():
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
