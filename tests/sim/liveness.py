"""The liveness rule: while a quorum of masters responds, a free lock is granted within a bound that no ttl affects.

The rule is judged when the schedule is over. A lock is free for a waiter while no other holder excludes that waiter.
Such a period ends with the next grant of the lock, and must not be longer than `Liveness.bound_ns`. Periods in which
clients find out which masters respond do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from redlatch.quorum.waiting.contention import BACKSTOP_NS
from redlatch.votes.units import drift_ns

from .grants import Grant
from .parts import PERMITS, Fault
from .plan import Plan
from .world import MICROSECOND, MILLISECOND, SECOND, World

# The bound is BOUND_NS plus BOUND_WAYS times the delay of a message. In this time a waiter looks, asks, finds that a
# master does not respond, is refused because of a rival's attempt, pauses for at most 50 ms, and asks again.
BOUND_NS = 200 * MILLISECOND
BOUND_WAYS = 60

# A client suspects silent masters after four times the duration of its last round. A message that is late once
# therefore affects rounds for LATE_ROUNDS times its delay.
LATE_ROUNDS = 4

# Periods that are not judged: after each change of the masters that respond, and after a client's first use
# (`connections.GRACE`).
DETECTION_NS = 100 * MILLISECOND
CONTACT_NS = 400 * MILLISECOND

# The longest time that a client's first use waits until a quorum is dialled.
CONNECT_NS = 4300 * MILLISECOND

# How much later than its timeout an acquire may return: an attempt waits for a second at most.
LATE_NS = 1250 * MILLISECOND

# How long a key may stay after its end, because of the sweep of the servers.
SWEPT_NS = 150 * MILLISECOND


@dataclass(eq=False)
class Wait:
    """One wait for a lock, by the world's time.

    Attributes:
        client, who: the process and the task that wait.
        name, kind: all names of the lock, and its kind.
        since, until: when the wait begins and ends; `until` is -1 while it lasts.
    """

    client: str
    who: str
    name: str
    kind: str
    since: int
    until: int = -1


class Liveness:
    """Records all waits, and judges whether any lock was free for too long while a task waited for it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self.bound_ns = BOUND_NS + BOUND_WAYS * plan.far_us * MICROSECOND
        self.waits: list[Wait] = []
        # Grants that ended by their ttl.
        self.expired: set[Grant] = set()
        # Grants that a deletion ended for their holder, but not on the masters.
        self.spared: set[Grant] = set()
        # Grants of which a deletion missed some keys, and until when their holders could have extended these.
        self.missed: dict[Grant, int] = {}
        # The time of each client's first use.
        self._first: dict[str, int] = {}
        self._unjudged = [
            (at, at + DETECTION_NS)
            for fault in plan.faults
            for at in (int(fault.at * SECOND), int((fault.at + float(fault.details[-1])) * SECOND))
        ]
        self._unwatched = _unwatched(plan.faults)

    def begin(self, client: str, who: str, names: tuple[str, ...], kind: str, now_ns: int) -> Wait:
        """Record that a task begins to wait."""
        self._first.setdefault(client, now_ns)
        since = max(now_ns, self._first[client] + CONTACT_NS)
        self.waits.append(Wait(client, who, _unit(names), kind, since))
        return self.waits[-1]

    def end(self, wait: Wait, asked_ns: int, now_ns: int, timeout: float | None) -> None:
        """Record that the waiter got the lock or gave up, and check its timeout."""
        wait.until = now_ns
        if timeout is None:
            return
        first = asked_ns < self._first[wait.client] + CONNECT_NS
        late = now_ns - asked_ns - int(timeout * SECOND) - (CONNECT_NS if first else 0)
        if late > LATE_NS:
            took = f"{(now_ns - asked_ns) / MILLISECOND:.3f} ms"
            self._world.violate(f"{wait.who} waited for {wait.name}, and {took} passed: its timeout was {timeout:g} s")

    def judge(self, grants: list[Grant]) -> None:
        """Look for periods in which a lock was free for too long while a task waited."""
        for wait in self.waits if self._plan.lively else ():
            until = wait.until if wait.until >= 0 else self._world.now
            mine = [grant for grant in grants if grant.name in wait.name.split(" ")]
            rivals = [other for other in self.waits if other.name == wait.name and other.kind == "writer"]
            for since, end in self._free(wait, until, mine, rivals):
                judged = self._judged(wait, since, end)
                if judged > self.bound_ns:
                    self._world.violate(
                        f"{wait.name} was free for {judged / MILLISECOND:.3f} ms, from {since / MILLISECOND:.3f} ms on,"
                        f" while {wait.who} waited ({wait.kind})"
                    )
                    return

    def _judged(self, wait: Wait, since: int, end: int) -> int:
        """Return the length of a period without the parts that do not count: changes of masters, and late messages."""
        late = [(arrives - delay, arrives + LATE_ROUNDS * delay) for arrives, delay in self._world.stragglers]
        judged, at = end - since, since
        unwatched = self._unwatched if wait.kind == "fair" else []
        for begins, ends in sorted(self._unjudged + unwatched + late):
            judged -= max(0, min(end, ends) - max(at, begins))
            at = max(at, ends)
        return judged

    def _free(self, wait: Wait, until: int, grants: list[Grant], writers: list[Wait]) -> Iterator[tuple[int, int]]:
        """Return the periods in which the lock was free for this waiter."""
        held = [(grant, grant.start, self._gone(grant)) for grant in grants]
        edges = {wait.since, until}
        for _, start, end in held:
            edges |= {start, end}
        if wait.kind == "reader":
            edges |= {edge for writer in writers for edge in (writer.since, writer.until)}
        times = sorted(edge for edge in edges if wait.since <= edge <= until)
        granted = {start for _, start, _ in held}
        free_since = -1
        for time, after in pairwise(times):
            held_now = [grant for grant, start, end in held if start <= time < end]
            out = _keeps_out(wait.kind, held_now)
            if wait.kind == "reader" and any(writer.since <= time < writer.until for writer in writers):
                out = True
            if out:
                free_since = -1
                continue
            if free_since < 0 or time in granted:
                free_since = time
            yield free_since, after

    def _gone(self, grant: Grant) -> int:
        """Return the latest time at which the masters have removed every key of a grant."""
        if grant not in self.expired and grant not in self.missed:
            return grant.end
        stays = int(self._plan.ttl * SECOND) if grant in self.spared or grant in self.missed else 0
        end = self.missed.get(grant, grant.end)
        return end + stays + 2 * drift_ns(round(self._plan.ttl * 1000), 0.01) + SWEPT_NS


def _unwatched(faults: tuple[Fault, ...]) -> list[tuple[int, int]]:
    """Return the periods in which a fair lock may stay free because its first waiter misses pushes.

    That waiter stands in the queues of the masters that answered when it began to wait, and these push its turn. If one
    of them stops after another master has come back, a quorum of masters responds, but fewer than a quorum push. The
    waiter asks again after `BACKSTOP_NS`, and the waiters behind it wait for it (docs/safety.md).
    """
    later = [
        int(fault.at * SECOND)
        for fault in faults
        if any(other.at < fault.at and other.details[:-1] != fault.details[:-1] for other in faults)
    ]
    return [(at, at + BACKSTOP_NS) for at in later]


def _unit(names: tuple[str, ...]) -> str:
    return " ".join(sorted(names))


def _keeps_out(kind: str, held: list[Grant]) -> bool:
    """Return whether the present holders exclude a waiter of this kind."""
    if kind == "reader":
        return any(grant.kind != "reader" for grant in held)
    if kind == "semaphore":
        return len(held) >= PERMITS
    return bool(held)
