"""Makes a failing plan small: it leaves out every part without which the same rule still breaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from .outcome import Outcome
from .parts import Planned

P = TypeVar("P", bound=Planned[Any])


def shrink(plan: P, run: Callable[[P], Outcome], seeds: int = 0) -> P:
    """Return the smallest plan found that breaks the same rule; the plan itself if it breaks none.

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


def _seeded(plan: P, seeds: int) -> Iterator[P]:
    for candidate in plan.candidates():
        yield candidate
        for number in range(seeds):
            yield replace(candidate, seed=number)


def _broken(result: Outcome) -> str:
    """Return the rule that breaks first, without names, numbers and kinds of locks."""
    return re.sub(r"\(\w+\)|[^a-zA-Z ]", "", result.wrong[0]) if result.wrong else ""
