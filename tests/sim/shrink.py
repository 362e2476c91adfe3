"""Makes a failing plan small, and shows what happens in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

from .outcome import Outcome
from .parts import Planned

P = TypeVar("P", bound=Planned[Any])


def shrink(plan: P, run: Callable[[P], Outcome], seeds: int = 0) -> P:
    """Leave out every part of a plan without which the same rule still breaks; return the plan if it breaks none.

    Args:
        run: runs a plan.
        seeds: how many other seeds each smaller plan is tried with.
    """
    rule = _broken(run(plan))
    smaller = bool(rule)
    while smaller:
        smaller = False
        for candidate in _seeded(plan, seeds):
            if _broken(run(candidate)) == rule:
                plan, smaller = candidate, True
                break
    return plan


def show(plan: P, run: Callable[..., Outcome], small: bool, seeds: int = 0) -> bool:
    """Print what happens in a schedule, and the rules that it breaks; return whether it breaks any.

    Args:
        small: whether the plan is made small before.
    """
    if small:
        plan = shrink(plan, run, seeds)
    result = run(plan, tracing=True)
    for field in fields(plan):
        if field.name != "tasks":
            print(f"{field.name}: {getattr(plan, field.name)}")
    for number, (client, uses) in enumerate(plan.tasks):
        for use in uses:
            print(f"task {number} of client {client}: {use}")
    print(*result.trace, sep="\n")
    print(*[f"{number} {name}, " for name, number in result.counts.items()], f"digest {result.digest}", sep="")
    for wrong in result.wrong:
        print(f"WRONG: {wrong}")
    return bool(result.wrong)


def _seeded(plan: P, seeds: int) -> Iterator[P]:
    for candidate in plan.candidates():
        yield candidate
        for number in range(seeds):
            yield replace(candidate, seed=number)


def _broken(result: Outcome) -> str:
    """Return the rule that breaks first, without names, numbers and kinds of locks."""
    return re.sub(r"\(\w+\)|[^a-zA-Z ]", "", result.wrong[0]) if result.wrong else ""
