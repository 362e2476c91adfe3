"""What holders believed, and the rules that their beliefs must keep; for simulated and for real histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from .world import MILLISECOND


@dataclass(eq=False)
class Grant:
    """What one holder believes: that it has the lock, from when it was told until its deadline or its release.

    Times are nanoseconds by one clock for all.

    Attributes:
        who, name, kind: the holder, the lock, and which kind of lock it is.
        fence: its number, 0 where it has none.
        asked: when it asked for it.
        start: when it was told that it has it.
        token: of its lock.
        gave: the masters that are known to have given it that when it was told.
        end: from when on it knows that it may be somebody else's; -1 while that is not known.
    """

    who: str
    name: str
    kind: str
    fence: int
    asked: int
    start: int
    end: int = -1
    token: bytes = b""
    gave: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"{self.who} ({self.kind}) {self.start / MILLISECOND:.6f}..{self.end / MILLISECOND:.6f} ms"


def certain(grants: Iterable[Grant]) -> dict[str, list[Grant]]:
    """Sort out what was believed for any time at all: by name, each in the order in which it began."""
    by_name: dict[str, list[Grant]] = {}
    for grant in sorted(grants, key=lambda grant: grant.start):
        if grant.end > grant.start:
            by_name.setdefault(grant.name, []).append(grant)
    return by_name


def overlaps(grants: list[Grant], permits: int) -> Iterator[str]:
    """Tell of holders who believed at the same time what only one of them could have.

    Args:
        grants: of one name, in the order in which they began.
        permits: how many may hold a "semaphore".
    """
    held: list[Grant] = []
    for grant in grants:
        held = [other for other in held if other.end > grant.start]
        for other in held:
            if "reader" == grant.kind == other.kind or "semaphore" == grant.kind:
                continue
            yield f"{grant.name} has two holders: {other} and {grant}"
        held.append(grant)
        if grant.kind == "semaphore" and len(held) > permits:
            yield f"{grant.name} has {len(held)} holders: {', '.join(map(str, held))}"


def fences_back(grants: list[Grant], strictly: bool) -> Iterator[str]:
    """Tell of numbers that went back, or came twice.

    Args:
        grants: of one name, in the order in which they began.
        strictly: whether they go up with every holder; else only from one to another that asked when it had begun.
    """
    for earlier, later in pairwise([grant for grant in grants if grant.fence]):
        after = strictly or later.asked > earlier.start
        if later.fence == earlier.fence or (after and later.fence < earlier.fence):
            yield f"fences go back: {earlier.fence} of {earlier}, then {later.fence} of {later}"
