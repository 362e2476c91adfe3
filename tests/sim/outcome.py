"""Limits and outcome of a schedule, of simulated tasks or of simulated threads."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field

from .world import MILLISECOND, SECOND

# The world's time for everything that a plan contains.
SPAN_NS = 20 * SECOND

# An attempt with a chosen token that got no answer is not undone (see `quorum.kinds.foreign.Given`): its key stays
# until its ttl. A schedule may take as much longer as this many of them make it.
LOST_ATTEMPTS = 3

# How much later than its deadline a loss may be reported.
LATE_NS = 5 * MILLISECOND


# The errors of code that is wrong in itself, in the text of a broken rule. Others, such as an IndexError, may be how a
# race shows; where they come from decides.
CRASHES = re.compile(r"\b(AttributeError|ImportError|NameError|SyntaxError|TypeError|UnboundLocalError)\b")
FROM = re.compile(r"\[redlatch/(\S+):(\d+)\]")


def told(error: BaseException | None) -> str:
    """Return an uncaught error and the line of the package that it comes from, for the text of a broken rule."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    last = f"redlatch/{frames[-1].filename.rpartition('/redlatch/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__}: {error} [{last}]"


@dataclass(frozen=True)
class Patch:
    """Which lines of which file of the package are those of a mutant."""

    file: str = ""
    first: int = 0
    last: int = -1

    def has(self, rule: str) -> bool:
        """Return whether a broken rule is an error that these lines have raised."""
        return any(file == self.file and self.first <= int(line) <= self.last for file, line in FROM.findall(rule))


def patch_of(text: str) -> Patch:
    """Return the lines that are given as FILE:FIRST:LAST."""
    file, first, last = text.split(":")
    return Patch(file, int(first), int(last))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a schedule.

    Attributes:
        wrong: the rules that it broke.
        digest: a hash of its history, the same for every run of the plan.
        grants: how many locks were acquired.
        counts: how often something else happened, by its name.
        trace: a line for each event of interest, if tracing was on.
    """

    seed: int
    wrong: tuple[str, ...]
    digest: str
    grants: int
    counts: dict[str, int] = field(default_factory=dict)
    trace: tuple[str, ...] = ()

    def crash(self, patch: Patch) -> str:
        """Return the first broken rule that is a crash of a mutant: an error of its lines, or of code that is wrong in
        itself; "" if there is none.
        """
        return next((rule for rule in self.wrong if CRASHES.search(rule) or patch.has(rule)), "")
