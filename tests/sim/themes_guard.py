"""Themes about what the guard promises. Only `--theme` and the tests draw them, so they change no other seed.

"restoring": a master is restarted with an append-only file that lacks its last second, or with an old dump that has an
old marker. "waking": masters lose their keys without a push, while no client has used them for a second. "idling":
clients do nothing for up to ten weeks. "lasting": locks have ttls of 5, 10 and 60 s. "raising": the commands that raise
a horizon arrive late, and their replies come in halves or not at all. "alone": a single master forgets locks.
"skewed": it forgets
them while its clients rest, whose clocks differ.
"""

from __future__ import annotations

import random
from dataclasses import replace

from redlatch.votes.scripts import KEPT_MS

from .parts import FAMILIES, RENEWABLE, WAYS, Fault, draw_fault, in_order
from .plan import Action, Extension, Plan

KINDS = ("valkey", "redis", "old")

# Markers expire after this time, in seconds.
KEPT = KEPT_MS / 1000


def use(kind: str, ttl: float, hold: float, pause: float, **others: object) -> Action:
    """Return a use of a lock by a task that waits for it without a limit."""
    return replace(Action(kind, ("name-0",), ttl, hold=hold, pause=pause), **others)  # type: ignore[arg-type]


def among(
    chance: random.Random, plan: Plan, masters: int, clients: int, ttl: float, pushes: bool = True, drift: float = 0.0
) -> Plan:
    """Return a plan without tasks and faults, in which exclusion is promised.

    Args:
        drift: by which share of the time clocks go wrong at most.
    """
    return replace(
        plan,
        masters=tuple((chance.choice(KINDS), pushes, 1 + chance.uniform(-drift, drift)) for _ in range(masters)),
        clients=tuple(
            (1 + chance.uniform(-drift, drift), 0.0, pushes, chance.choice((0.0, 0.02, 0.1))) for _ in range(clients)
        ),
        tasks=(),
        faults=(),
        far_us=chance.choice((20, 100, 500, 3000)),
        pauses=0.0,
        ttl=ttl,
        known=True,
        trusty=True,
    )


def kind_of(chance: random.Random, kinds: tuple[str, ...]) -> str:
    """Draw one of the kinds of locks that have a single name."""
    return chance.choice([kind for kind in kinds if kind != "many"])


