"""Draws the plan of one schedule of threads from its seed."""

from __future__ import annotations

import random
from dataclasses import replace

from sim.parts import PERMIT, RENEWABLE, Fault, Names, draw_details, draw_fault, draw_lock, in_order

from .plan import Choice, Plan, Use

# The kinds of `sim.parts`; plain locks are drawn more often.
EXCLUSIVE = ("plain", "plain", "fence", "rlock", "many", "multi")
FAMILIES = (("plain",), ("plain",), EXCLUSIVE, ("fair",), ("reader", "writer"), ("semaphore",))

# The kinds of faults.
FAULTS = ("block", "reset", "reset", "cut", "stop", "restart", "forget_scripts", "pause", "kill")

# The themes, in order: waiters on one name; waiters for another process, beside busy threads; all kinds of locks; held
# locks that are renewed or watched; Ctrl-C in the main thread; a client that is closed while threads use it; an
# interpreter that ends while daemon threads run; a fork; faults of masters and network.
THEMES = ("waiting", "pushes", "kinds", "caring", "interrupts", "closing", "shutdown", "fork", "faults")
WEIGHTS = (24, 14, 12, 11, 14, 7, 7, 7, 8)

# Themes that were added later, each with its percentage of all seeds; the other seeds draw what they drew before.
# "losing": masters forget locks that are held. "queueing": Ctrl-C while the main thread joins or leaves the queue of a
# lock that other threads wait for. "starting": threads whose first calls start the threads of the client. "limiting":
# rate limits, and Ctrl-C in the main thread.
LATER = {"losing": 8, "queueing": 3, "starting": 3, "limiting": 3}

# What the background thread runs.
ATTENDING = ("redlatch.drivers.background", "redlatch.quorum.upkeep_schedule")

# Seconds within which a main thread is first interrupted; most of them end soon after.
EARLY = 0.003


def draw(seed: int) -> Plan:
    """Draw a plan. Some seeds have a theme of `LATER` instead of the one that they drew."""
    chance = random.Random(f"later {seed}")
    plan = _draw(random.Random(f"threads {seed}"), seed)
    theme = chance.choices(("", *LATER), (100 - sum(LATER.values()), *LATER.values()))[0]
    later = {"": _as_it_is, "losing": _losing, "queueing": _queueing, "starting": _starting, "limiting": _limiting}[
        theme
    ]
    return later(chance, plan).asking(chance, 0.1)


def _as_it_is(_: random.Random, plan: Plan) -> Plan:
    return plan


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
        tasks=tuple(threads),
        faults=in_order(faults),
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
        tasks=threads,
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
        tasks=tuple(threads),
        faults=(),
        interrupts=(),
        ending=None,
        dialled=chance.random() < 0.3,
        far_us=chance.choice((5, 20)),
        ttl=0.4,
        choice=Choice((100_000,), stalls=1.0, stall_ns=5_000_000, hot=0.5, where=ATTENDING),
    )


def _limiting(chance: random.Random, plan: Plan) -> Plan:
    """Draw threads that acquire more permits of one rate limit than it has; some are interrupted."""
    period, clients = chance.choice((0.03, 0.4)), chance.choice((1, 1, 2))
    threads = tuple(
        (
            client,
            tuple(
                Use(
                    PERMIT,
                    ("name-0",),
                    period,
                    timeout=chance.choice((None, None, 0.0, period / 2)),
                    pause=chance.choice((0.0, 0.0, chance.uniform(0, period))),
                )
                for _ in range(chance.randint(1, 4))
            ),
        )
        for client in range(clients)
        for _ in range(chance.randint(1, 3))
    )
    many = chance.choice((0, 0, 4))
    return replace(
        plan,
        theme="limiting",
        clients=tuple((chance.random() < 0.9, 0.0) for _ in range(clients)),
        tasks=threads,
        faults=(),
        interrupts=tuple((chance.randrange(clients), chance.uniform(0, 2 * period)) for _ in range(many)),
        ending=None,
        dialled=True,
        ttl=2.0,
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
        tasks=threads,
        faults=in_order(faults),
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


def _use(chance: random.Random, names: Names, ttl: float, theme: str) -> Use:
    kind, chosen = draw_lock(chance, names)
    caring = theme == "caring"
    renews = kind in RENEWABLE and chance.random() < (0.6 if caring else 0.05)
    holds = (0.0, 0.0002, ttl / 3, ttl / 2, ttl * 1.4) if caring else (0.0, 0.0, 0.0, 0.00005, 0.001)
    return Use(
        kind=kind,
        names=chosen,
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
    kinds = [(what, draw_details(chance, what, client, master, seconds)) for what in FAULTS]
    return draw_fault(chance, kinds, span)
