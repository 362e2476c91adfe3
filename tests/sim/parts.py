"""What a plan consists of: locks that are used, and what goes wrong; as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from redlatch.protocol.family_scripts import SKEW_US

# Kinds of locks, and which may share a name.
EXCLUSIVE = ("plain", "fence", "rlock", "multi", "many")
FAMILIES = (EXCLUSIVE, EXCLUSIVE, ("fair",), ("reader", "writer"), ("semaphore",))
PERMITS = 2

# Those of the drop-ins; and what their users do beside.
FOREIGN = ("plain", "given", "signalled")
DELETE = "delete"


@dataclass(frozen=True)
class Extension:
    """One extension of a lock that is held.

    Attributes:
        ttl: how many seconds it asks for.
        pause: seconds before it begins.
        patience: after how many seconds its caller cancels it; None means never.
        strays: connections that go astray with what is written next, mostly this extension: of each (master, for how
            many seconds nothing arrives, how many bytes arrive then; -1 means all).
    """

    ttl: float
    pause: float = 0.0
    patience: float | None = None
    strays: tuple[tuple[int, float, int], ...] = ()


@dataclass(frozen=True)
class Action:
    """One use of a lock by one task.

    Attributes:
        kind: of lock; see `FAMILIES`.
        names: what it locks: one, but for "multi" and "many".
        ttl, timeout, hold: seconds; a timeout of None waits for ever.
        extends: its extensions, from halfway on.
        renew: whether it is renewed until it is released; where it is watched, too, for as long as its ttl at most.
        watch: whether its loss is to be told.
        wait: whether its release is waited for.
        cancel: after how many seconds it is cancelled, wherever it is; or None.
        pause: seconds before it begins.
        shown: of a drop-in's, whether its token is read when it is held.
        elsewhere: by which client it is released with that token; None where by none.
        here: whether it is released by its holder.
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


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a time, in seconds; `what` is a method of `faults.Faults`."""

    at: float
    what: str
    details: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A whole schedule.

    Attributes:
        masters: of each (kind of server, whether it pushes, its clock's rate).
        clients: of each (its clock's rate, seconds its wall clock is ahead, whether it waits for pushes, tenure).
        tasks: of each (number of its client, its actions).
        pauses: how likely a step of a client is to be the last for a while.
        ttl: the longest of all locks and extensions, in seconds; a master that may have forgotten is kept out so long.
        known: whether somebody has used these masters before, so that they have the guard's markers.
        trusty: whether nothing happens that mutual exclusion is not promised under.
        foreign: whether the clients are those of drop-ins: without a guard, and with locks of `FOREIGN` kinds.
        prompt: whether an acquire has to return soon after its timeout; to dial a silent master takes its time then.
        lively: whether a free lock has to be granted soon (see `liveness`).
    """

    FORGETFUL: ClassVar[frozenset[str]] = frozenset(
        ["restart_empty", "flush", "flush_pushing", "evict", "swap", "fail_over"]
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

    def idle_ns(self) -> int:
        """Return for how long a lock may be free while somebody waits for it; 0 where nobody can say."""
        walls = [ahead for _, ahead, _, _ in self.clients]
        alike = max(walls) - min(walls) < SKEW_US / 1e6  # else a place in a fair queue is changed, which may come late
        # A key with a chosen token may stay where an answer did not come in time. Of what is deleted only one process
        # knows. And who waits beside a holder whose token is known is not told what happens after he has extended it.
        actions = [action for _, actions in self.tasks for action in actions]
        stays = [a for a in actions if a.kind in (DELETE, "given") or (self.foreign and (a.extends or a.renew))]
        quiet = not self.faults and not self.pauses and self.far_us <= 3000 and alike and not stays
        return 100_000_000 + 60_000 * self.far_us if quiet else 0

    def goes_astray(self) -> bool:
        """Tell whether bytes of connections that the clients gave up may arrive."""
        actions = [action for _, actions in self.tasks for action in actions]
        strays = any(extension.strays for action in actions for extension in action.extends)
        return strays or any(fault.what == "astray" for fault in self.faults)

    def fences_hold(self) -> bool:
        """Tell whether fences have to go up: not where masters forget, and wall clocks differ by more than a little."""
        walls = [ahead for _, ahead, _, _ in self.clients]
        agree = not any(walls) and not any(fault.what == "set_wall" for fault in self.faults)
        return agree or not any(fault.what in self.FORGETFUL for fault in self.faults)
