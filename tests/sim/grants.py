"""When holders believe that they have a lock, and the rules for that; for simulated and for real histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from .world import MILLISECOND


@dataclass(eq=False)
class Grant:
    """One holder's belief that it has the lock, from its grant until its deadline or its release.

    Times are nanoseconds of one clock that all share.

    Attributes:
        who, name, kind: the holder, the lock, and the kind of the lock.
        fence: its fence; 0 if it has none.
        asked: when the holder asked for the lock.
        start: when the holder learned that it has the lock.
        token: the token of the lock.
        gave: the masters that are known to have granted this token by `start`.
        end: from when on the holder knows that another may have the lock; -1 while that is unknown.
        confirmed: False if the masters have not confirmed the lock after `end`, although the holder asked them.
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
    confirmed: bool = True

    def __str__(self) -> str:
        return f"{self.who} ({self.kind}) {self.start / MILLISECOND:.6f}..{self.end / MILLISECOND:.6f} ms"


@dataclass(frozen=True)
class Permitted:
    """One acquire of a rate limit with this period, which ended between two times."""

    who: str
    period_ns: int
    since: int
    until: int

    def __str__(self) -> str:
        return f"{self.who} {self.until / MILLISECOND:.6f} ms"


def crowds(acquires: list[Permitted], permits: int) -> Iterator[str]:
    """Yield the acquires of one rate limit that were too many for one window of its period."""
    ended = sorted(acquires, key=lambda one: one.until)
    for place in range(len(ended) - permits):
        crowd = ended[place : place + permits + 1]
        if crowd[-1].until - min(one.since for one in crowd) < crowd[-1].period_ns:
            yield f"{len(crowd)} permits in one period: {', '.join(map(str, crowd))}"


def certain(grants: Iterable[Grant]) -> dict[str, list[Grant]]:
    """Group the grants that lasted for any time by name, each group in the order of its starts."""
    by_name: dict[str, list[Grant]] = {}
    for grant in sorted(grants, key=lambda grant: grant.start):
        if grant.end > grant.start:
            by_name.setdefault(grant.name, []).append(grant)
    return by_name


def overlaps(grants: list[Grant], permits: int) -> Iterator[str]:
    """Yield the holders that had the lock at the same time although they exclude each other.

    Args:
        grants: the grants of one name, in the order of their starts.
        permits: how many holders a "semaphore" may have.
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
    """Yield the fences that went back, or came twice.

    Args:
        grants: the grants of one name, in the order of their starts.
        strictly: whether fences increase with every holder. If not, a fence must only be greater than those of grants
            that had started when its holder asked.
    """
    for earlier, later in pairwise([grant for grant in grants if grant.fence]):
        after = strictly or later.asked > earlier.start
        if later.fence == earlier.fence or (after and later.fence < earlier.fence):
            yield f"fences go back: {earlier.fence} of {earlier}, then {later.fence} of {later}"
