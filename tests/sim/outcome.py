"""Limits and outcome of a schedule, of simulated tasks or of simulated threads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .world import MILLISECOND, SECOND

# The world's time for everything that a plan contains.
SPAN_NS = 20 * SECOND

# An attempt with a chosen token that got no answer is not undone (see `quorum.kinds.foreign.Given`): its key stays
# until its ttl. A schedule may take as much longer as this many of them make it.
LOST_ATTEMPTS = 3

# How much later than its deadline a loss may be reported.
LATE_NS = 5 * MILLISECOND


# The errors of code that is wrong in itself, in the text of a broken rule. Others, such as an IndexError, may be how a
# race shows.
CRASHES = re.compile(r"\b(AttributeError|ImportError|NameError|SyntaxError|TypeError|UnboundLocalError)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a schedule.

    Attributes:
        wrong: the rules that it broke.
        digest: a hash of its history, the same for every run of the plan.
        grants: how many locks were acquired.
        trace: a line for each event of interest, if tracing was on.
    """

    seed: int
    wrong: tuple[str, ...]
    digest: str
    grants: int
    trace: tuple[str, ...] = ()

    def crash(self) -> str:
        """Return the first broken rule that is an error of code which is wrong in itself; "" if there is none."""
        return next((rule for rule in self.wrong if CRASHES.search(rule)), "")
