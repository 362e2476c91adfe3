"""Themes about watches: of the keys of transactions on masters without scripts, and of the keys of held locks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import themes, themes_guard
from .parts import EXCLUSIVE, Fault, in_order
from .plan import Action, Plan

# What happens besides: connections that break and arrive late, masters that forget in every way, longer ttls. The theme
# "stopped" is missing, because its rule about the time of an acquire counts one round trip for each command.
AMID: tuple[tuple[Callable[[random.Random, Plan], Plan], int], ...] = (
    (themes.extended, 30),
    (themes.astray, 20),
    (themes.swapping, 5),
    (themes.failing_over, 5),
    (themes.returning, 5),
    (themes.mixing, 10),
    (themes.witnessing, 5),
    (themes_guard.restoring, 5),
    (themes_guard.waking, 5),
    (themes_guard.lasting, 5),
    (themes_guard.raising, 5),
)


def watching(chance: random.Random, plan: Plan) -> Plan:
    """Draw a plan of another theme with plain and fenced locks, on masters of which some refuse scripts."""
    make = chance.choices([make for make, _ in AMID], [weight for _, weight in AMID])[0]
    plan = make(chance, plan)
    if chance.random() < 0.5:
        plan = themes.strayed(chance, plan)
    masters = range(len(plan.masters))
    some = chance.sample(masters, chance.choice(masters) + 1)
    scriptless = masters if chance.random() < 0.5 else sorted(some)
    return replace(
        plan,
        # Old servers have neither DELIFEQ nor DELEX, so that each release is a transaction.
        masters=tuple((chance.choice((kind, "old")), pushes, rate) for kind, pushes, rate in plan.masters),
        scriptless=tuple(scriptless),
    ).using(lambda action: _exclusive(chance, action))


def _exclusive(chance: random.Random, action: Action) -> Action:
    if action.kind in EXCLUSIVE:
        return action
    return replace(action, kind=chance.choice(("plain", "fence")))


def touching(chance: random.Random, plan: Plan) -> Plan:
    """Draw a plan of `watching` in which keys are touched again and again while they keep their tokens."""
    plan = watching(chance, plan)
    masters = range(len(plan.masters))
    faults = [Fault(chance.uniform(0, 0.3), "touch", (chance.choice(masters),)) for _ in range(60)]
    return replace(plan, faults=in_order([*plan.faults, *faults]))


def deleting(chance: random.Random, plan: Plan) -> Plan:
    """Draw a plan in which an operator deletes the keys of held locks, whose holders asked for the report of a loss."""
    ttl = chance.choice((0.4, 6.0))
    masters = range(len(plan.masters))
    times = sorted([chance.uniform(0.03, 0.5) for _ in range(chance.randint(1, 3))])
    some = [chance.sample(masters, chance.choice(masters) + 1) for _ in times]
    deletions = [
        Fault(at + chance.choice((0.0, 0.0, 0.01)) * place, "delete", (master,))
        for at, chosen in zip(times, some, strict=True)
        for place, master in enumerate(chosen)
    ]
    touches = [Fault(chance.uniform(0, 0.5), "touch", (chance.choice(masters),)) for _ in range(10)]
    plan = plan.using(lambda action: _held(chance, action, ttl))
    faults = [*deletions, *chance.choice(((), touches, plan.faults))]
    return replace(
        plan,
        masters=tuple((kind, True, rate) for kind, _, rate in plan.masters),
        clients=tuple((rate, ahead, True, tenure) for rate, ahead, _, tenure in plan.clients),
        faults=in_order(faults),
        ttl=ttl,
        # Two holders may have a lock whose keys were deleted.
        trusty=False,
    )


def _held(chance: random.Random, action: Action, ttl: float) -> Action:
    """Return an action that holds its lock for long, mostly with an `on_lost`."""
    kind = action.kind if action.kind in ("plain", "fence", "fair", "writer") else chance.choice(("plain", "fence"))
    return replace(
        action, kind=kind, names=action.names[:1], ttl=ttl, hold=chance.uniform(0.1, 0.5), watch=chance.random() < 0.8
    )
