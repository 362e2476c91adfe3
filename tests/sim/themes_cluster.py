"""Themes of a cluster; only `--theme` and the tests draw them.

"slots": slots move at once or key by key, and nothing else happens; no lock stays free for long. "waking": slots move
without a push, and their clients use other locks in the same slot. "shards": replicas are promoted, nodes forget, slots
move meanwhile. "nodes": nodes leave, restart, are silent, and have old views; slots move.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .parts import FAMILIES, RENEWABLE, Fault, draw_details, draw_fault, in_order
from .plan import Action, Extension, Plan
from .themes_guard import among, kind_of, use

# The nodes that have slots at the beginning, the spare ones, and the replicas.
SHARDS, SPARES = 2, 1

# Two names in one slot, two in another, and one in a third.
NAMES = ("{a}0", "{a}1", "{b}0", "{b}1", "c")


def _clustered(chance: random.Random, plan: Plan, ttl: float, replicas: bool = False) -> Plan:
    """Return a plan of a cluster without tasks and faults."""
    nodes = SHARDS + SPARES
    plan = among(chance, plan, nodes + (SHARDS if replicas else 0), chance.randint(1, 4), ttl, True)
    return replace(
        plan,
        shards=SHARDS,
        replicas=tuple((shard, nodes + shard) for shard in range(SHARDS)) if replicas else (),
        seeds=tuple(chance.sample(range(SHARDS), chance.randint(1, SHARDS))),
        known=False,
        prompt=True,
        default_ttl=ttl,
    )


def _kinds(chance: random.Random) -> dict[str, tuple[str, ...]]:
    """Draw for each of a few names its kinds of locks."""
    names = chance.sample(NAMES, chance.choice((1, 2, 3)))
    return {name: chance.choice(FAMILIES) for name in names}


def _uses(chance: random.Random, kinds: dict[str, tuple[str, ...]], ttl: float, holds: tuple[float, ...]) -> Action:
    name = chance.choice([*kinds])
    kind = chance.choice(kinds[name])
    names = [name]
    if kind in ("multi", "many"):
        names += [other for other in kinds if other != name and kind in kinds[other] and chance.random() < 0.7]
    return use(
        kind,
        ttl,
        chance.choice(holds),
        chance.choice((0.0, 0.0, chance.uniform(0, 0.1))),
        names=tuple(names),
        timeout=chance.choice((None, None, 0.0, 0.05, 0.3)),
        cancel=chance.choice((None, None, None, chance.uniform(0, 0.005), chance.uniform(0, 0.1))),
        extends=(Extension(ttl),) if chance.random() < 0.2 else (),
        renew=kind in RENEWABLE and chance.random() < 0.1,
        watch=kind in (*RENEWABLE, "reader") and chance.random() < 0.2,
        wait=chance.random() < 0.8,
    )


def _tasks(
    chance: random.Random, plan: Plan, ttl: float, holds: tuple[float, ...], uses: tuple[int, int] = (2, 6)
) -> Plan:
    kinds = _kinds(chance)
    tasks = tuple(
        (client, tuple(_uses(chance, kinds, ttl, holds) for _ in range(chance.randint(*uses))))
        for client in range(len(plan.clients))
        for _ in range(chance.choice((1, 2, 3)))
    )
    return replace(plan, tasks=tasks)


def _move(chance: random.Random, span: float, pushes: bool = True) -> Fault:
    name, node = chance.randrange(3), chance.randrange(SHARDS + SPARES)
    gap = chance.choice((0.0, 0.0, 0.0005, 0.005))
    return Fault(chance.uniform(0, span), "move", (name, node, pushes, chance.choice((0.0, 0.002, 0.02)), gap))


def _migration(chance: random.Random, span: float) -> Fault:
    name, node = chance.randrange(3), chance.randrange(SHARDS + SPARES)
    gap, seconds = chance.choice((0.0, 0.001, 0.005)), chance.choice((0.002, 0.01, 0.04))
    news = chance.choice((0.0, 0.002, 0.02))
    return Fault(chance.uniform(0, span), "migrate", (name, node, news, gap, seconds))


def slots(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks whose slots move, at once or key by key, and nothing else; no lock stays free for long."""
    plan = _clustered(chance, plan, 6.0)
    if chance.random() < 0.3:
        return _undoing(chance, plan)
    plan = _tasks(chance, plan, 6.0, (0.0, 0.001, 0.01, 0.05))
    clean, span, number = chance.random() < 0.3, chance.choice((0.03, 0.1, 0.3)), chance.choice((1, 2, 4, 8))
    faults = []
    for _ in range(number):
        fault = _move(chance, span) if clean or chance.random() < 0.4 else _migration(chance, span)
        faults.append(replace(fault, details=(*fault.details[:3], 0.0, 0.0)) if clean else fault)
    return replace(plan, faults=in_order(faults))


