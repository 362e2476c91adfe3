"""The parts of a plan that tasks and threads share: kinds of locks, uses of locks, faults, and smaller plans.

A plan is data, drawn from a seed, so that a failing one can be made smaller (`shrink`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

# The kinds of locks, grouped by which kinds may share a name.
EXCLUSIVE = ("plain", "fence", "rlock", "multi", "many")
FAMILIES = (EXCLUSIVE, EXCLUSIVE, ("fair",), ("reader", "writer"), ("semaphore",))
PERMITS = 2

# The permits of a rate limit; only the plans about them have this kind.
PERMIT = "permit"

# The kinds that can be renewed.
RENEWABLE = ("plain", "fence", "fair", "writer", "semaphore")

# Names of locks, each with the kinds that may be drawn for it.
Names = tuple[tuple[str, tuple[str, ...]], ...]

# The directions of a route that may be blocked.
WAYS = ("there", "back", "both")


@dataclass(frozen=True)
class Fault:
    """A fault at a time, in seconds; `what` is a method of `faults.Faults`."""

    at: float
    what: str
    details: tuple[Any, ...] = ()


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """Return faults in the order of their times."""
    return tuple(sorted(faults, key=lambda fault: fault.at))


@dataclass(frozen=True)
class Use:
    """One use of a lock.

    Attributes:
        kind: the kind of lock; see `FAMILIES`.
        names: its names; only "multi" and "many" have more than one.
        ttl, timeout, hold: seconds; a timeout of None means no limit.
        pause: seconds before it begins.
        renew: whether it is renewed until its release.
        watch: whether it has an `on_lost` callback.
        wait: whether its holder waits for the release.
        asks: whether its holder asks the masters whether it still has the lock, before it releases it.
        leaves: whether the release is the end of a ``with``.
    """

    kind: str
    names: tuple[str, ...]
    ttl: float
    timeout: float | None = None
    hold: float = 0.0
    pause: float = 0.0
    renew: bool = False
    watch: bool = False
    wait: bool = True
    asks: bool = False
    leaves: bool = False

    @property
    def waits(self) -> bool:
        """Whether the call that releases the lock waits for the masters."""
        return self.wait or self.kind in ("multi", "rlock")

    def plainer(self) -> Iterator[Self]:
        """Yield uses with less to do, and this one."""
        for field in fields(self):
            if field.default is not MISSING:
                yield replace(self, **{field.name: field.default})

    def asking(self, chance: random.Random, share: float) -> Self:
        """Let the holder ask whether it has the lock, with this probability, or the release end a ``with``."""
        asks, leaves = chance.random() < share, chance.random() < 0.3
        return replace(
            self,
            asks=asks and self.kind not in ("multi", "many"),
            leaves=leaves and self.wait and self.kind not in ("many", "rlock"),
        )


U = TypeVar("U", bound=Use)


@dataclass(frozen=True, kw_only=True)
class Planned(Generic[U]):
    """What every plan has.

    Attributes:
        tasks: for each task or thread (number of its client, its uses of locks).
        far_us: microseconds to the masters.
        ttl: the longest ttl of all locks, in seconds; the guard keeps forgetful masters out that long.
        trusty: whether mutual exclusion is promised under everything that happens.
    """

    # The fields whose items can be left out.
    ITEMS: ClassVar[tuple[str, ...]] = ("tasks", "faults")

    seed: int
    tasks: tuple[tuple[int, tuple[U, ...]], ...]
    faults: tuple[Fault, ...]
    far_us: int
    ttl: float
    trusty: bool = True

    def uses(self) -> Iterator[U]:
        """Yield all uses of locks."""
        for _, uses in self.tasks:
            yield from uses

    def using(self, change: Callable[[U], U]) -> Self:
        """Return the plan with every use changed."""
        return replace(self, tasks=tuple((client, tuple(map(change, uses))) for client, uses in self.tasks))

    def asking(self, chance: random.Random, share: float) -> Self:
        """Let some holders ask whether they have the lock, and some releases be the end of a ``with``."""
        return self.using(lambda use: use.asking(chance, share))

    def candidates(self) -> Iterator[Self]:
        """Yield smaller plans."""
        for field in self.ITEMS:
            for fewer in without_one(getattr(self, field)):
                yield replace(self, **{field: fewer})  # type: ignore[arg-type]
        for number, (_, uses) in enumerate(self.tasks):
            for some in without_one(uses) if len(uses) > 1 else ():
                yield self._with_uses(number, some)
        for number, (_, uses) in enumerate(self.tasks):
            for place, use in enumerate(uses):
                for plainer in use.plainer():
                    if plainer != use:
                        yield self._with_uses(number, (*uses[:place], plainer, *uses[place + 1 :]))

    def _with_uses(self, number: int, uses: tuple[U, ...]) -> Self:
        client, _ = self.tasks[number]
        return replace(self, tasks=(*self.tasks[:number], (client, uses), *self.tasks[number + 1 :]))


def without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the items without the first one, without the second one, and so on."""
    for place in range(len(items)):
        yield items[:place] + items[place + 1 :]


def draw_lock(chance: random.Random, names: Names) -> tuple[str, tuple[str, ...]]:
    """Draw the kind of a lock and its name; "multi" and "many" may have more names."""
    name, kinds = chance.choice(names)
    kind = chance.choice(kinds)
    chosen = [name]
    if kind in ("multi", "many"):
        chosen = [other for other, kinds in names if "multi" in kinds and (other == name or chance.random() < 0.7)]
        chance.shuffle(chosen)
    return kind, tuple(chosen)


def draw_details(chance: random.Random, what: str, client: int, master: int, seconds: float) -> tuple[Any, ...]:
    """Draw the details of a fault that may happen to any client or master."""
    match what:
        case "block":
            return client, master, chance.choice(WAYS), seconds
        case "cut":
            return client, master, chance.randrange(120)
        case "slow":
            return client, master, seconds / 10
        case "reset":
            return client, master
        case "pause":
            return client, seconds
        case "kill":
            return (client,)
        case "set_wall":
            return client, chance.uniform(-5, 5)
        case "restart" | "restart_empty":
            return master, seconds / 3
        case "set_back" | "set_forward":
            return master, seconds * chance.choice((1, 100))
        case "stop" | "full" | "readonly" | "loading" | "freeze":
            return master, seconds
        case _:
            return (master,)


def draw_fault(chance: random.Random, kinds: list[tuple[str, tuple[Any, ...]]], span: float) -> Fault:
    """Draw one of these kinds of faults, each with its details, and its time."""
    what, details = chance.choice(kinds)
    return Fault(chance.uniform(0, span), what, details)