def restoring(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks on a bare quorum, one master of which is restarted with older keys."""
    ttl, kinds, clients = chance.choice((0.1, 0.4, 2.0)), chance.choice(FAMILIES), chance.randint(2, 4)
    plan = among(chance, plan, 3, clients, ttl)
    down = chance.choice((0.001, 0.05))
    if chance.random() < 0.5:
        # The last second of the file is missing.
        first, at, age = 0.0, chance.uniform(0, ttl / 2), chance.choice((0.01, 0.1, 1.0))
        faults = [Fault(at, "restart_older", (0, age, down))]
    else:
        # The dump is older than a flush, after which the master has got another marker and may vote again.
        first, at, age = ttl * 1.1, 0.0, ttl * chance.uniform(1.3, 2.5)
        faults = [Fault(0.0, "restart_older", (0, age, down)), Fault(0.01, "flush_pushing", (0,))]
    until = at + age
    faults.append(Fault(0.0, "block", (0, 2, "both", until + ttl)))
    tasks = []
    for client in range(clients):
        for _ in range(chance.choice((1, 1, 2))):
            # The first use makes the client known to the masters.
            before = use("plain", ttl, 0.0, 0.0, names=("name-1",), timeout=0.1)
            pause = chance.choice((first, first + chance.uniform(0, until)))
            hold = ttl * chance.choice((0.1, 0.5, 1.5))
            extends = (Extension(ttl),) if chance.random() < 0.2 else ()
            actions = [use(kind_of(chance, kinds), ttl, hold, pause, extends=extends)]
            actions += [use(kind_of(chance, kinds), ttl, hold, chance.uniform(0, ttl))] * chance.choice((0, 1))
            tasks.append((client, (before, *actions)))
    return replace(plan, tasks=tuple(tasks), faults=tuple(faults))


def waking(chance: random.Random, plan: Plan) -> Plan:
    """Draw a lock on a bare quorum, one master of which loses its keys silently; all others have rested for a second.

    Their next use begins with a pulse, so exclusion is promised.
    """
    ttl, kinds, clients = chance.choice((4.0, 6.0)), chance.choice(FAMILIES), chance.randint(2, 4)
    pushes = chance.random() < 0.7
    plan = among(chance, plan, 3, clients, ttl, pushes)
    at = chance.uniform(0.05, 1.5)
    back = chance.choice((0.0, 0.0, chance.uniform(0.01, ttl)))
    lost = Fault(at, "swap", (0, back)) if pushes or chance.random() < 0.5 else Fault(at, "flush", (0,))
    holder = use(kind_of(chance, kinds), ttl, ttl * chance.choice((0.7, 1.5)), 0.0)
    tasks: list[tuple[int, tuple[Action, ...]]] = [(0, (holder,))]
    for client in range(1, clients):
        before = use("plain", ttl, 0.0, 0.0, names=("name-1",), timeout=0.1)
        # It must not wait for the lock when the keys are lost.
        later = use(kind_of(chance, kinds), ttl, 0.1, max(1.2, at + 0.01) + chance.uniform(0, 1))
        tasks.append((client, (before, later)))
    return replace(plan, tasks=tuple(tasks), faults=(Fault(0.0, "block", (0, 2, "both", ttl)), lost))


def idling(chance: random.Random, plan: Plan) -> Plan:
    """Draw clients that rest for up to ten weeks, while a minority of the masters forgets or is restarted."""
    masters, clients, kinds = chance.choice((3, 3, 5)), chance.randint(2, 4), chance.choice(FAMILIES)
    longest = chance.choice((10.0, 60.0, 60.0, 60.0, 600.0, 5400.0))
    drift = chance.choice((0.0, 0.004))
    if longest > 60:
        # A client looks once a second at a master that is kept out.
        clients, drift = 2, 0.0
    plan = among(chance, plan, masters, clients, longest, chance.random() < 0.8, drift)
    rests = (3600.0, KEPT / 2, KEPT - 1, KEPT + 1, 2 * KEPT)
    tasks = []
    for client in range(clients):
        actions = []
        for _ in range(chance.randint(2, 3)):
            ttl = chance.choice((0.4, 10.0, longest))
            hold = chance.choice((0.0, 0.01, min(ttl, 30.0) * 0.9, ttl * 0.9))
            pause = chance.choice((0.0, *rests)) + chance.uniform(0, 1)
            kind, timeout = kind_of(chance, kinds), chance.choice((0.0, 0.3, 5.0))
            renew = hold < 60 and chance.random() < 0.2 and kind in RENEWABLE
            actions.append(use(kind, ttl, hold, pause, timeout=timeout, renew=renew))
        tasks.append((client, tuple(actions)))
    forgetful = chance.randrange(masters // 2)
    faults = [_amid_rest(chance, forgetful, clients, rests) for _ in range(3 if longest <= 60 else 1)]
    return replace(plan, tasks=tuple(tasks), faults=in_order(faults), known=chance.random() < 0.7, default_ttl=10.0)


def _amid_rest(chance: random.Random, master: int, clients: int, rests: tuple[float, ...]) -> Fault:
    """Draw a fault at the end of a rest, or somewhere in it."""
    rest = chance.choice(rests)
    at = chance.choice((rest + chance.uniform(-1, 2), chance.uniform(0, rest)))
    down = chance.choice((0.01, 1.0, 30.0))
    details: dict[str, tuple[object, ...]] = {
        "restart": (master, down),
        "restart_empty": (master, down),
        "restart_older": (master, chance.choice((0.5, 60.0)), down),
        "flush_pushing": (master,),
        "stop": (master, down),
        "block": (chance.randrange(clients), master, "both", down),
        "reset": (chance.randrange(clients), master),
    }
    what = chance.choice([*details])
    return Fault(at, what, details[what])


def lasting(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks with ttls of 5, 10 and 60 s, while the first masters of three or five forget their keys."""
    masters, clients, kinds = chance.choice((3, 3, 5)), chance.randint(2, 4), chance.choice(FAMILIES)
    plan = among(chance, plan, masters, clients, 60.0, True, chance.choice((0.0, 0.004)))
    ttls = (5.0, 10.0, 60.0)
    tasks = []
    for client in range(clients):
        actions = []
        for _ in range(chance.randint(1, 3)):
            ttl = chance.choice(ttls)
            hold = ttl * chance.choice((0.01, 0.3, 0.9, 1.2))
            pause = chance.choice((0.0, chance.uniform(0, 5), chance.uniform(0, 60)))
            extends = (Extension(chance.choice(ttls)),) if chance.random() < 0.3 else ()
            actions.append(use(kind_of(chance, kinds), ttl, hold, pause, extends=extends))
        tasks.append((client, tuple(actions)))
    faults = []
    for _ in range(chance.choice((1, 2, 3))):
        forgetful, down = chance.randrange(masters // 2), chance.choice((0.001, 0.05, 2.0))
        age = chance.choice((0.5, 1.0, 5.0))
        details: dict[str, tuple[object, ...]] = {
            "restart_empty": (forgetful, down),
            "restart_older": (forgetful, age, down),
            "flush_pushing": (forgetful,),
        }
        what = chance.choice([*details])
        faults.append(Fault(chance.choice((0.1, chance.uniform(0, 60))), what, details[what]))
    for _ in range(chance.choice((0, 1, 2))):
        way = chance.randrange(clients), chance.randrange(masters // 2, masters), chance.choice(("there", "both"))
        faults.append(Fault(chance.uniform(0, 30), "block", (*way, chance.choice((0.05, 5.0, 60.0)))))
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, tasks=tuple(tasks), faults=tuple(faults), default_ttl=10.0)


def raising(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks with ttls above the default, whose raises are late or answered in halves, while a master forgets."""
    masters, clients, kinds = chance.choice((3, 3, 5)), chance.randint(2, 3), chance.choice(FAMILIES)
    default, longest = chance.choice((0.03, 0.1)), chance.choice((0.4, 1.0))
    plan = among(chance, plan, masters, clients, longest)
    ttls = (default, longest / 2, longest)
    tasks = []
    for client in range(clients):
        for _ in range(chance.choice((1, 1, 2))):
            actions = []
            for _ in range(chance.randint(1, 3)):
                ttl = chance.choice(ttls)
                extends = (Extension(chance.choice(ttls)),) if chance.random() < 0.3 else ()
                hold, pause = ttl * chance.choice((0.1, 0.5, 0.9)), chance.choice((0.0, chance.uniform(0, 0.3)))
                actions.append(use(kind_of(chance, kinds), ttl, hold, pause, extends=extends))
            tasks.append((client, tuple(actions)))
    faults = []
    for client in range(clients):
        for master in chance.sample(range(masters), chance.randint(1, masters)):
            late = chance.choice((0.0, 0.001, 0.02, 0.2, longest))
            cut = chance.choice((-1, 0, chance.randint(1, 30)))
            rest = chance.choice((0.0005, 0.01, 0.1, -1.0))
            faults.append(
                Fault(chance.choice((0.0, chance.uniform(0, 0.3))), "late_raise", (client, master, late, cut, rest))
            )
    forgetful = chance.randrange(masters // 2)
    how = chance.choice((("restart_empty", (forgetful, 0.001)), ("flush_pushing", (forgetful,))))
    faults.append(Fault(chance.uniform(0, longest), *how))
    if chance.random() < 0.6:
        faults.append(Fault(0.0, "block", (0, masters - 1, "both", longest)))
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, tasks=tuple(tasks), faults=tuple(faults), default_ttl=default)


def alone(chance: random.Random, plan: Plan) -> Plan:
    """Draw one master that forgets locks, or is restarted without forgetting any; the rule of `alone` holds."""
    clients, ttl = chance.randint(2, 4), chance.choice((0.1, 0.4, 2.0))
    kinds = chance.choice((("plain", "fence", "rlock", "multi"), ("fence",), ("fence",), ("fair",), ("writer",)))
    plan = among(chance, plan, 1, clients, 4 * ttl, chance.random() < 0.8)
    tasks = []
    for client in range(clients):
        for _ in range(chance.choice((1, 1, 2))):
            actions = []
            for _ in range(chance.randint(1, 3)):
                kind, hold = chance.choice(kinds), ttl * chance.choice((0.1, 0.5, 0.9, 1.5, 3.0))
                extends = (Extension(ttl * chance.choice((1.0, 2.0, 4.0))),) if chance.random() < 0.4 else ()
                cared = {"renew": chance.random() < 0.3, "watch": chance.random() < 0.3} if kind in RENEWABLE else {}
                pause = chance.choice((0.0, chance.uniform(0, ttl)))
                actions.append(use(kind, ttl, hold, pause, extends=extends, **cared))
            tasks.append((client, tuple(actions)))
    ways = ("flush", "restart_empty", "restart_older", "swap", "restart")
    faults = [_forgets(chance, ttl, ways) for _ in range(chance.choice((1, 2, 3)))]
    # With a loss of memory that is not pushed and another fault, numbers may go back by an hour.
    silent = ("swap",) if plan.masters[0][1] else ("swap", "flush")
    faults = [fault for fault in faults if fault.what in silent][:1] or faults
    if chance.random() < 0.3:
        late = chance.randrange(clients), 0, chance.choice(WAYS), chance.choice((0.01, 0.1, ttl))
        faults.append(Fault(chance.uniform(0, ttl), "block", late))
    return replace(
        plan,
        tasks=tuple(tasks),
        faults=in_order(faults),
        pauses=chance.choice((0.0, 0.0, 0.01)),
        trusty=False,
        alone=True,
        marked_ago=7200.0,
        fences=True,
        default_ttl=ttl,
    )


def skewed(chance: random.Random, plan: Plan) -> Plan:
    """Draw a single master that forgets while its clients rest, and clients whose clocks differ; fences must increase.

    They do while clocks differ by less than an hour, and by less than half of the time since the last marker.
    """
    clients, ttl, at, pushes = chance.randint(2, 4), 0.4, 1.0, chance.random() < 0.8
    plan = among(chance, plan, 1, clients, ttl, pushes)
    ways = ("flush", "restart_empty", "restart_older") if pushes else ("restart_empty", "restart_older")
    fault = _forgets(chance, 1.0, ways)
    tasks = []
    for client in range(clients):
        before = use("fence", ttl, chance.choice((0.0, 0.05)), chance.uniform(0, 0.3))
        # Until then, its connection is made again.
        after = use("fence", ttl, chance.choice((0.0, 0.05)), at + 2.0 + chance.uniform(0, 0.3))
        tasks.append((client, (before, after) if chance.random() < 0.7 else (after,)))
    return replace(
        plan,
        clients=tuple((rate, chance.uniform(-1700, 1700), *rest) for rate, _, *rest in plan.clients),  # type: ignore[misc]
        tasks=tuple(tasks),
        faults=(replace(fault, at=at),),
        trusty=False,
        alone=True,
        marked_ago=7200.0,
        fences=True,
    )


def _forgets(chance: random.Random, ttl: float, ways: tuple[str, ...]) -> Fault:
    """Draw a way in which a single master forgets, or seems to forget."""
    down = chance.choice((0.001, 0.05))
    details: dict[str, tuple[object, ...]] = {
        "flush": (0,),
        "flush_pushing": (0,),
        "restart_empty": (0, down),
        "restart_older": (0, ttl * chance.choice((0.1, 0.5, 1.0)), down),
        "swap": (0, 0.0),
        "restart": (0, down),
    }
    return draw_fault(chance, [(what, details[what]) for what in ways], 2 * ttl)
