"""The theme of handovers: locks are used while their masters are replaced. Only `--theme` and the tests draw it."""

from __future__ import annotations

import random
from dataclasses import replace

from .parts import FAMILIES, Fault, draw_details, draw_fault, in_order
from .plan import Action, Move, Plan
from .themes_guard import among, kind_of, use

# The old and the new list.
LISTS = (
    ((0, 1, 2), (3, 4, 5)),
    ((0, 1, 2), (0, 1, 3)),
    ((0, 1, 2), (0, 3, 4)),
    ((0, 1, 2), (0, 1, 2, 3, 4)),
    ((0, 1, 2, 3, 4), (2, 3, 4)),
    ((0,), (1, 2, 3)),
    ((0, 1, 2), (3,)),
)

# When the last mover begins, which reaches every master and does not crash.
LAST = 6.0

# When the last fault is over. A mover that cannot reach all masters does not begin.
QUIET = LAST - 2.5

# A mover shakes hands so often at most, if nothing interferes.
STEPS = 24


def moving(chance: random.Random, plan: Plan) -> Plan:
    """Draw movers that crash at any step, run twice and cannot reach some masters, while clients use locks.

    Some clients know both lists, others only the old one or only the new one, and some rest meanwhile.
    """
    lists, ttl, kinds = chance.choice(LISTS), chance.choice((0.1, 0.4)), chance.choice(FAMILIES)
    masters, clients = 1 + max(max(listed) for listed in lists), chance.randint(2, 4)
    plan = among(chance, plan, masters, clients, chance.choice((1, 2, 4)) * ttl, True, chance.choice((0.0, 0.004)))
    knows = tuple(chance.choice(("both", "both", "both", "old", "new")) for _ in range(clients))
    tasks = [
        (client, _uses(chance, kinds, ttl, plan.ttl, knows[client]))
        for client in range(clients)
        for _ in range(chance.choice((1, 1, 2)))
    ]
    faults = [_fault(chance, masters, clients, ttl) for _ in range(chance.choice((0, 0, 1, 2)))]
    if chance.random() < 0.4:
        faults.append(_forgets(chance, lists))
    moves = [_move(chance, masters) for _ in range(chance.choice((1, 1, 2, 3)))]
    return replace(
        plan,
        tasks=tuple(tasks),
        faults=in_order(faults),
        default_ttl=ttl,
        marked_ago=7200.0,
        lists=lists,
        knows=knows,
        moves=(*moves, Move(LAST)),
    )


def _uses(chance: random.Random, kinds: tuple[str, ...], ttl: float, longest: float, knows: str) -> tuple[Action, ...]:
    """Draw the uses of a task. A client that knows the new list only must not begin before the handover."""
    uses = [_use(chance, kinds, ttl, longest) for _ in range(chance.randint(3, 8))]
    if knows == "new":
        uses[0] = replace(uses[0], pause=LAST + 0.5 + uses[0].pause)
    return tuple(uses)


def _use(chance: random.Random, kinds: tuple[str, ...], ttl: float, longest: float) -> Action:
    chosen = chance.choice((ttl, longest))
    hold = chosen * chance.choice((0.01, 0.3, 0.9, 1.5))
    pause = chance.choice((0.0, chance.uniform(0, 1), chance.uniform(0, 3), LAST))
    return use(kind_of(chance, kinds), chosen, hold, pause, timeout=chance.choice((None, 0.1, 1.0)))


def _move(chance: random.Random, masters: int) -> Move:
    """Draw a mover that crashes, cannot reach some masters, or is not disturbed."""
    at = chance.uniform(0.1, 4.0)
    if chance.random() < 0.2:
        return Move(at, cut=(chance.randrange(masters),))
    crash = chance.choice((0, chance.randint(1, STEPS)))
    return Move(at, crash, chance.choice(("before", "after", "late")), chance.choice((0.001, 0.1, 1.0, 4.0)))


def _fault(chance: random.Random, masters: int, clients: int, ttl: float) -> Fault:
    client, master, seconds = chance.randrange(clients), chance.randrange(masters), chance.choice((0.05, ttl, 2.0))
    whats = "block", "reset", "stop", "restart", "pause"
    kinds = [(what, draw_details(chance, what, client, master, seconds)) for what in whats]
    return draw_fault(chance, kinds, QUIET)


def _forgets(chance: random.Random, lists: tuple[tuple[int, ...], ...]) -> Fault:
    """Draw that one master of the lists with several masters forgets."""
    several = [master for listed in lists if len(listed) > 1 for master in listed]
    master, down = chance.choice(several), chance.choice((0.001, 0.3))
    older = master, chance.choice((0.1, 1.0, 2.0)), down
    kinds = [("restart_empty", (master, down)), ("restart_older", older), ("flush_pushing", (master,))]
    return draw_fault(chance, kinds, QUIET)
