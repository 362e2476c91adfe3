"""The themes in which some masters, or all, refuse scripts, and their clients use transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import themes, themes_guard
from .parts import EXCLUSIVE, Action, Fault, Plan

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
        tasks=tuple(
            (client, tuple(_exclusive(chance, action) for action in actions)) for client, actions in plan.tasks
        ),
        scriptless=tuple(scriptless),
    )


def _exclusive(chance: random.Random, action: Action) -> Action:
    if action.kind in EXCLUSIVE:
        return action
    return replace(action, kind=chance.choice(("plain", "fence")))


def touching(chance: random.Random, plan: Plan) -> Plan:
    """Draw a plan of `watching` in which keys are touched again and again while they keep their tokens."""
    plan = watching(chance, plan)
    masters = range(len(plan.masters))
    faults = [Fault(chance.uniform(0, 0.3), "touch", (chance.choice(masters),)) for _ in range(60)]
    return replace(plan, faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at)))
