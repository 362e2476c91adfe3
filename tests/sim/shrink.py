"""Makes a failing plan small: it leaves out every part without which the same rule still breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .plan import Extension, Plan
from .schedule import run


def shrink(plan: Plan) -> Plan:
    """Return the smallest plan found that breaks the same rule; the plan itself if it breaks none."""
    rule = _broken(plan)
    if not rule:
        return plan
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(plan):
            if _broken(candidate) == rule:
                plan = candidate
                smaller = True
                break
    return plan


def _broken(plan: Plan) -> str:
    """Return the rule that breaks first, without names and numbers."""
    wrong = run(plan).wrong
    return "".join(letter for letter in wrong[0].split(":")[0] if letter.isalpha() or letter == " ") if wrong else ""


def _without(extends: tuple[Extension, ...], place: int) -> tuple[Extension, ...]:
    return extends[:place] + extends[place + 1 :]


def _candidates(plan: Plan) -> Iterator[Plan]:
    for number in range(len(plan.tasks)):
        yield replace(plan, tasks=plan.tasks[:number] + plan.tasks[number + 1 :])
    for number in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])
    for number, (client, actions) in enumerate(plan.tasks):
        for place in range(len(actions) if len(actions) > 1 else 0):
            rest = (client, actions[:place] + actions[place + 1 :])
            yield replace(plan, tasks=(*plan.tasks[:number], rest, *plan.tasks[number + 1 :]))
    for number in range(len(plan.moves)):
        yield replace(plan, moves=plan.moves[:number] + plan.moves[number + 1 :])
    if plan.pauses:
        yield replace(plan, pauses=0.0)
    for number, (client, actions) in enumerate(plan.tasks):
        for place, action in enumerate(actions):
            for plainer in (
                replace(action, cancel=None),
                replace(action, extends=()),
                *[replace(action, extends=_without(action.extends, one)) for one in range(len(action.extends))],
                replace(action, extends=tuple(replace(one, patience=None) for one in action.extends)),
                replace(action, extends=tuple(replace(one, strays=()) for one in action.extends)),
                replace(action, renew=False),
                replace(action, watch=False),
                replace(action, pause=0.0),
                replace(action, hold=0.0),
                replace(action, wait=True),
                replace(action, asks=False),
                replace(action, leaves=False),
                replace(action, elsewhere=None, here=True),
                replace(action, shown=False, elsewhere=None, here=True),
            ):
                if plainer != action:
                    changed = (client, (*actions[:place], plainer, *actions[place + 1 :]))
                    yield replace(plan, tasks=(*plan.tasks[:number], changed, *plan.tasks[number + 1 :]))
