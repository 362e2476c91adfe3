"""Draws the plan of one schedule of threads from a seed; plans are data, so that `shrink` can reduce them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from sim.parts import Fault

# Kinds of locks, and which may share a name.
EXCLUSIVE = ("plain", "plain", "fence", "rlock", "many", "multi")
FAMILIES = (("plain",), ("plain",), EXCLUSIVE, ("fair",), ("reader", "writer"), ("semaphore",))
RENEWABLE = ("plain", "fence", "fair", "writer", "semaphore")

# The themes, in order: waiters on one name; waiters for another process, beside busy threads; all kinds of locks; held
# locks that are renewed or watched; Ctrl-C in the main thread; a client that is closed while threads use it; an
# interpreter that ends while daemon threads run; a fork; faults of masters and network.
THEMES = ("waiting", "pushes", "kinds", "caring", "interrupts", "closing", "shutdown", "fork", "faults")
WEIGHTS = (24, 14, 12, 11, 14, 7, 7, 7, 8)

# Themes that were added later, each with its percentage of all seeds; the other seeds draw what they drew before.
# "losing": masters forget locks that are held. "queueing": Ctrl-C while the main thread joins or leaves the queue of a
# lock that other threads wait for. "starting": threads whose first calls start the threads of the client.
LATER = {"losing": 8, "queueing": 3, "starting": 3}

# What the background thread runs.
ATTENDING = ("redlatch.drivers.background", "redlatch.quorum.upkeep_schedule")

# Seconds within which a main thread is first interrupted; most of them end soon after.
EARLY = 0.003

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
class Use:
    """One use of a lock by one thread.

    Attributes:
        kind: of lock; see `FAMILIES`.
        names: what it locks: one, but for "multi" and "many".
        ttl, timeout, hold, pause: seconds; a timeout of None waits for ever.
        extend: whether it is extended while it is held.
        renew: whether it is renewed until it is released.
        watch: whether it has an `on_lost` callback.
        wait: whether its thread waits for the release.
        asks: whether it asks the masters whether it still has the lock, before the release.
        leaves: whether the release is the end of a ``with``.
    """

    kind: str
    names: tuple[str, ...]
    ttl: float
    timeout: float | None = None
    hold: float = 0.0
    pause: float = 0.0
    extend: bool = False
    renew: bool = False
    watch: bool = False
    wait: bool = True
    asks: bool = False
    leaves: bool = False


@dataclass(frozen=True)
class Plan:
    """A whole schedule.

    Attributes:
        masters: for each (kind of server, whether it pushes).
        clients: for each (whether it waits for pushes, tenure in seconds); each is a process.
        threads: for each (number of its client, its uses); the first thread of a client is its main thread.
        faults: faults of masters and network.
        interrupts: (number of a client, seconds) when its main thread is interrupted.
        ending: (number of a client, seconds, "close", "shutdown" or "fork"), while its threads still run; or None.
        dialled: whether clients connect before their threads begin.
        far_us: microseconds to the masters.
        tick_ns: nanoseconds from one point to the next.
        choice: how threads are chosen.
        trusty: whether mutual exclusion is promised.
        aim: the module of `instrument.HOT` that interrupts aim at; "" is any.
    """

    seed: int
    theme: str
    masters: tuple[tuple[str, bool], ...]
    clients: tuple[tuple[bool, float], ...]
    threads: tuple[tuple[int, tuple[Use, ...]], ...]
    faults: tuple[Fault, ...]
    interrupts: tuple[tuple[int, float], ...]
    ending: tuple[int, float, str] | None
    dialled: bool
    far_us: int
    tick_ns: int
    ttl: float
    choice: Choice
    trusty: bool = True
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


def draw(seed: int) -> Plan:
    """Draw a plan. Some seeds have a theme of `LATER` instead of the one that they drew."""
    chance = random.Random(f"later {seed}")
    plan = _draw(random.Random(f"threads {seed}"), seed)
    theme = chance.choices(("", *LATER), (100 - sum(LATER.values()), *LATER.values()))[0]
    later = {"": _as_it_is, "losing": _losing, "queueing": _queueing, "starting": _starting}[theme]
    return _asked(chance, later(chance, plan))


def _as_it_is(_: random.Random, plan: Plan) -> Plan:
    return plan


def _asked(chance: random.Random, plan: Plan) -> Plan:
    """Let some holders ask whether they have the lock, and some releases be the end of a ``with``."""
    threads = [
        (
            client,
            tuple(
                replace(
                    use,
                    asks=chance.random() < 0.1 and use.kind not in ("multi", "many"),
                    leaves=chance.random() < 0.3 and use.wait and use.kind not in ("many", "rlock"),
                )
                for use in uses
            ),
        )
        for client, uses in plan.threads
    ]
    return replace(plan, threads=tuple(threads))


def _losing(chance: random.Random, plan: Plan) -> Plan:
    """Draw a lock whose masters forget it while it is held, and that another process wants then.

    Exclusion is not promised. The threads of the holder's process may be alone, so that none of them reads.
    """
    masters, ttl = chance.choice((1, 1, 1, 3)), chance.choice((0.4, 2.0))
    kind = chance.choice(("plain", "plain", "fence", "fair", "writer", "semaphore"))
    at = chance.uniform(0.005, ttl / 3)
    ways = (("restart_empty", (0.001,)), ("flush", ()), ("evict", ()), ("restart", (0.001,)))
    faults = []
    for what, details in chance.choices(ways, (6, 3, 1, 1), k=chance.choice((1, 1, 2))):
        faults += [Fault(at, what, (master, *details)) for master in range(masters)]
        at += chance.uniform(0, ttl)
    if chance.random() < 0.2:
        faults.append(Fault(chance.uniform(0, ttl), "reset", (chance.randrange(2), chance.randrange(masters))))
    if chance.random() < 0.3:
        at = chance.choice((0.2, 0.5, 0.9, 1.4)) * ttl + chance.uniform(0, 0.02)
        faults += [Fault(at, "stop", (master, chance.choice((0.15, 0.5)))) for master in range(masters)]
    threads = [(0, _loses(chance, kind, ttl, 0.0)), (1, _loses(chance, kind, ttl, chance.uniform(0.01, ttl / 2)))]
    threads += [(chance.randrange(2), _loses(chance, kind, ttl, chance.uniform(0, ttl)))] * chance.choice((0, 0, 1))
    return replace(
        plan,
        theme="losing",
        masters=plan.masters[:1] * masters,
        clients=tuple((chance.random() < 0.9, chance.choice((0.0, 0.02, 0.1))) for _ in range(2)),
        threads=tuple(threads),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        interrupts=(),
        ending=None,
        dialled=True,
        ttl=ttl,
        trusty=False,
    )


def _loses(chance: random.Random, kind: str, ttl: float, pause: float) -> tuple[Use, ...]:
    """Draw uses of a thread, the first of which begins after a pause."""
    cares = chance.choice((0.0, 0.0, 0.5))
    return tuple(
        Use(
            kind,
            ("name-0",),
            ttl,
            timeout=chance.choice((None, None, 0.0, 0.3)),
            hold=ttl * chance.choice((0.2, 0.5, 0.9, 1.4)),
            pause=pause if number == 0 else chance.uniform(0, ttl),
            extend=chance.random() < cares,
            renew=chance.random() < cares,
            watch=chance.random() < cares,
            wait=chance.random() < 0.7,
        )
        for number in range(chance.choice((1, 2)))
    )


def _queueing(chance: random.Random, plan: Plan) -> Plan:
    """Draw a main thread that is interrupted in the module of the queues, among others that wait without a limit."""
    hold = chance.choice((0.00005, 0.0002))
    use = Use("plain", ("name-0",), 10.0, hold=hold)
    threads = ((0, (use,) * 6), *[(0, (use,) * 4)] * chance.randint(2, 4))
    return replace(
        plan,
        theme="queueing",
        clients=((True, chance.choice((0.0, 0.1))),),
        threads=threads,
        faults=(),
        interrupts=tuple((0, chance.uniform(0, EARLY)) for _ in range(8)),
        aim="redlatch.quorum.waiting.queues",
        ending=None,
        dialled=True,
        ttl=10.0,
    )


def _starting(chance: random.Random, plan: Plan) -> Plan:
    """Draw threads that all begin at once, each with a lock that the background thread cares for.

    That thread stands still for a while when it has just begun.
    """
    threads = [
        (0, (Use("plain", (f"name-{number}",), 0.4, hold=chance.choice((0.0002, 0.5)), watch=True),))
        for number in range(chance.randint(2, 5))
    ]
    return replace(
        plan,
        theme="starting",
        clients=plan.clients[:1],
        threads=tuple(threads),
        faults=(),
        interrupts=(),
        ending=None,
        dialled=chance.random() < 0.3,
        far_us=chance.choice((5, 20)),
        ttl=0.4,
        choice=Choice((100_000,), stalls=1.0, stall_ns=5_000_000, hot=0.5, where=ATTENDING),
    )


def _draw(chance: random.Random, seed: int) -> Plan:
    """Draw a plan of one of the themes that have a weight."""
    theme = chance.choices(THEMES, WEIGHTS)[0]
    masters = chance.choice((1, 1, 1, 3, 3))
    clients = chance.choice((1, 1, 1, 2))
    families = (("plain",),) if theme == "waiting" else FAMILIES
    names = tuple((f"name-{number}", chance.choice(families)) for number in range(chance.choice((1, 1, 2))))
    ttl = 0.4 if theme == "caring" else chance.choice((2.0, 10.0))
    threads = tuple(
        (client, tuple(_use(chance, names, ttl, theme) for _ in range(chance.randint(1, 4))))
        for client in range(clients)
        for _ in range(chance.choice((2, 3, 4, 5, 6)) if clients == 1 else chance.choice((1, 2, 3)))
    )
    if theme == "pushes":
        clients, names, threads = 2, (), _beside_waiters(chance, ttl)
    span = chance.choice((0.003, 0.02, 0.1))
    ending = None
    if theme in ("closing", "shutdown", "fork"):
        early = theme == "fork" and chance.random() < 0.6  # while the client dials
        at = chance.uniform(0, 0.002) if early else chance.uniform(0, span)
        ending = (chance.randrange(clients), at, {"closing": "close"}.get(theme, theme))
    faults = [_fault(chance, masters, clients, span) for _ in range(chance.randint(1, 4) if theme == "faults" else 0)]
    if theme == "fork" and chance.random() < 0.6:
        faults.append(Fault(0.0, "restart", (chance.randrange(masters), 1.0)))
    many = chance.randint(2, 8) if theme == "interrupts" else 0
    return Plan(
        seed=seed,
        theme=theme,
        masters=tuple((chance.choice(("valkey", "redis", "old")), chance.random() < 0.8) for _ in range(masters)),
        clients=tuple((chance.random() < 0.9, chance.choice((0.0, 0.02, 0.1, 0.1))) for _ in range(clients)),
        threads=threads,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        interrupts=tuple((chance.randrange(clients), chance.uniform(0, EARLY)) for _ in range(many)),
        ending=ending,
        dialled=chance.random() < 0.7 and theme != "fork",
        far_us=chance.choice((5, 20, 20, 100, 500)),
        tick_ns=chance.choice((200, 500, 1000, 2000)),
        ttl=ttl,
        choice=_choice(chance),
    )


def _beside_waiters(chance: random.Random, ttl: float) -> tuple[tuple[int, tuple[Use, ...]], ...]:
    """Draw threads that wait for a lock of another process, beside threads that use another lock."""
    holds = tuple(Use("plain", ("name-0",), ttl, hold=chance.choice((0.005, 0.03, 0.2))) for _ in range(2))
    waits = tuple(Use("plain", ("name-0",), ttl, pause=0.0005) for _ in range(chance.randint(1, 2)))
    busy = tuple(
        Use("plain", ("name-1",), ttl, pause=chance.choice((0.0, 0.001, 0.004)), wait=chance.random() < 0.5)
        for _ in range(4)
    )
    threads = [(1, holds), (0, waits), (0, busy), (chance.randrange(2), busy)]
    return tuple(threads[: chance.randint(3, 4)])


def _choice(chance: random.Random) -> Choice:
    gaps = chance.choice(((1, 3), (2,), (5,), (20,), (1, 10, 100), (3, 300), (100,), (1000,)))
    how = chance.choice(("any", "ranked", "stalls", "hot", "hot", "hot"))
    if how == "hot":
        ranked = chance.random() < 0.7
        stalls, stall_ns = (0.0, 0) if ranked else (0.5, chance.choice((100_000, 1_000_000)))
        return Choice((100_000,), ranked, stalls, stall_ns, chance.choice((0.003, 0.01, 0.03, 0.1)))
    if how == "ranked":
        return Choice(chance.choice(((50,), (200,), (1000,), (20, 500))), ranked=True)
    if how == "stalls":
        return Choice(gaps, stalls=chance.choice((0.02, 0.2)), stall_ns=chance.choice((20_000, 300_000, 5_000_000)))
    return Choice(gaps)


def _use(chance: random.Random, names: tuple[tuple[str, tuple[str, ...]], ...], ttl: float, theme: str) -> Use:
    name, kinds = chance.choice(names)
    kind = chance.choice(kinds)
    chosen = [name]
    if kind in ("multi", "many"):
        chosen = [other for other, kinds in names if kinds is EXCLUSIVE and (other == name or chance.random() < 0.7)]
        chance.shuffle(chosen)
    caring = theme == "caring"
    renews = kind in RENEWABLE and chance.random() < (0.6 if caring else 0.05)
    holds = (0.0, 0.0002, ttl / 3, ttl / 2, ttl * 1.4) if caring else (0.0, 0.0, 0.0, 0.00005, 0.001)
    return Use(
        kind=kind,
        names=tuple(chosen),
        ttl=ttl,
        timeout=chance.choice((None, None, None, 0.0, 0.1, chance.uniform(0, 0.002), chance.uniform(0, 0.002))),
        hold=chance.choice(holds),
        pause=chance.choice((0.0, 0.0, 0.0, chance.uniform(0, 0.0005), chance.uniform(0, 0.01))),
        extend=chance.random() < 0.1,
        renew=renews,
        watch=kind in (*RENEWABLE, "reader") and chance.random() < (0.6 if caring else 0.05),
        wait=chance.random() < 0.7,
    )


def _fault(chance: random.Random, masters: int, clients: int, span: float) -> Fault:
    client, master = chance.randrange(clients), chance.randrange(masters)
    seconds = chance.choice((0.0005, 0.005, 0.05, 0.3))
    kinds: list[tuple[str, tuple[Any, ...]]] = [
        ("block", (client, master, chance.choice(("there", "back", "both")), seconds)),
        ("reset", (client, master)),
        ("reset", (client, master)),
        ("cut", (client, master, chance.randrange(120))),
        ("stop", (master, seconds)),
        ("restart", (master, seconds / 3)),
        ("forget_scripts", (master,)),
        ("pause", (client, seconds)),
        ("kill", (client,)),
    ]
    what, details = chance.choice(kinds)
    return Fault(chance.uniform(0, span), what, details)