def _undoing(chance: random.Random, plan: Plan) -> Plan:
    """Draw calls that are cancelled while their slot moves to and fro, and another call has been redirected already."""
    plan = replace(plan, far_us=chance.choice((500, 3000)))
    way = plan.far_us * 1e-6
    kinds = [kind for kind in chance.choice(FAMILIES) if kind not in ("multi", "many")]
    tasks = []
    for client in range(len(plan.clients)):
        for number in range(chance.choice((2, 3, 4))):
            name = "{a}0" if number and chance.random() < 0.5 else f"{{a}}{client}-{number}"
            actions = [
                use(
                    chance.choice(kinds if name == "{a}0" else ("plain", "fence")),
                    6.0,
                    chance.choice((0.0, way)),
                    chance.uniform(0, 4 * way),
                    names=(name,),
                    cancel=chance.choice((None, chance.uniform(0, 3 * way), chance.uniform(0, 8 * way))),
                    wait=chance.random() < 0.5,
                )
                for _ in range(chance.randint(3, 8))
            ]
            tasks.append((client, tuple(actions)))
    faults, at = [], 10 * way
    for number in range(chance.choice((2, 4, 8))):
        at += chance.uniform(2 * way, 12 * way)
        details = 0, number % 2, True, 0.0, chance.choice((0.0, 0.0, way))
        migration = Fault(at, "migrate", (0, number % 2, 0.0, 0.0, 3 * way))
        faults.append(migration if chance.random() < 0.2 else Fault(at, "move", details))
    return replace(plan, tasks=tuple(tasks), faults=in_order(faults))


def waking(chance: random.Random, plan: Plan) -> Plan:
    """Draw waiters whose slot moves without a push, and a task of each client that uses another lock in the slot."""
    plan = _clustered(chance, plan, 6.0)
    plan = replace(plan, far_us=min(plan.far_us, 500))
    at = chance.uniform(0.02, 0.08)
    tasks: list[tuple[int, tuple[Action, ...]]] = []
    kind = chance.choice(("plain", "fence", "rlock", "fair"))
    hold = at + chance.uniform(0.04, 0.08)
    for client in range(len(plan.clients)):
        waits = [use(kind, 6.0, 0.001, chance.uniform(0.01, at), names=("{a}0",)) for _ in range(chance.choice((1, 2)))]
        if not client:
            waits[0] = use(kind, 6.0, hold, 0.0, names=("{a}0",))
        tasks += [(client, (each,)) for each in waits]
        ticks = tuple(use("plain", 6.0, 0.0, 0.02, names=("{a}1",), timeout=0.0) for _ in range(12))
        tasks.append((client, ticks))
    move = Fault(at, "move", (0, chance.randrange(SHARDS + SPARES), False, 0.0, 0.0))
    return replace(plan, tasks=tuple(tasks), faults=(move,))


def shards(chance: random.Random, plan: Plan) -> Plan:
    """Draw shards whose replicas are promoted, and nodes that forget, while slots move; the rule of `Shards` holds."""
    ttl = chance.choice((0.1, 0.4, 2.0))
    plan = _clustered(chance, plan, ttl, replicas=chance.random() < 0.7)
    kinds = chance.choice((("plain", "fence", "rlock"), ("fence",), ("fair",), ("writer",), ("plain", "multi")))
    names = chance.sample(NAMES, chance.choice((1, 1, 2)))
    tasks = []
    for client in range(len(plan.clients)):
        for _ in range(chance.choice((1, 1, 2))):
            actions = []
            for _ in range(chance.randint(1, 4)):
                kind, hold = kind_of(chance, kinds), ttl * chance.choice((0.01, 0.1, 0.5, 0.9, 1.5))
                extends = (Extension(ttl * chance.choice((1.0, 2.0))),) if chance.random() < 0.3 else ()
                cared = {"renew": chance.random() < 0.3, "watch": chance.random() < 0.3} if kind in RENEWABLE else {}
                pause = chance.choice((0.0, chance.uniform(0, ttl)))
                one = use(kind, ttl, hold, pause, names=(chance.choice(names),), extends=extends, **cared)
                actions.append(replace(one, timeout=chance.choice((None, None, ttl, 0.0))))
            tasks.append((client, tuple(actions)))
    span = 2 * ttl
    faults = [_forgets(chance, plan, ttl, span) for _ in range(chance.choice((1, 1, 2)))]
    for _ in range(chance.choice((0, 0, 1, 3))):
        faults.append(_move(chance, span) if chance.random() < 0.5 else _migration(chance, span))
    if chance.random() < 0.3:
        client, node = chance.randrange(len(plan.clients)), chance.randrange(len(plan.masters))
        whats = "block", "reset", "slow", "stop"
        kinds_of = [(what, draw_details(chance, what, client, node, chance.choice((0.005, 0.05)))) for what in whats]
        faults.append(draw_fault(chance, kinds_of, span))
    return replace(
        plan,
        tasks=tuple(tasks),
        faults=in_order(faults),
        ttl=2 * ttl,
        trusty=False,
        alone=True,
        prompt=False,
    )


