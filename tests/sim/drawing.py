"""Draws the plan of one schedule of tasks from its seed."""

from __future__ import annotations

import random
from dataclasses import replace

from . import themes, themes_cluster, themes_guard, themes_limit, themes_moving, themes_repair, themes_watch
from .parts import EXCLUSIVE, FAMILIES, RENEWABLE, Fault, Names, draw_details, draw_fault, draw_lock, in_order
from .plan import DELETE, FOREIGN, Action, Extension, Plan

# The kinds of faults that may happen under every promise.
FAULTS = (
    *("block", "block", "slow", "reset", "cut", "stop", "restart", "full", "readonly", "loading"),
    *("forget_scripts", "forget_scripts", "forget_scripts", "set_back", "freeze", "pause", "kill", "set_wall"),
)

# The themes. "anything": no special theme. "racing": no holder releases its lock in time, and clocks are as wrong as
# allowed. "flushing": masters forget scripts, and calls are cancelled meanwhile. "leaving": calls are cancelled while
# locks are released. "forgetting": a master forgets a lock that stands on a bare quorum, and processes ask only then.
THEMES, WEIGHTS = ("anything", "racing", "flushing", "leaving", "forgetting"), (58, 18, 8, 9, 7)

# Each clock goes wrong by less than half of what the locks allow for (1 %).
DRIFT = 0.004


def draw_foreign(seed: int) -> Plan:
    """Draw a plan of drop-ins: the plan of the seed, with the drop-ins' kinds of locks and the actions of their users.

    Some plans are only about locks that another client releases. Others are about chosen tokens and servers that forget
    scripts, and others about keys that are deleted by hand.
    """
    plan = draw(seed)
    chance = random.Random(f"foreign {seed}")
    theme = chance.choices(("anything", "handing", "flushing", "deleting"), (30, 25, 25, 20))[0]
    # A late release deletes the key of a later attempt that chose the same token: the server cannot distinguish them.
    # So no connection goes astray in plans with chosen tokens. With such a token, a key may also stay on a silent
    # master until its ttl; nothing else is promised. The same holds for a lock that another process releases: its
    # release may reach a silent master before the command that acquires.
    if plan.prompt and theme == "flushing":
        theme = "anything"
    dropped = Plan.FORGETFUL if plan.trusty else frozenset[str]()
    if theme == "flushing":
        dropped |= {"astray"}
    faults = [fault for fault in plan.faults if fault.what not in dropped]
    chosen = theme == "flushing" or not (plan.goes_astray() or plan.prompt)
    if theme == "flushing":
        faults += [Fault(chance.uniform(0, 0.1), "forget_scripts", (at % len(plan.masters),)) for at in range(20)]
    clients = range(0 if plan.prompt else len(plan.clients))
    plan = plan.using(lambda action: _foreign(chance, action, clients, theme, chosen))
    # A lock would be renewed for ever if the client that releases it was killed.
    if any(fault.what == "kill" for fault in faults):
        plan = plan.using(lambda action: replace(action, renew=action.renew and action.here))
    return replace(plan, faults=in_order(faults), foreign=True)


def _foreign(chance: random.Random, action: Action, clients: range, theme: str, chosen: bool) -> Action:
    kind = "given" if theme == "flushing" else chance.choice(FOREIGN)
    if kind == "given" and (theme == "handing" or not chosen):
        kind = "plain"
    elif theme == "deleting" and chance.random() < 0.25:
        kind = DELETE
    shown, elsewhere = chance.random() < 0.5, chance.choice((None, None, *clients))
    # A caller that chose the token need not read it.
    if not shown and not (kind == "given" and chance.random() < 0.3):
        elsewhere = None
    if theme == "handing":
        action = replace(action, extends=(), renew=False)
    elif theme == "flushing":
        # This theme is about all clients at once, again and again.
        elsewhere, action = None, replace(action, timeout=None, cancel=None, hold=min(action.hold, 0.001))
    if chosen:
        action = replace(action, extends=tuple(replace(extension, strays=()) for extension in action.extends))
    return replace(
        action,
        kind=kind,
        names=action.names[:1],
        renew=action.renew and not action.watch,
        shown=shown,
        elsewhere=elsewhere,
        here=elsewhere is None or chance.random() < 0.5,
    )


