"""Runs simulated threads one at a time, in virtual time; the seed decides which one, and for how long.

Each thread is a greenlet. It runs until it blocks, or until it has used its grant of points (see `gates`). The kernel
then advances the time by these points, runs the events that are due, and chooses the thread that runs next. When no
thread can run, time jumps to the next event.
"""

from __future__ import annotations

import heapq
import random
import sys
import traceback
from collections.abc import Callable, Sized
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet
from sim.outcome import told
from sim.world import MILLISECOND, World

from .instrument import HOT

if TYPE_CHECKING:
    from .host import ThreadHost
    from .plan import Choice

T = TypeVar("T")

FAR = 1 << 60
SOON = 16  # points
AIMED = 4  # entries


class SimWorld(World):
    """A world whose events the kernel runs."""

    def due_ns(self) -> int:
        """Return when the next event is due; FAR if there is none."""
        return self._events[0][0] if self._events else FAR

    def happen(self) -> None:
        """Run the next event."""
        due_ns, _, call, args = self._events[0]
        heapq.heappop(self._events)
        self.now = max(self.now, due_ns)
        self.steps += 1
        call(*args)

    @property
    def tracing(self) -> bool:
        """Whether trace lines are kept."""
        return self._tracing

    def remark(self, who: str, what: str) -> None:
        """Add a trace line that is no part of the history."""
        self.trace.append(f"{self.now / MILLISECOND:12.6f} ms  {who:<10} {what}")

    def record(self, data: bytes) -> None:
        """Add bytes to the history, without a trace line."""
        self._digest.update(data)


class Thread:
    """One simulated thread.

    Attributes:
        ident: the result of `threading.get_ident` in it.
        waiting: 0 while it can run, else the number of its wait.
        interruptible: whether KeyboardInterrupt ends its wait.
        interrupted: whether it must raise KeyboardInterrupt when it runs next.
        in_call: whether it may be interrupted now.
        strikes: how often it was interrupted in this use of a lock; a third time is promised nothing.
        aimed: after how many more entries of functions of `target` it is interrupted; 0 for no interrupt.
        target: the name of a hot module.
    """

    def __init__(self, kernel: Kernel, host: ThreadHost, name: str, number: int, work: Callable[[], object]) -> None:
        self.host = host
        self.name = name
        self.number = number
        self.ident = host.idents.take()
        self.work = work
        self.waiting = 0
        self.interruptible = False
        self.interrupted = self.in_call = False
        self.strikes = self.aimed = 0
        self.target = ""
        self.ended = self.vanished = False
        self.rank = kernel.chance.random()
        self.greenlet = greenlet(kernel.main, parent=kernel.hub)


