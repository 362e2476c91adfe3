"""Themes that change a plan after `plan` has drawn it, with a random generator of their own.

A theme that is added here therefore does not change what `plan` draws for a seed.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .parts import FAMILIES, RENEWABLE, WAYS, Fault, in_order
from .plan import Action, Extension, Plan

# Whether exclusion is promised after SWAPDB replaced the keys of a minority. It is not: clients notice a swap only with
# their next pulse.
SWAPS_ARE_PROMISED = False

# The themes of seeds that have no other theme, each with its percentage of those seeds. "astray": connections break for
# the client alone while locks are extended, so that old bytes arrive late. "stopped": masters do not respond while
# several clients want the same lock. In the other three, a master forgets a lock that stands on a bare quorum: by
# SWAPDB, by one or two fail-overs that clients can see, or by two that they cannot see. "mixing": locks have different
# ttls, most of them longer than the default of the clients, and a minority of the masters forgets. "witnessing": the
# only other master that most clients can ask then does not know the ttl of the lock.
LATER = {"witnessing": 2, "mixing": 6, "astray": 10, "stopped": 10, "swapping": 2, "failing over": 3, "returning": 2}

# The sets of lock kinds that a "stopped" schedule may use.
TOGETHER = (
    *[(kind,) for kind in ("plain", "fence", "fair", "rlock", "multi", "many", "writer", "semaphore")],
    ("reader", "writer"),
    ("plain", "fence", "rlock"),
)

# The kinds of which several may wait in one client. Masters push no change that a client makes itself. So when a
# multi-lock, reader or writer undoes an attempt, another waiter of the same client sees that only at its next look,
# within a second.
SIDE_BY_SIDE = {"plain", "fence", "fair", "rlock", "many", "semaphore"}


def extended(chance: random.Random, plan: Plan) -> Plan:
    """Replace the extensions of a plan by one to three extensions with other ttls."""
    return _with_longest(plan.using(lambda action: replace(action, extends=_extensions(chance, action))))


def _extensions(chance: random.Random, action: Action) -> tuple[Extension, ...]:
    if not action.extends or chance.random() < 0.3:
        return action.extends
    return tuple(
        Extension(
            ttl=_other_ttl(chance, action.ttl),
            pause=chance.choice((0.0, 0.0, 0.001, 0.01)),
            patience=chance.choice((None, None, 0.0, chance.uniform(0, 0.03), 0.12)),
        )
        for _ in range(chance.choice((1, 2, 2, 3)))
    )


def _other_ttl(chance: random.Random, ttl: float) -> float:
    """Draw the ttl of an extension: it leaves some validity, and ends before the schedule."""
    return round(min(6.0, max(0.01, ttl * chance.choice((0.1, 0.3, 0.7, 1.0, 1.5, 4.0)))), 3)


def _with_longest(plan: Plan) -> Plan:
    """Set the ttl of the plan, which the guard uses, to the longest ttl of any extension."""
    extensions = [extension for action in plan.uses() for extension in action.extends]
    return replace(plan, ttl=max([plan.ttl, *[extension.ttl for extension in extensions]]))


def strayed(chance: random.Random, plan: Plan) -> Plan:
    """Let some connections break for the client alone, and some scripts be forgotten in the middle of a batch."""
    faults = []
    for fault in plan.faults:
        if fault.what in ("reset", "cut") and chance.random() < 0.6:
            client, master = fault.details[:2]
            faults.append(_stray(chance, fault.at, client, master))
        elif fault.what == "forget_scripts" and chance.random() < 0.4:
            faults.append(Fault(fault.at, "forget_scripts_amid", (*fault.details, chance.randint(1, 4))))
        else:
            faults.append(fault)
    return replace(plan, faults=tuple(faults))


def _stray(chance: random.Random, at: float, client: int, master: int) -> Fault:
    seconds = chance.choice((0.0005, 0.005, 0.02, 0.05, 0.1, 0.3))
    details = client, master, seconds, chance.choice((-1, -1, chance.randrange(300)))
    return Fault(at, chance.choice(("astray", "astray", "hold_up")), details)


def astray(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks that are extended repeatedly while their connections break or scripts are forgotten."""
    kinds, flushing = chance.choice(FAMILIES), chance.random() < 0.5
    masters, ttl = chance.choice((1, 1, 1, 3)), 0.4 if flushing else chance.choice((0.1, 0.4, 0.4))
    far_us = 10_000 if flushing else chance.choice((500, 3000, 10_000))
    faults = []
    for _ in range(20 if flushing else chance.choice((2, 4, 6, 10))):
        at, client, master = (
            chance.choice((0.0, chance.uniform(0, 0.5))),
            chance.randrange(len(plan.clients)),
            chance.randrange(masters),
        )
        faults.append(Fault(at, "forget_scripts", (master,)) if flushing else _stray(chance, at, client, master))
        if flushing and chance.random() < 0.3:
            faults.append(Fault(at, "forget_scripts_amid", (master, chance.randint(1, 4))))
    names = ("name-0", "name-1") if flushing else ("name-0",)
    tasks = tuple(
        (client, tuple(_extender(chance, names, kinds, ttl, masters, flushing) for _ in actions[:2]))
        for client, actions in plan.tasks[:5]
    )
    return _with_longest(
        replace(
            plan,
            masters=tuple(plan.masters[place % len(plan.masters)] for place in range(masters)),
            tasks=tasks,
            faults=in_order(faults),
            far_us=far_us,
            pauses=0.0,
            ttl=ttl,
            trusty=True,
        )
    )


