"""The parts of a plan as data: uses of locks, and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from redlatch.votes.family_scripts import SKEW_US

# The kinds of locks, grouped by which kinds may share a name.
EXCLUSIVE = ("plain", "fence", "rlock", "multi", "many")
FAMILIES = (EXCLUSIVE, EXCLUSIVE, ("fair",), ("reader", "writer"), ("semaphore",))
PERMITS = 2

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
class Action:
    """One use of a lock by one task.

    Attributes:
        kind: the kind of lock; see `FAMILIES`.
        names: its names; only "multi" and "many" have more than one.
        ttl, timeout, hold: seconds; a timeout of None means no limit.
        extends: its extensions; the first one begins halfway.
        renew: whether it is renewed until its release; if it is watched too, for its ttl at most.
        watch: whether it has an `on_lost` callback.
        wait: whether its task waits for the release.
        cancel: the seconds after which the task is cancelled, in any state; or None.
        pause: seconds before it begins.
        shown: for a lock of a drop-in, whether the holder reads its token.
        elsewhere: the client that releases it with this token; None if no client does.
        here: whether its holder releases it.
        asks: whether its holder asks the masters whether it still has the lock, before it releases it.
        leaves: whether the release is the end of a ``with``.
    """

    kind: str
    names: tuple[str, ...]
    ttl: float
    timeout: float | None
    hold: float
    extends: tuple[Extension, ...]
    renew: bool
    watch: bool
    wait: bool
    cancel: float | None
    pause: float
    shown: bool = False
    elsewhere: int | None = None
    here: bool = True
    asks: bool = False
    leaves: bool = False


@dataclass(frozen=True)
class Fault:
    """A fault at a time, in seconds; `what` is a method of `faults.Faults`."""

    at: float
    what: str
    details: tuple[Any, ...] = ()


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


@dataclass(frozen=True)
class Plan:
    """A whole schedule.

    Attributes:
        masters: for each (kind of server, whether it pushes, its clock's rate).
        clients: for each (its clock's rate, seconds its wall clock is ahead, whether it waits for pushes, tenure).
        tasks: for each (number of its client, its actions).
        pauses: the probability that a client pauses after a step.
        ttl: the longest ttl of all locks and extensions, in seconds; the guard keeps forgetful masters out that long.
        known: whether clients have used these masters before, so that they have the guard's markers.
        trusty: whether mutual exclusion is promised under everything that happens.
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
    """

    FORGETFUL: ClassVar[frozenset[str]] = frozenset(
        ["restart_empty", "restart_older", "flush", "flush_pushing", "evict", "swap", "fail_over"]
    )

    seed: int
    masters: tuple[tuple[str, bool, float], ...]
    clients: tuple[tuple[float, float, bool, float], ...]
    tasks: tuple[tuple[int, tuple[Action, ...]], ...]
    faults: tuple[Fault, ...]
    far_us: int
    pauses: float
    ttl: float
    known: bool
    trusty: bool
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

    def idle_ns(self) -> int:
        """Return how long a lock may be free while a task waits for it; 0 means that no bound is known."""
        walls = [ahead for _, ahead, _, _ in self.clients]
        # With more skew, a ticket in a fair queue may be corrected late.
        alike = max(walls) - min(walls) < SKEW_US / 1e6
        # A key with a chosen token may stay on a master whose reply was late. Only one process knows of a deletion.
        # A waiter in the client of a holder with an exposed token is not notified after the holder extends the lock.
        actions = [action for _, actions in self.tasks for action in actions]
        stays = [a for a in actions if a.kind in (DELETE, "given") or (self.foreign and (a.extends or a.renew))]
        quiet = not self.faults and not self.moves and not self.pauses and self.far_us <= 3000 and alike and not stays
        return 100_000_000 + 60_000 * self.far_us if quiet else 0

    def goes_astray(self) -> bool:
        """Return whether bytes of connections that the clients gave up may still arrive."""
        actions = [action for _, actions in self.tasks for action in actions]
        strays = any(extension.strays for action in actions for extension in action.extends)
        return strays or any(fault.what == "astray" for fault in self.faults)

    def fences_hold(self) -> bool:
        """Return whether fences must increase, which needs equal wall clocks or masters that forget nothing."""
        if self.fences:
            return True
        walls = [ahead for _, ahead, _, _ in self.clients]
        agree = not any(walls) and not any(fault.what == "set_wall" for fault in self.faults)
        return agree or not any(fault.what in self.FORGETFUL for fault in self.faults)