def _forgets(chance: random.Random, plan: Plan, ttl: float, span: float) -> Fault:
    node = chance.randrange(SHARDS)
    if plan.replicas and chance.random() < 0.7:
        lag, away = chance.choice((0.0, 0.02, ttl / 2)), chance.choice((0.001, 0.02, 0.2, ttl))
        details = node, lag, chance.random() < 0.5, chance.choice((0.0, 0.01, 0.1)), away
        return Fault(chance.uniform(0, span), "promote", details)
    kinds: list[tuple[str, tuple[object, ...]]] = [("flush", (node,)), ("restart_empty", (node, 0.001))]
    return draw_fault(chance, kinds, span)


def nodes(chance: random.Random, plan: Plan) -> Plan:
    """Draw nodes that leave, restart, are silent or redirect by old views, while slots move; no key is lost."""
    ttl = chance.choice((0.1, 0.4, 6.0, 6.0))
    holds = (0.0, 0.001, 0.01, min(ttl, 0.4) / 3, min(ttl, 0.4) * 1.5)
    plan = _clustered(chance, plan, ttl)
    if chance.random() < 0.2:
        return _owing(chance, plan)
    plan = _tasks(chance, plan, ttl, holds)
    span = chance.choice((0.05, 0.2, 0.5))
    faults = []
    for _ in range(chance.choice((1, 2, 4, 8))):
        faults.append(_move(chance, span, chance.random() < 0.5) if chance.random() < 0.5 else _migration(chance, span))
    for _ in range(chance.choice((1, 2, 3, 5))):
        faults.append(_fault(chance, plan, span))
    if chance.random() < 0.4:
        node, target = chance.sample(range(SHARDS + SPARES), 2)
        leaves = node, target, chance.choice((0.0, 0.005, 0.05)), chance.choice((0.0, 0.02, 0.5))
        faults.append(Fault(chance.uniform(0, span), "leave", leaves))
    return replace(plan, faults=in_order(faults), pauses=chance.choice((0.0, 0.0, 0.01)), prompt=False)


def _owing(chance: random.Random, plan: Plan) -> Plan:
    """Draw releases that a node misses, because its connections break; then the node leaves."""
    plan = replace(plan, far_us=min(plan.far_us, 500))
    node, target = chance.sample(range(SHARDS), 2)
    # A question for the topology waits a second for the node that is blocked.
    at, seconds = chance.uniform(0.03, 0.06), chance.choice((1.5, 2.5))
    tasks = []
    for client in range(len(plan.clients)):
        for number in range(chance.choice((1, 2, 4))):
            hold, wait = chance.uniform(0.8 * at, at), chance.random() < 0.5
            tasks.append((client, (use("plain", 6.0, hold, 0.0, names=(f"{{{number}}}{client}",), wait=wait),)))
    faults = [Fault(at + chance.uniform(0.01, 0.1), "leave", (node, target, 0.0, chance.choice((0.0, 0.02, 0.5))))]
    for client in range(len(plan.clients)):
        faults.append(Fault(0.85 * at, "block", (client, node, "both", seconds)))
        faults.append(Fault(at + chance.uniform(0, 0.02), "reset", (client, node)))
    return replace(plan, tasks=tuple(tasks), faults=in_order(faults), ttl=6.0, default_ttl=6.0, prompt=False)


def _fault(chance: random.Random, plan: Plan, span: float) -> Fault:
    client, node = chance.randrange(len(plan.clients)), chance.randrange(SHARDS + SPARES)
    seconds = chance.choice((0.0005, 0.005, 0.05, 0.3))
    whats = (
        *("block", "slow", "reset", "reset", "cut", "stop", "restart", "loading"),
        *("forget_scripts", "pause", "kill", "set_wall"),
    )
    kinds = [(what, draw_details(chance, what, client, node, seconds)) for what in whats]
    kinds += [("deafen", (node, seconds))] * 3 + [("cluster_down", (node, seconds))]
    kinds += [("forget_scripts_amid", (node, chance.randint(1, 4))), ("hold_up", (client, node, seconds / 5))]
    return draw_fault(chance, kinds, span)