class Kernel:
    """Decides which thread runs.

    Args:
        gates: the module that counts the points.
        choice: how threads are chosen.
        tick_ns: nanoseconds from one point to the next.
    """

    def __init__(self, world: SimWorld, gates: Any, choice: Choice, tick_ns: int) -> None:
        self.world = world
        self.gates = gates
        self.choice = choice
        self.tick_ns = tick_ns
        self.chance = random.Random(f"threads {world.chance.random()}")
        self.hub = getcurrent()
        self.threads: list[Thread] = []  # threads that have not ended
        self.gone: list[Thread] = []  # threads that vanished before they ended
        self.ready: list[Thread] = []  # threads that can run, with the running one
        self.current: Thread | None = None
        self.points = self.switches = 0
        self.over = False
        self.aim = ""  # the module that interrupts aim at
        self._busy = False  # whether an event runs, which belongs to no thread
        self._granted = FAR
        self._gap = 0  # points until another thread may be chosen
        self.stalled_ns = 0  # the sum of all stalls so far
        self._urgent = False  # whether a thread of a higher rank can run
        self._waits = self._made = 0
        self._until_ns = FAR
        self._working: Sized = ()
        self._lowest = 0.0
        gates.point, gates.draw = self.point, self.draw
        gates.left = FAR

    # --- time ----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the world's time, including the points since the last decision."""
        if self.current is not None and not self._busy:
            self._spend()
        return self.world.now

    def at_no_time(self, call: Callable[[], T]) -> T:
        """Return the result of a call that takes no time, and in which no thread is preempted."""
        self.now()
        busy, self._busy = self._busy, True
        granted, left, draw = self._granted, self.gates.left, self.gates.draw
        self.gates.left, self.gates.draw = FAR, _nothing
        try:
            return call()
        finally:
            self._granted, self.gates.left, self.gates.draw, self._busy = granted, left, draw, busy

    def _spend(self) -> None:
        used = self._granted - self.gates.left
        self._granted = self.gates.left
        self._gap -= used
        self.points += used
        self.world.now += used * self.tick_ns

    def _grant(self) -> None:
        """Grant the running thread the points until the next choice or the next event."""
        if self._gap <= 0:
            self._gap = self._drawn()
        left = min(self._gap, (self.world.due_ns() - self.world.now) // self.tick_ns + 1) - 1
        self._granted = self.gates.left = max(0, left)

    def _drawn(self) -> int:
        choice = self.choice
        return 1 + int(self.chance.expovariate(1.0) * self.chance.choice(choice.gaps))

    def _happen(self) -> None:
        world = self.world
        if world.due_ns() <= world.now:
            busy, self._busy = self._busy, True
            granted, left = self._granted, self.gates.left
            self.gates.left = FAR
            try:
                while world.due_ns() <= world.now:
                    world.happen()
            finally:
                self._busy = busy
                self._granted, self.gates.left = granted, left

    def draw(self) -> None:
        """Decide at random whether to preempt the running thread, which enters a hot function, within a few points."""
        me = self.current
        if me is None or self._busy or self.over:
            return
        if me.aimed and sys._getframe(2).f_globals["__name__"] == me.target:
            me.aimed -= 1
            if not me.aimed:
                self._strike_soon(me)
        where = self.choice.where
        if where and sys._getframe(2).f_globals["__name__"] not in where:
            return
        if self.choice.hot and self.chance.random() < self.choice.hot:
            self._spend()
            self._gap = min(self._gap, 1 + int(self.chance.random() * SOON))
            self._granted = self.gates.left = min(self.gates.left, max(0, self._gap - 1))

    def _strike_soon(self, me: Thread) -> None:
        """Interrupt the running thread within a few points."""
        self._spend()
        points = int(self.chance.random() * SOON)
        self.world.at(self.world.now + points * self.tick_ns, self.interrupt, me, False)
        self._granted = self.gates.left = min(self.gates.left, points)

    # --- which thread runs ---------------------------------------------------------------------------------

    def point(self) -> None:
        """Decide which thread runs next; the running one has used its grant."""
        me = self.current
        if self.over or me is None or self._busy:
            self._outside()
            return
        self._spend()
        self._happen()
        if me.vanished or self._done():
            self.hub.switch()
        elif self._gap <= 0 or self._urgent or me.host.paused():
            self._another(me)
        self._go_on(me)

    def _outside(self) -> None:
        """Handle a point outside any running thread; end the greenlet if the schedule is over."""
        if self.over and getcurrent() is not self.hub:
            self.gates.left = 0
            if not _finalizes():
                raise GreenletExit
            return
        self.gates.left = FAR

    def _go_on(self, me: Thread) -> None:
        if self.over:
            raise GreenletExit
        self._grant()
        if me.interrupted:
            me.interrupted = False
            self.world.note(self.world.now, me.host.name, f"{me.name} is interrupted")
            if self.world.tracing:
                self.world.remark(me.host.name, f"{me.name} stands {self._where()}")
            me.host.interrupted()
            raise KeyboardInterrupt

    def _another(self, me: Thread) -> None:
        """Choose the thread that runs next, and switch if it is another one."""
        choice, turn_over, self._urgent = self.choice, self._gap <= 0, False
        if choice.ranked and turn_over:
            self._lowest -= 1.0
            me.rank = self._lowest
        if choice.stalls and turn_over and self.chance.random() < choice.stalls:
            stall_ns = int(self.chance.expovariate(1.0) * choice.stall_ns)
            self.stalled_ns += stall_ns
            self.block(self.world.now + stall_ns, False)
            return
        other = self._pick()
        if other is None:
            other = self._idle()
        if other is None:
            self.hub.switch()
        elif other is not me:
            self._switch(other)

    def _pick(self) -> Thread | None:
        ready = [thread for thread in self.ready if not thread.host.paused()]
        if not ready:
            return None
        if self.choice.ranked:
            return max(ready, key=_rank)
        return ready[int(self.chance.random() * len(ready))] if len(ready) > 1 else ready[0]

    def _idle(self) -> Thread | None:
        """Advance time until a thread can run; return None if the phase is over or no event is left."""
        busy, self._busy = self._busy, True
        self.gates.left = self._granted = FAR
        try:
            while True:
                thread = self._pick()
                if thread is not None:
                    return thread
                if self._done() or self.world.due_ns() == FAR:
                    return None
                self.world.happen()
        finally:
            self._busy = busy

    def _switch(self, other: Thread) -> None:
        self.switches += 1
        self.world.record(b"%d,%d;" % (self.world.now, other.number))
        if self.world.tracing:
            assert self.current is not None
            left = f"{self.current.name} stands {self._where()}"
            self.world.remark(other.host.name, f"{other.name} runs; {left}")
        self.current = other
        other.greenlet.switch()

    def _where(self) -> str:
        """Return the line of the package that the running thread executes."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith("redlatch.") and name != "redlatch.drivers.simulated":
                return f"in {name.removeprefix('redlatch.')}:{frame.f_lineno} ({frame.f_code.co_name})"
            frame = frame.f_back
        return "outside"

    # --- blocking ------------------------------------------------------------------------------------------

    def block(self, until_ns: int | None, interruptible: bool = True) -> None:
        """Suspend the running thread until `wake`, or until a time.

        Raises:
            KeyboardInterrupt: the thread was interrupted.
        """
        me = self.current
        if me is None or self.over:
            raise GreenletExit
        self._spend()
        if me.interrupted and interruptible:
            self._go_on(me)
        self.ready.remove(me)
        self._waits += 1
        me.waiting, me.interruptible = self._waits, interruptible
        if until_ns is not None:
            self.world.at(until_ns, self._expire, me, me.waiting)
        self._happen()
        other = self._pick() or self._idle()
        if other is None:
            self.hub.switch()
        elif other is not me:
            self._switch(other)
        self._go_on(me)

    def sleep(self, ns: int, interruptible: bool = True) -> None:
        """Suspend the running thread for `ns` nanoseconds."""
        self.block(self.now() + max(0, ns), interruptible)

    def _expire(self, thread: Thread, wait: int) -> None:
        if thread.waiting == wait:
            self.wake(thread)

    def wake(self, thread: Thread) -> None:
        """Let a thread run again; does nothing if it can run or has vanished."""
        if thread.waiting and not thread.vanished:
            thread.waiting = 0
            self.ready.append(thread)
            if self.choice.ranked and self.current is not None and thread.rank > self.current.rank:
                self._urgent = True
                if not self._busy:
                    self._spend()
                    self._granted = self.gates.left = 0

    def interrupt(self, thread: Thread, may_aim: bool = True) -> None:
        """Raise KeyboardInterrupt in a thread, at its next point or when it runs again.

        A signal would mostly arrive while the thread sleeps, so half of those signals are delayed. Between two lines it
        would hardly ever arrive, so half of all signals wait until the thread enters functions of one hot module.

        Args:
            may_aim: whether it may wait for that.
        """
        if thread.ended:
            return
        if may_aim and not thread.aimed and (self.aim or self.chance.random() < 0.5):
            thread.aimed = 1 + int(self.chance.random() * AIMED)
            thread.target = self.aim or HOT[int(self.chance.random() * len(HOT))]
            return
        if not thread.in_call or (thread.waiting and self.chance.random() < 0.5):
            later_ns = 1 + int(self.chance.expovariate(1.0) * 100 * self.tick_ns)
            self.world.at(self.world.now + later_ns, self.interrupt, thread)
            return
        if thread.strikes == 2:
            return
        thread.strikes += 1
        thread.interrupted = True
        if thread.waiting and thread.interruptible:
            self.wake(thread)

    # --- threads -------------------------------------------------------------------------------------------

    def spawn(self, host: ThreadHost, name: str, work: Callable[[], object]) -> Thread:
        """Start a thread."""
        self._made += 1
        thread = Thread(self, host, name, self._made, work)
        host.threads.append(thread)
        self.threads.append(thread)
        self.ready.append(thread)
        return thread

    def main(self) -> None:
        """Run the work of the current thread: the entry point of every greenlet."""
        me = self.current
        assert me is not None
        try:
            self._go_on(me)
            me.work()
        except GreenletExit:
            if not self.over:
                raise
        except BaseException as error:
            if not self.over:
                self._spend()
                self.world.violate(f"{me.host.name}: nobody caught {told(error)}")
                self.world.trace += traceback.format_exception(error) if self.world.tracing else []
        if not self.over:
            self._spend()
            self._end(me)

    def _end(self, thread: Thread) -> None:
        thread.ended = True
        self.world.record(b"%d ends;" % thread.number)
        self.ready.remove(thread)
        self.threads.remove(thread)
        thread.host.threads.remove(thread)
        thread.host.idents.give(thread.ident)
        thread.host.ended(thread)

    def vanish(self, threads: list[Thread]) -> None:
        """Remove threads at once, without unwinding them; what they hold stays held."""
        for thread in threads:
            thread.vanished = thread.ended = True
            if not thread.waiting:
                self.ready.remove(thread)
            self.threads.remove(thread)
            thread.host.threads.remove(thread)
            self.gone.append(thread)

    # --- phases --------------------------------------------------------------------------------------------

    def run(self, until_ns: int, working: Sized = (0,)) -> None:
        """Run threads until a time, or until `working` is empty."""
        self._until_ns, self._working = until_ns, working
        self.world.at(until_ns, _nothing)
        while not self._done():
            self._happen()
            thread = self._pick() or self._idle()
            if thread is None:
                break
            self.current = thread
            self._granted = self.gates.left = 0
            thread.greenlet.switch()
            self.current = None
        self.gates.left = self._granted = FAR

    def _done(self) -> bool:
        return self.world.now >= self._until_ns or not self._working or self.points > self.choice.most_points

    def end(self) -> None:
        """End all remaining greenlets."""
        self.over = True
        self.current = None
        self.gates.left = 0
        for thread in [*self.threads, *self.gone]:
            while not thread.greenlet.dead:
                thread.greenlet.throw(GreenletExit)
        self.gates.left = FAR


def _rank(thread: Thread) -> float:
    return thread.rank


# Finalizers, and the callback of a re-entrant lock's weak references.
_FINALIZERS = ("__del__", "forget")


def _finalizes() -> bool:
    """Return whether a finalizer runs, in which an exception would only be printed."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name not in _FINALIZERS:
        frame = frame.f_back
    return frame is not None


def _nothing() -> Any:
    return None
