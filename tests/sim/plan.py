"""The plan of one schedule of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from redlatch.votes.family_scripts import SKEW_US

from .parts import Planned, Use, without_one

# The kinds of locks of the drop-ins, and the deletion by hand that their users also do.
FOREIGN = ("plain", "given", "signalled")
DELETE = "delete"


@dataclass(frozen=True)
class Extension:
    """One extension of a lock that is held.

    Attributes:
        ttl: the seconds that it asks for.
        pause: seconds before it begins.
        patience: seconds after which its caller cancels it; None means never.
        strays: connections that go astray with the next write, which is usually this extension: for each (master,
            seconds in which nothing arrives, bytes that arrive after that; -1 means all).
    """

    ttl: float
    pause: float = 0.0
    patience: float | None = None
    strays: tuple[tuple[int, float, int], ...] = ()


@dataclass(frozen=True)
class Action(Use):
    """One use of a lock by one task. A lock that is renewed and watched is renewed for its ttl at most.

    Attributes:
        extends: its extensions; the first one begins halfway.
        cancel: the seconds after which the task is cancelled, in any state; or None.
        shown: for a lock of a drop-in, whether the holder reads its token.
        elsewhere: the client that releases it with this token; None if no client does.
        here: whether its holder releases it.
    """

    extends: tuple[Extension, ...] = ()
    cancel: float | None = None
    shown: bool = False
    elsewhere: int | None = None
    here: bool = True

    def plainer(self) -> Iterator[Self]:
        """Yield actions with less to do, and this one."""
        yield from [replace(self, extends=fewer) for fewer in without_one(self.extends)]
        yield replace(self, extends=tuple(replace(one, patience=None) for one in self.extends))
        yield replace(self, extends=tuple(replace(one, strays=()) for one in self.extends))
        yield replace(self, shown=False, elsewhere=None, here=True)
        yield from super().plainer()


@dataclass(frozen=True)
class Move:
    """One run of the mover that hands the locks of one list of masters over to another (`redlatch masters move`).

    Attributes:
        at: seconds when it begins.
        crash: the number of the handshake at which it crashes; 0 means never.
        how: whether it crashes "before" the handshake, "after" it, or "late": while the bytes are on their way.
        late: after how many seconds they arrive then.
        cut: the masters that it cannot reach.
    """

    at: float
    crash: int = 0
    how: str = "after"
    late: float = 0.0
    cut: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan(Planned[Action]):
    """A whole schedule.

    Attributes:
        masters: for each (kind of server, whether it pushes, its clock's rate).
        clients: for each (its clock's rate, seconds its wall clock is ahead, whether it waits for pushes, tenure).
        pauses: the probability that a client pauses after a step.
        known: whether clients have used these masters before, so that they have the guard's markers.
        default_ttl: the default ttl of the clients, in seconds; 0 is `ttl`.
        foreign: whether the clients are those of drop-ins: without a guard, and with locks of `FOREIGN` kinds.
        prompt: whether an acquire must return soon after its timeout; dialling waits for silent masters then.
        lively: whether a free lock must be granted soon (see `liveness`).
        alone: whether the rule for a single master holds (see `alone`).
        marked_ago: how many seconds ago the masters were marked; 0 is very long ago.
        fences: whether fences must increase although masters forget and clocks differ.
        lists: the masters of the old and of the new list, if there is a handover.
        knows: for each client the lists that it was given: "old", "new" or "both".
        moves: the runs of the mover.
        scriptless: the masters that refuse scripts.
        heals: whether locks that are renewed must outlive all faults: each master votes again before the next forgets.
        shards: if the masters are the nodes of one cluster, how many of them have slots at the beginning; else 0.
        replicas: pairs of a node of a cluster and its replica.
        seeds: the nodes of a cluster that the clients are given.
    """

    ITEMS = ("tasks", "faults", "moves")
    FORGETFUL: ClassVar[frozenset[str]] = frozenset(
        ["restart_empty", "restart_older", "flush", "flush_pushing", "evict", "swap", "fail_over", "promote"]
    )
    # The changes of a cluster by which no waiter loses more time than MOVING_NS.
    MOVING: ClassVar[frozenset[str]] = frozenset(["move", "migrate"])
    MOVING_NS: ClassVar[int] = 450_000_000

    masters: tuple[tuple[str, bool, float], ...]
    clients: tuple[tuple[float, float, bool, float], ...]
    pauses: float
    known: bool
    foreign: bool = False
    prompt: bool = False
    lively: bool = False
    default_ttl: float = 0.0
    alone: bool = False
    marked_ago: float = 0.0
    fences: bool = False
    lists: tuple[tuple[int, ...], ...] = ()
    knows: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    scriptless: tuple[int, ...] = ()
    heals: bool = False
    shards: int = 0
    replicas: tuple[tuple[int, int], ...] = ()
    seeds: tuple[int, ...] = ()

    def candidates(self) -> Iterator[Self]:
        """Yield smaller plans."""
        if self.pauses:
            yield replace(self, pauses=0.0)
        yield from super().candidates()

    def idle_ns(self) -> int:
        """Return how long a lock may be free while a task waits for it; 0 means that no bound is known."""
        walls = [ahead for _, ahead, _, _ in self.clients]
        # With more skew, a ticket in a fair queue may be corrected late.
        alike = max(walls) - min(walls) < SKEW_US / 1e6
        # A key with a chosen token may stay on a master whose reply was late. Only one process knows of a deletion.
        # A waiter in the client of a holder with an exposed token is not notified after the holder extends the lock.
        stays = [a for a in self.uses() if a.kind in (DELETE, "given") or (self.foreign and (a.extends or a.renew))]
        calm = not self.faults or (self.shards and all(fault.what in self.MOVING for fault in self.faults))
        quiet = calm and not self.moves and not self.pauses and self.far_us <= 3000 and alike and not stays
        moving_ns = self.MOVING_NS if self.faults else 0
        return moving_ns + 100_000_000 + 60_000 * self.far_us if quiet else 0

    def moves_at_once(self) -> bool:
        """Return whether nothing happens but that slots move at once, and all nodes know it."""
        return bool(self.idle_ns()) and all(
            fault.what == "move" and not any(fault.details[-2:]) for fault in self.faults
        )

    def goes_astray(self) -> bool:
        """Return whether bytes of connections that the clients gave up may still arrive."""
        strays = any(extension.strays for action in self.uses() for extension in action.extends)
        return strays or any(fault.what == "astray" for fault in self.faults)

    def fences_hold(self) -> bool:
        """Return whether fences must increase, which needs equal wall clocks or masters that forget nothing."""
        if self.fences:
            return True
        walls = [ahead for _, ahead, _, _ in self.clients]
        agree = not any(walls) and not any(fault.what == "set_wall" for fault in self.faults)
        return agree or not any(fault.what in self.FORGETFUL for fault in self.faults)
