"""The plan of one schedule of threads."""

from __future__ import annotations

from dataclasses import dataclass

from sim.parts import Planned
from sim.parts import Use as SharedUse

# The most points of a schedule; most have a few thousand.
MOST_POINTS = 1_200_000


@dataclass(frozen=True)
class Choice:
    """How the kernel chooses among the threads that can run.

    Attributes:
        gaps: mean numbers of points until another thread may be chosen; each time one of them is drawn.
        ranked: whether the thread with the highest rank runs, and a preempted thread gets the lowest; else any may run.
        stalls, stall_ns: how likely a preempted thread stalls, and for how long on average.
        hot: how likely a thread is preempted within a few points after it enters a function of a hot module.
        where: the modules that are hot, if not all of `instrument.HOT` are.
        most_points: the limit for a schedule that does not end.
    """

    gaps: tuple[int, ...]
    ranked: bool = False
    stalls: float = 0.0
    stall_ns: int = 0
    hot: float = 0.0
    where: tuple[str, ...] = ()
    most_points: int = MOST_POINTS


@dataclass(frozen=True)
class Use(SharedUse):
    """One use of a lock by one thread.

    Attributes:
        extend: whether it is extended while it is held.
    """

    extend: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan(Planned[Use]):
    """A whole schedule. The first thread of a client is its main thread.

    Attributes:
        masters: for each (kind of server, whether it pushes).
        clients: for each (whether it waits for pushes, tenure in seconds); each is a process.
        interrupts: (number of a client, seconds) when its main thread is interrupted.
        ending: (number of a client, seconds, "close", "shutdown" or "fork"), while its threads still run; or None.
        dialled: whether clients connect before their threads begin.
        tick_ns: nanoseconds from one point to the next.
        choice: how threads are chosen.
        aim: the module of `instrument.HOT` that interrupts aim at; "" is any.
    """

    ITEMS = ("tasks", "faults", "interrupts")

    theme: str
    masters: tuple[tuple[str, bool], ...]
    clients: tuple[tuple[bool, float], ...]
    interrupts: tuple[tuple[int, float], ...]
    ending: tuple[int, float, str] | None
    dialled: bool
    tick_ns: int
    choice: Choice
    aim: str = ""

    def calm(self) -> bool:
        """Return whether all masters answer and no thread stalls for long."""
        return not (self.faults or self.ending) and self.far_us <= 500 and self.choice.stall_ns <= 1_000_000

    def quiet(self) -> bool:
        """Return whether every reply arrives in time.

        An interrupt can prevent this: it can hit a thread that sends the commands of others. Connections are then
        replaced, and some of these commands get no reply.
        """
        return self.calm() and not self.interrupts

    def idle_ns(self) -> int:
        """Return how long a lock may be free while somebody waits for it; 0 means that no bound is known."""
        wait_ns = int((0.05 * self.ttl + 0.3) * 1_000_000_000)
        return 150_000_000 + 60_000 * self.far_us + len(self.interrupts) * wait_ns if self.calm() else 0