def _extender(
    chance: random.Random, names: tuple[str, ...], kinds: tuple[str, ...], ttl: float, masters: int, flushing: bool
) -> Action:
    kind = chance.choice([kind for kind in kinds if kind != "many"])
    short, long = ttl * chance.choice((0.3, 0.5)), ttl * chance.choice((3.0, 5.0))
    hasty = chance.uniform(0, 0.02) if flushing else chance.choice((None, 0.0, chance.uniform(0, 0.01)))
    strays = [] if flushing else chance.sample(range(masters), masters // 2 + 1)
    late = tuple((master, chance.choice((0.005, 0.05, 0.1, 0.2)), chance.choice((-1, -1, 100))) for master in strays)
    extends = [Extension(round(short, 3), 0.0, hasty, late), Extension(round(long, 3), chance.choice((0.0, 0.0, 0.01)))]
    # The pause gives late bytes time to take effect.
    if chance.random() < 0.7:
        extends.append(Extension(round(long, 3), long * chance.choice((0.3, 0.7))))
    return Action(
        kind=kind,
        names=(chance.choice(names),),
        ttl=ttl,
        hold=ttl * chance.choice((0.3, 1.0)),
        extends=tuple(extends),
        pause=chance.choice((0.0, chance.uniform(0, 0.05))),
    )


def stopped(chance: random.Random, plan: Plan) -> Plan:
    """Draw clients that want one lock while some masters accept bytes and answer nothing.

    In most plans these masters are a minority, and the liveness rule holds. If not, every acquire has a timeout.
    """
    masters, ttl = chance.choice((3, 3, 5)), chance.choice((0.4, 2.0, 6.0, 30.0))
    quorum = chance.random() < 0.15
    silent = masters // 2 + 1 if quorum else chance.randint(1, masters // 2)
    kinds = chance.choice(TOGETHER)
    pushes = chance.random() < 0.8
    clients = chance.choice((2, 2, 3, 4))
    faults = [*_silence(chance, masters, clients, silent, chance.choice((0.0, chance.uniform(0, 0.6))))]
    # Other masters are silent later.
    if not quorum and chance.random() < 0.3:
        faults = [replace(fault, details=(*fault.details[:-1], 1.0)) for fault in faults]
        faults += _silence(chance, masters, clients, silent, faults[-1].at + 1.1)
    return replace(
        plan,
        masters=tuple((chance.choice(("valkey", "redis", "old")), pushes, 1.0) for _ in range(masters)),
        clients=tuple((1.0, 0.0, True, chance.choice((0.0, 0.1))) for _ in range(clients)),
        tasks=tuple(
            (client, tuple(_wanting(chance, kinds, ttl, quorum, use) for use in range(chance.randint(2, 4))))
            for client in range(clients)
            for _ in range(chance.choice((1, 1, 1, 2) if set(kinds) <= SIDE_BY_SIDE else (1,)))
        ),
        faults=tuple(faults),
        far_us=chance.choice((20, 100, 500, 3000)),
        pauses=0.0,
        ttl=ttl,
        known=True,
        trusty=True,
        prompt=True,
        lively=not quorum,
    )


def _silence(chance: random.Random, masters: int, clients: int, silent: int, at: float) -> list[Fault]:
    """Draw masters that are silent for a long time: they are stopped, or the network blocks one direction."""
    chosen = chance.sample(range(masters), silent)
    if chance.random() < 0.7:
        return [Fault(at, "stop", (master, 3.0)) for master in chosen]
    way = chance.choice(("there", "back"))
    return [Fault(at, "block", (client, master, way, 3.0)) for client in range(clients) for master in chosen]


def _wanting(chance: random.Random, kinds: tuple[str, ...], ttl: float, quorum: bool, use: int) -> Action:
    """Draw the use number `use` of a task; the second one begins when all clients know their masters."""
    kind = chance.choice(kinds)
    holds = (0.0, 0.001, 0.01, 0.05, *[0.5 for _ in range(ttl < 1)])
    return Action(
        kind=kind,
        names=("name-0", "name-1") if kind in ("multi", "many") else ("name-0",),
        ttl=ttl,
        timeout=chance.choice((0.0, 0.1, 0.3)) if quorum else chance.choice((None, None, None, 0.0, 0.1, 0.5)),
        hold=chance.choice(holds),
        wait=chance.random() < 0.7,
        pause=chance.choice((0.5, chance.uniform(0.4, 0.6))) if use == 1 else chance.choice((0.0, 0.0, 0.001)),
    )


def swapping(chance: random.Random, plan: Plan) -> Plan:
    """Draw a lock on a bare quorum, one master of which then runs SWAPDB with an empty database."""
    plan = _bare(chance, plan, SWAPS_ARE_PROMISED)
    swap = Fault(_early(chance, plan), "swap", (0, chance.choice((0.0, 0.0, 0.01, plan.ttl / 2))))
    return replace(plan, faults=(*plan.faults, swap))


def failing_over(chance: random.Random, plan: Plan) -> Plan:
    """Draw a lock on a bare quorum, one master of which fails over to a lagging replica, once or twice."""
    plan = _bare(chance, plan, True)
    away = chance.choice((0.0, 0.0, chance.uniform(0, 4e-6 * plan.far_us), chance.uniform(0.02, plan.ttl)))
    lag = chance.choice((0.001, 0.01, 0.05))
    return replace(plan, faults=(*plan.faults, Fault(_early(chance, plan), "fail_over", (0, lag, away, 3600.0))))


def returning(chance: random.Random, plan: Plan) -> Plan:
    """Draw two fail-overs of a master that forgets them, by a short repl-backlog-ttl, before any client reaches it."""
    plan = _bare(chance, plan, True, 4.0)
    at, lag, away, backlog = chance.uniform(0, 0.01), chance.choice((0.05, 0.2)), 0.01, 1.0
    unseen = away + backlog + chance.uniform(0.02, 0.5)
    blocks = [Fault(at + lag, "block", (client, 0, "both", unseen)) for client in range(len(plan.clients))]
    return replace(plan, faults=(*plan.faults, Fault(at, "fail_over", (0, lag, away, backlog)), *blocks))


def _early(chance: random.Random, plan: Plan) -> float:
    return chance.uniform(0.0, plan.ttl / 2)


def _bare(chance: random.Random, plan: Plan, promised: bool, ttl: float = 0.0) -> Plan:
    """Draw clients that want one lock; the first client cannot reach the last of three masters."""
    ttl, clients = ttl or chance.choice((0.1, 0.4)), chance.randint(2, 4)
    kinds = chance.choice(FAMILIES)
    return replace(
        plan,
        masters=tuple((chance.choice(("valkey", "redis", "old")), True, 1.0) for _ in range(3)),
        clients=tuple((1.0, 0.0, True, chance.choice((0.0, 0.02, 0.1))) for _ in range(clients)),
        tasks=tuple(
            (client, tuple(_holding(chance, kinds, ttl) for _ in range(chance.randint(1, 3) if ttl < 1 else 1)))
            for client in range(clients)
            for _ in range(chance.choice((1, 1, 2)))
        ),
        faults=(Fault(0.0, "block", (0, 2, "both", ttl)),),
        far_us=chance.choice((20, 100, 500, 3000)),
        pauses=0.0,
        ttl=ttl,
        known=True,
        trusty=promised,
    )


def _holding(chance: random.Random, kinds: tuple[str, ...], ttl: float) -> Action:
    kind = chance.choice([kind for kind in kinds if kind != "many"])
    return Action(
        kind=kind,
        names=("name-0",),
        ttl=ttl,
        hold=ttl * chance.choice((0.1, 0.5, 1.5) if ttl < 1 else (0.5, 0.7)),
        extends=(Extension(ttl),) if chance.random() < 0.1 else (),
        renew=chance.random() < 0.1 and kind in RENEWABLE,
        pause=chance.choice((0.0, chance.uniform(0, min(ttl, 0.4) / 2))),
    )


def mixing(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks whose ttls are longer than the default, while the first masters of three or five forget their keys."""
    default, longest = chance.choice((0.03, 0.1)), chance.choice((0.4, 0.4, 1.0))
    masters, clients = chance.choice((3, 3, 5)), chance.randint(2, 4)
    kinds = chance.choice(FAMILIES)
    tasks = tuple(
        (client, tuple(_mixed(chance, kinds, default, longest) for _ in range(chance.randint(1, 3))))
        for client in range(clients)
        for _ in range(chance.choice((1, 1, 2)))
    )
    faults = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        forgetful, at = chance.randrange(masters // 2), chance.uniform(0, longest)
        if chance.random() < 0.5:
            faults.append(Fault(at, "restart_empty", (forgetful, chance.choice((0.001, 0.05)))))
        else:
            faults.append(Fault(at, "flush_pushing", (forgetful,)))
    for _ in range(chance.choice((0, 1, 2))):
        client, seconds = chance.randrange(clients), chance.choice((0.005, 0.05, longest))
        way = client, chance.randrange(masters // 2, masters), chance.choice(WAYS)
        faults.append(Fault(chance.choice((0.0, chance.uniform(0, longest))), "block", (*way, seconds)))
    return replace(
        plan,
        masters=tuple((chance.choice(("valkey", "redis", "old")), True, 1.0) for _ in range(masters)),
        clients=tuple((1.0, 0.0, True, chance.choice((0.0, 0.02, 0.1))) for _ in range(clients)),
        tasks=tasks,
        faults=in_order(faults),
        far_us=chance.choice((20, 100, 500, 3000)),
        pauses=chance.choice((0.0, 0.0, 0.01)),
        ttl=longest,
        known=chance.random() < 0.9,
        trusty=True,
        default_ttl=default,
    )


def witnessing(chance: random.Random, plan: Plan) -> Plan:
    """Draw a lock with a long ttl on masters 0 and 1, of which 0 forgets it; the other clients reach only 0 and 2."""
    default, longest, clients = chance.choice((0.03, 0.1)), 1.0, chance.randint(2, 3)
    kinds = chance.choice(FAMILIES)
    forgets = chance.uniform(0.05, 0.2)
    how = chance.choice((("restart_empty", (0, chance.choice((0.001, 0.05)))), ("flush_pushing", (0,))))
    first = replace(_holding(chance, kinds, longest), hold=0.9, pause=0.0, extends=(), renew=False)
    tasks: list[tuple[int, tuple[Action, ...]]] = [(0, (first,))]
    for client in range(1, clients):
        ttl = chance.choice((default, longest))
        later = replace(_holding(chance, kinds, ttl), hold=chance.choice((0.0, 0.01)), pause=forgets + default)
        # The first use makes the client known to the masters.
        tasks.append((client, (replace(later, names=("name-1",), pause=0.0), later, replace(later, pause=0.1))))
    blocks = [Fault(0.0, "block", (0, 2, "both", longest))]
    blocks += [Fault(forgets, "block", (client, 1, "both", longest)) for client in range(1, clients)]
    return replace(
        plan,
        masters=tuple((chance.choice(("valkey", "redis", "old")), True, 1.0) for _ in range(3)),
        clients=tuple((1.0, 0.0, True, 0.0) for _ in range(clients)),
        tasks=tuple(tasks),
        faults=(*blocks, Fault(forgets, *how)),
        far_us=chance.choice((20, 100, 500)),
        pauses=0.0,
        ttl=longest,
        known=True,
        trusty=True,
        default_ttl=default,
    )


def _mixed(chance: random.Random, kinds: tuple[str, ...], default: float, longest: float) -> Action:
    ttl = chance.choice((default, longest / 2, longest))
    action = _holding(chance, kinds, ttl)
    return replace(
        action,
        hold=ttl * chance.choice((0.1, 0.5, 1.5)),
        extends=(Extension(chance.choice((default, longest))),) if chance.random() < 0.3 else (),
    )