DRAWN = {
    "astray": themes.astray,
    "stopped": themes.stopped,
    "swapping": themes.swapping,
    "failing over": themes.failing_over,
    "returning": themes.returning,
    "mixing": themes.mixing,
    "witnessing": themes.witnessing,
}

# Themes that no seed draws by itself.
GUARDING = {
    "restoring": themes_guard.restoring,
    "waking": themes_guard.waking,
    "idling": themes_guard.idling,
    "lasting": themes_guard.lasting,
    "raising": themes_guard.raising,
    "alone": themes_guard.alone,
    "skewed": themes_guard.skewed,
    "moving": themes_moving.moving,
    "watch": themes_watch.watching,
    "touching": themes_watch.touching,
    "deleting": themes_watch.deleting,
    "limiting": themes_limit.limiting,
    "rolling": themes_repair.rolling,
    "repairing": themes_repair.repairing,
}

# Themes of a cluster, which no seed draws by itself.
CLUSTERS = {
    "slots": themes_cluster.slots,
    "waking slots": themes_cluster.waking,
    "shards": themes_cluster.shards,
    "nodes": themes_cluster.nodes,
}


def draw(seed: int, theme: str = "") -> Plan:
    """Draw a plan with a theme of `DRAWN` or `GUARDING`; by default, some seeds without another theme draw one."""
    return _draw_theme(seed, theme).asking(random.Random(f"asks {seed}"), 0.15)


def _draw_theme(seed: int, theme: str) -> Plan:
    plan, first = _draw(random.Random(f"plan {seed}"), seed)
    # A second generator: new themes do not change the first plan.
    chance = random.Random(f"late {seed}")
    if not theme and first == "anything":
        theme = chance.choices(("", *themes.LATER), (100 - sum(themes.LATER.values()), *themes.LATER.values()))[0]
    if theme:
        return (DRAWN | GUARDING | CLUSTERS)[theme](chance, plan)
    if first in ("anything", "flushing", "leaving"):
        plan = themes.extended(chance, plan)
    return themes.strayed(chance, plan)


