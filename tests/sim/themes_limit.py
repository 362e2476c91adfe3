"""The theme "limiting": rate limits under cancellations and faults of a minority.

Only `--theme` and the tests draw it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .parts import PERMIT, Fault, in_order
from .plan import Action, Plan
from .themes_guard import among, use


def limiting(chance: random.Random, plan: Plan) -> Plan:
    """Draw tasks that acquire more permits of one rate limit than it has."""
    period, clients, masters = chance.choice((0.03, 0.1, 0.4)), chance.randint(1, 4), chance.choice((1, 1, 3, 3, 5))
    # The guard keeps a master out for this time. Without room above the period, slow masters let no acquire win.
    longest = chance.choice((period, 2 * period, 2.0))
    plan = among(chance, plan, masters, clients, longest, pushes=chance.random() < 0.8, drift=0.004)
    tasks = tuple(
        (client, tuple(_acquire(chance, period) for _ in range(chance.randint(1, 6))))
        for client in range(clients)
        for _ in range(chance.choice((1, 2, 3)))
    )
    faults: list[Fault] = []
    if chance.random() < 0.6:
        faults = [_fault(chance, masters, clients, period) for _ in range(chance.choice((1, 2, 4, 8)))]
    return replace(plan, tasks=tasks, faults=in_order(faults))


def _acquire(chance: random.Random, period: float) -> Action:
    return use(
        PERMIT,
        period,
        0.0,
        chance.choice((0.0, 0.0, 0.001, chance.uniform(0, period), period)),
        timeout=chance.choice((None, None, 0.0, period / 2, 2 * period)),
        cancel=chance.choice((None, None, None, chance.uniform(0, 0.005), chance.uniform(0, 2 * period))),
    )


def _fault(chance: random.Random, masters: int, clients: int, period: float) -> Fault:
    """Draw a fault of the network, or of a master; a minority may forget its keys."""
    client, master, at = chance.randrange(clients), chance.randrange(masters), chance.uniform(0, 4 * period)
    kinds: list[tuple[str, tuple[object, ...]]] = [
        ("block", (client, master, chance.choice(("there", "back", "both")), chance.uniform(0, period))),
        ("reset", (client, master)),
        ("cut", (client, master, chance.randrange(120))),
        ("slow", (client, master, chance.uniform(0, period / 4))),
        ("stop", (master, chance.uniform(0, period))),
        ("forget_scripts", (master,)),
    ]
    if masters > 2:
        kinds += [("restart_empty", (0, 0.001)), ("flush_pushing", (0,))]
    what, details = chance.choice(kinds)
    return Fault(at, what, details)
