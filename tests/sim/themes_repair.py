"""Themes about votes that a held lock gets back (row 73). Only `--theme` and the tests draw them.

"rolling": locks are renewed while all masters forget one after another, each when the one before votes again.
"repairing": one master loses keys and scripts again and again, and answers late; locks are released right behind their
extensions.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .parts import FAMILIES, RENEWABLE, Fault, in_order
from .plan import Action, Extension, Plan
from .themes_guard import among, kind_of, use

# The longest time until a client has found a master that is back, in seconds.
FOUND = 1.2


def rolling(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks that are renewed during a rolling restart, and rivals that wait or try."""
    ttl, kinds, clients = chance.choice((0.1, 0.4)), chance.choice(FAMILIES), chance.randint(2, 3)
    masters = chance.choice((3, 3, 5))
    plan = among(chance, plan, masters, clients, ttl)
    # Kept out for a ttl, found again, and repaired by a renewal; a rival that just tries may delay that.
    step, begins = FOUND + 4 * ttl, 0.2
    order = chance.sample(range(masters), masters)
    faults = []
    for place, master in enumerate(order):
        down = chance.choice((0.001, 0.05))
        what = chance.choice(("restart_empty", "restart_empty", "flush_pushing"))
        faults.append(Fault(begins + place * step + chance.uniform(0, ttl), what, (master, down)))
    lasts = begins + masters * step + chance.uniform(0, 2 * ttl)
    renewed = [kind for kind in kinds if kind in RENEWABLE]
    holder = use(chance.choice(renewed), ttl, lasts, chance.uniform(0, begins / 2), renew=True)
    tasks: list[tuple[int, tuple[Action, ...]]] = [(0, (holder,))]
    for client in range(clients):
        rival = use(kind_of(chance, kinds), ttl, 0.01, 0.0)
        if client and chance.random() < 0.5:
            tasks.append((client, (replace(rival, pause=0.15),)))
        else:
            pauses = [0.15, *[chance.uniform(0, 2 * step / masters) for _ in range(2 * masters)]]
            tasks.append((client, tuple(replace(rival, pause=pause, timeout=0.05) for pause in pauses)))
    return replace(plan, tasks=tuple(tasks), faults=tuple(faults), far_us=chance.choice((20, 100, 500)), heals=True)


def repairing(chance: random.Random, plan: Plan) -> Plan:
    """Draw locks that are extended and released at once, while one master loses keys and answers late."""
    ttl, kinds, clients = chance.choice((0.4, 2.0)), chance.choice(FAMILIES), chance.randint(1, 3)
    plan = among(chance, plan, chance.choice((3, 3, 5)), clients, ttl)
    late = chance.choice((0.002, 0.01, 0.03))
    faults = [Fault(0.0, "slow", (client, 0, late)) for client in range(clients)]
    losses = "delete", "delete", "evict", "forget_scripts"
    faults += [Fault(chance.uniform(0, 0.3), chance.choice(losses), (0,)) for _ in range(30)]
    for _ in range(chance.choice((0, 0, 2))):
        client, at = chance.randrange(clients), chance.uniform(0, 0.3)
        what, details = chance.choice((("reset", ()), ("astray", (0.01, -1)), ("block", ("both", 0.02))))
        faults.append(Fault(at, what, (client, 0, *details)))
    tasks = tuple(
        (client, tuple(_extending(chance, kind_of(chance, kinds), ttl) for _ in range(chance.choice((2, 4)))))
        for client in range(clients)
        for _ in range(chance.choice((1, 2)))
    )
    # Nobody sees that keys are deleted, so a lock on a bare quorum may get a second holder.
    return replace(plan, tasks=tasks, faults=in_order(faults), trusty=False)


def _extending(chance: random.Random, kind: str, ttl: float) -> Action:
    pauses = [chance.choice((0.0, 0.001, 0.02)) for _ in range(chance.choice((1, 2, 4)))]
    extends = tuple(Extension(round(ttl * chance.choice((0.5, 1.0)), 3), pause) for pause in pauses)
    hold = chance.choice((0.0, 0.0, 0.01, 0.05))
    return use(kind, ttl, hold, chance.uniform(0, 0.02), extends=extends, wait=chance.random() < 0.7)
