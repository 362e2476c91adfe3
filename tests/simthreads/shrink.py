"""Shrinks a failing plan: removes every part without which the plan still breaks the same rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .plan import Plan
from .schedule import run

# A smaller plan is a different schedule, so this many seeds are tried for each one.
TRIES = 20


def shrink(plan: Plan) -> Plan:
    """Return the smallest plan found that breaks the same rule; the plan itself if it breaks none."""
    rule = _broken(plan)
    smaller = bool(rule)
    while smaller:
        smaller = False
        for candidate in _candidates(plan):
            found = next((again for again in _seeded(candidate) if _broken(again) == rule), None)
            if found is not None:
                plan, smaller = found, True
                break
    return plan


def _seeded(plan: Plan) -> Iterator[Plan]:
    yield plan
    for number in range(TRIES):
        yield replace(plan, seed=number)


def _broken(plan: Plan) -> str:
    """Return which rule breaks first, without names and numbers."""
    wrong = run(plan).wrong
    return "".join(letter for letter in wrong[0] if letter.isalpha() or letter == " ") if wrong else ""


def _candidates(plan: Plan) -> Iterator[Plan]:
    for number in range(len(plan.threads) if len(plan.threads) > 1 else 0):
        yield replace(plan, threads=plan.threads[:number] + plan.threads[number + 1 :])
    for number in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])
    for number in range(len(plan.interrupts)):
        yield replace(plan, interrupts=plan.interrupts[:number] + plan.interrupts[number + 1 :])
    for number, (client, uses) in enumerate(plan.threads):
        for place in range(len(uses) if len(uses) > 1 else 0):
            rest = (client, uses[:place] + uses[place + 1 :])
            yield replace(plan, threads=(*plan.threads[:number], rest, *plan.threads[number + 1 :]))
    for number, (client, uses) in enumerate(plan.threads):
        for place, use in enumerate(uses):
            for plainer in (
                replace(use, timeout=None),
                replace(use, extend=False),
                replace(use, renew=False),
                replace(use, watch=False),
                replace(use, pause=0.0),
                replace(use, hold=0.0),
                replace(use, wait=True),
                replace(use, asks=False),
                replace(use, leaves=False),
            ):
                if plainer != use:
                    changed = (client, (*uses[:place], plainer, *uses[place + 1 :]))
                    yield replace(plan, threads=(*plan.threads[:number], changed, *plan.threads[number + 1 :]))