def _draw(chance: random.Random, seed: int) -> tuple[Plan, str]:
    """Draw a plan; return it with its theme."""
    masters = chance.choice((1, 1, 3, 3, 3, 5, 2))
    clients = chance.choice((1, 2, 2, 3, 3, 4))
    names = tuple((f"name-{number}", chance.choice(FAMILIES)) for number in range(chance.choice((1, 1, 1, 2, 3))))
    # Within 6.0 s no key expires by itself.
    ttl = chance.choice((0.03, 0.1, 0.1, 0.4, 6.0))
    theme = chance.choices(THEMES, WEIGHTS)[0]
    if theme == "leaving":
        ttl = 6.0
    racing = theme == "racing"
    forgetting = theme == "forgetting"
    if racing or forgetting:
        names, ttl = ((names[0][0], EXCLUSIVE),), chance.choice((0.1, 0.4))
    far_us = chance.choice({"flushing": (3000, 10_000), "leaving": (20,)}.get(theme, (20, 100, 500, 3000, 10_000)))
    pushing = chance.random() < 0.8
    trusty = chance.random() < 0.85 or forgetting
    if forgetting:
        masters, clients, pushing = 3, max(2, clients), True
    span = chance.choice((0.05, 0.2, 0.6))
    tasks = tuple(
        (client, tuple(_action(chance, names, ttl, theme, far_us) for _ in range(chance.randint(1, 4))))
        for client in range(clients)
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
    faults = [_fault(chance, masters, clients, span, trusty) for _ in range(chance.choice((0, 1, 1, 2, 3, 5, 8)))]
    if forgetting:
        faults = [
            Fault(0.0, "block", (0, 2, "both", ttl)),
            Fault(chance.uniform(0.001, ttl / 2), chance.choice(("restart_empty", "flush_pushing")), (0, 0.001)),
        ]
    if theme == "flushing":
        faults += [Fault(chance.uniform(0, span), "forget_scripts", (master % masters,)) for master in range(8)]
    plan = Plan(
        seed=seed,
        masters=tuple(
            (
                chance.choice(("valkey", "valkey", "redis", "old")),
                pushing or chance.random() < 0.3,
                1 + DRIFT if racing else _rate(chance),
            )
            for _ in range(masters)
        ),
        clients=tuple(
            (
                1 - DRIFT if racing else _rate(chance),
                chance.choice((0.0, 0.0, chance.uniform(-0.2, 0.2), chance.uniform(-3600, 3600))),
                chance.random() < 0.9,
                chance.choice((0.0, 0.02, 0.1)),
            )
            for _ in range(clients)
        ),
        tasks=tasks,
        faults=in_order(faults),
        far_us=far_us,
        pauses=chance.choice((0.0, 0.0, 0.002, 0.01)),
        ttl=ttl,
        known=chance.random() < 0.85,
        trusty=trusty,
    )
    return plan, theme


def _rate(chance: random.Random) -> float:
    return 1.0 + chance.choice((0.0, chance.uniform(-DRIFT, DRIFT)))


def _action(chance: random.Random, names: Names, ttl: float, theme: str, far_us: int) -> Action:
    holds: tuple[float, ...] = (0.0, 0.001, 0.01, min(ttl, 0.4) / 3, min(ttl, 0.4) * 1.5)
    cancels: tuple[float | None, ...] = (None, None, None, chance.uniform(0, 0.005), chance.uniform(0, 0.3))
    if theme == "flushing":
        cancels = None, chance.uniform(0, 4e-6 * far_us)
    elif theme == "leaving":
        holds = (0.001,)
        # The cancel comes at about the time at which the first holder releases the lock.
        cancels = None, holds[0] + chance.uniform(2e-6, 1e-5) * far_us
    kind, chosen = draw_lock(chance, names)
    return Action(
        kind=kind,
        names=chosen,
        ttl=ttl,
        timeout=None if theme in ("racing", "leaving", "forgetting") else chance.choice((0.0, 0.05, 0.3, None, None)),
        hold=ttl * 1.5 if theme in ("racing", "forgetting") else chance.choice(holds),
        extends=(Extension(ttl),) if chance.random() < 0.2 else (),
        renew=chance.random() < 0.15 and kind in RENEWABLE,
        watch=chance.random() < 0.3 and kind in (*RENEWABLE, "reader"),
        wait=chance.random() < 0.8,
        cancel=chance.choice(cancels),
        pause=chance.choice((0.0, chance.uniform(0, ttl / 2)))
        if theme == "forgetting"
        else 0.0
        if theme == "leaving"
        else chance.choice((0.0, 0.0, 0.0005, chance.uniform(0, 0.05))),
    )


def _fault(chance: random.Random, masters: int, clients: int, span: float, trusty: bool) -> Fault:
    client, master = chance.randrange(clients), chance.randrange(masters)
    seconds = chance.choice((0.0005, 0.005, 0.05, 0.3))
    kinds = [(what, draw_details(chance, what, client, master, seconds)) for what in FAULTS]
    whats: tuple[str, ...] = ("restart_empty", "flush", "evict", "set_forward")
    # A minority may forget its keys, because the guard keeps it out.
    if trusty:
        master = chance.randrange(max(1, (masters - 1) // 2))
        whats = ("restart_empty", "flush_pushing") if masters > 2 else ()
    more = [(what, draw_details(chance, what, client, master, seconds)) for what in whats]
    return draw_fault(chance, kinds + more * (1 if trusty else 3), span)
