"""Virtual time for threads and tasks: it stands still while any of them works, and jumps when all of them wait.

A party is a thread that has used a client. Time jumps to the next event

  * at once, if each party waits in a call of a client;
  * after a moment of real time, if the others only wait for threads (a join, an Event, a Future, a queue), because one
    of them may be about to continue.

If a party works outside a call, or sleeps, time passes as fast as real time. So a caller that waits for a lock gets it
if the holder releases it soon, as with real servers. Everything here runs inside the monitor, except for reports of
lost locks. A thread leaves the monitor while it waits.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from redlatch.testing.memory.parties import JUMP, QUIET, REAL, Parties
from redlatch.votes.units import SECOND, UNBOUNDED, Clock
from redlatch.wire.engine.net import now_ns

START_NS = 1_000 * SECOND
START_US = 1_800_000_000_000_000

NAP = 0.005
QUIET_NAPS = 4

# After a longer real pause the process was stopped, and no time passes.
LONGEST_FLOW_NS = 50_000_000

# The longest jump beyond all timeouts and ttls while no call begins or ends.
LONGEST_JUMP_NS = 600 * SECOND

FOR_EVER = "nobody would ever go on here: all callers wait without a timeout, and none of them releases anything"


class VirtualClock(Clock):
    """The clock of masters and clients. No two readings are equal, and they are the same in each run."""

    def __init__(self) -> None:
        self._base_ns = START_NS
        self._readings = itertools.count()

    def now(self) -> int:
        return self._base_ns + next(self._readings)

    def move_to(self, ns: int) -> None:
        # Only one thread at a time may call this.
        self._base_ns = max(self._base_ns, ns - next(self._readings))

    def wall_us(self) -> int:
        return START_US + (self.now() - START_NS) // 1000

    def first_ns(self, wall_ms: int) -> int:
        return ((wall_ms + 1) * 1000 - START_US) * 1000 + START_NS


class Actor(Protocol):
    due_ns: int

    def turn(self) -> bool: ...

    def attend(self) -> None: ...

    def learn(self) -> None:
        """Find the lost locks among those whose loss must be reported."""

    def has_reports(self) -> bool: ...

    def report(self) -> None:
        """Report lost locks; called outside the monitor."""


class Wait:
    """A wait of one caller, until `done` returns True, or until `until_ns`.

    Attributes:
        thread, task: the party that waits; None for a wait of the client itself.
        wake: called once, when the wait is over.
        error: the caller must raise it instead of continuing.
    """

    def __init__(self, done: Callable[[], bool], until_ns: int) -> None:
        self.done = done
        self.until_ns = until_ns
        self.thread: int | None = None
        self.task: Any = None
        self.wake: Callable[[], object] | None = None
        self.over = False
        self.error: Exception | None = None


class Timeline:
    """The time of some masters and of all their clients. Hold `monitor` for any change."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.monitor = threading.RLock()
        self.parties = Parties()
        self.calls = self.wakes = 0
        self.forgot = False
        self._woken = threading.Condition(self.monitor)
        self._actors: list[Callable[[], Actor | None]] = []
        self._waits: list[Wait] = []
        # The `on_lost` of a lock may wait inside another wait of its thread.
        self._innermost: dict[int, Wait] = {}
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._made = 0
        # True if bytes or connections may be in transit.
        self._dirty = False
        self._naps = 0
        self._napped_ns = self._flowed_ns = self._farthest_ns = 0

    # --- what happens, and when ----------------------------------------------------------------------------

    def join(self, actor: Callable[[], Actor | None]) -> None:
        with self.monitor:
            self._actors = [known for known in self._actors if known() is not None] + [actor]

    def at(self, due_ns: int, call: Callable[[], object]) -> None:
        self._made += 1
        heapq.heappush(self._events, (due_ns, self._made, call))

    def note_timeout(self, until_ns: int) -> None:
        with self.monitor:
            self._farthest_ns = max(self._farthest_ns, until_ns)

    def note_call(self) -> None:
        self.calls += 1
        self._naps = 0
        self.note_timeout(self.clock.now())

    def touch(self) -> None:
        self._dirty = True

    def settle(self) -> None:
        """Let masters and clients exchange all bytes; then wake callers that may continue."""
        while self._run_events() or self._dirty:
            self._dirty = False
            for actor in self._present():
                if actor.turn():
                    self._dirty = True
        self._wake()

    def _run_events(self) -> bool:
        ran, now = False, self.clock.now()
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()
            ran = True
        return ran

    def _present(self) -> list[Actor]:
        return [actor for reference in self._actors if (actor := reference()) is not None]

    def _wake(self) -> None:
        for wait in list(self._waits):
            if not wait.over and (wait.done() or wait.until_ns <= self.clock.now()):
                self._end(wait)

    def _end(self, wait: Wait) -> None:
        self._waits.remove(wait)
        wait.over = True
        self.wakes += 1
        if wait.thread is not None and self._innermost.get(wait.thread, wait) is wait:
            self.parties.go_on(wait.thread)
        if wait.wake is not None:
            wait.wake()
        self._woken.notify_all()

    def report(self) -> None:
        for actor in self._present():
            actor.report()

    def note_loss(self) -> None:
        """Let all clients find out what the masters have forgotten, and report it."""
        with self.monitor:
            self.forgot = True
            for actor in self._present():
                actor.learn()
        self.report()

    # --- moving --------------------------------------------------------------------------------------------

    def move(self) -> None:
        """Move to the next event. If no caller could ever continue, end the waits with an error."""
        due_ns = self._next_ns()
        if due_ns > self._farthest_ns + LONGEST_JUMP_NS:
            for wait in [wait for wait in self._waits if wait.thread is not None]:
                wait.error = RuntimeError(FOR_EVER)
                self._end(wait)
        else:
            self._step_to(due_ns)

    def flow(self) -> None:
        real_ns = now_ns()
        passed_ns, self._flowed_ns = real_ns - self._flowed_ns, real_ns
        if passed_ns > LONGEST_FLOW_NS:
            return
        until_ns = self.clock.now() + passed_ns
        while self._next_ns() <= until_ns:
            self._step_to(self._next_ns())
        self.clock.move_to(until_ns)

    def _next_ns(self) -> int:
        due = [wait.until_ns for wait in self._waits] + [actor.due_ns for actor in self._present()]
        return min([*due, *[event[0] for event in self._events[:1]]], default=UNBOUNDED)

    def _step_to(self, due_ns: int) -> None:
        self.clock.move_to(due_ns)
        self.settle()
        for actor in self._present():
            if actor.due_ns <= self.clock.now():
                actor.attend()
        self.settle()

    # --- waiting -------------------------------------------------------------------------------------------

    def add(self, wait: Wait) -> None:
        self._waits.append(wait)
        self._wake()

    def waiting_tasks(self) -> set[Any]:
        return {wait.task for wait in self._waits}

    def remove(self, wait: Wait) -> None:
        if not wait.over:
            self._end(wait)

    def rest(self, wait: Wait) -> None:
        # The thread has entered the monitor once.
        wait.thread = me = threading.get_ident()
        outer, self._innermost[me] = self._innermost.get(me), wait
        self.parties.rest(me)
        self.add(wait)
        try:
            while not wait.over:
                if not self.moves(self.parties.pace()):
                    self._woken.wait(NAP)
                    self.nap()
                self._report_outside(wait)
        finally:
            self.remove(wait)
            del self._innermost[me]
            if outer is not None:
                self._innermost[me] = outer
        if wait.error is not None:
            raise wait.error

    def moves(self, pace: int) -> bool:
        """Move if the pace of the parties allows it."""
        if pace == JUMP or (pace == QUIET and self._naps >= QUIET_NAPS):
            self.move()
            return True
        if pace == REAL:
            self.flow()
        return False

    def nap(self) -> None:
        # Simultaneous naps of several parties count once.
        real_ns = now_ns()
        if real_ns - self._napped_ns >= NAP * SECOND / 2:
            self._napped_ns = real_ns
            self._naps += 1

    def _report_outside(self, wait: Wait) -> None:
        assert wait.thread is not None
        if not any([actor.has_reports() for actor in self._present()]):
            return
        self.parties.go_out(wait.thread)
        self.monitor.release()
        try:
            self.report()
        finally:
            self.monitor.acquire()
            (self.parties.go_on if wait.over else self.parties.rest)(wait.thread)
