"""The upkeep of held locks until they are released: when to renew them, and when they are lost.

A renewal is an ordinary extension (`extend`): it counts if a quorum has answered before the old deadline, and never
brings back a key that is gone. One that fails is tried again until that deadline.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from redlatch.errors import LockError
from redlatch.loss import RAN_OUT, Loss, held_longest, stalled
from redlatch.quorum.claim import HELD
from redlatch.quorum.hold import Hold
from redlatch.quorum.key_watch import FIRST_NS, KeyWatch
from redlatch.quorum.quorum import Quorum
from redlatch.votes.units import MILLISECOND, SECOND, UNBOUNDED

TOGETHER_NS = 50 * MILLISECOND

POSTPONED_NS = 5 * MILLISECOND


class Upkeep:
    """The upkeep of one lock object: what its user asked for, and what a loss sets off.

    Args:
        lock: the lock object, whose `_mark_lost` and `_report_loss` are called for a loss. It is not kept alive.
        renews: whether the lock is renewed whenever a third of its ttl is over, for `max_hold_ns` at most.
        on_lost: None means the `on_lost` of the client.
        cancels: whether the loss cancels the body of the ``async with``, through `scope`.
        asked: whether the user asked for the report of a loss. Then the key is watched (see `key_watch`).

    Attributes:
        event: the event that is set by a loss; None if no caller asked for it.
        kept: the lock object, which `let_run_out` keeps alive to report its loss.
        term: the upkeep of the present lease, or of the one that was lost.
        why: the loss to report when the lock runs out; None for the usual one.
    """

    __slots__ = (
        "asked",
        "cancels",
        "event",
        "hold",
        "kept",
        "lock",
        "max_hold_ns",
        "on_lost",
        "renews",
        "scope",
        "term",
        "ttl_ms",
        "why",
    )

    def __init__(
        self,
        lock: Any,
        hold: Hold,
        ttl_ms: int,
        renews: bool = False,
        max_hold_ns: int | None = None,
        on_lost: Callable[[Any, Loss], object] | None = None,
        cancels: bool = False,
        asked: bool = False,
    ) -> None:
        self.lock = weakref.ref(lock)
        self.hold = hold
        hold.has_upkeep = True
        self.ttl_ms = ttl_ms
        self.renews = renews
        self.max_hold_ns = max_hold_ns
        self.on_lost = on_lost
        self.cancels = cancels
        self.asked = asked
        self.event: Any = None
        self.kept: Any = None
        self.scope: Any = None
        self.term: Term | None = None
        self.why: Loss | None = None

    @property
    def reason(self) -> Loss | None:
        term = self.term
        # A later lease may have come by a hand-off whose acquire has not returned yet.
        return None if term is None or term.token is not self.hold.token else term.reason

    def begin(self, now_ns: int) -> Term:
        """Begin or continue the upkeep of a lease.

        One that was lost meanwhile is not begun again: its loss was noted.
        """
        term = self.term
        if term is None or term.token is not self.hold.token:
            if self.event is not None and self.event.is_set():
                self.event = None
            self.term = term = Term(self, now_ns)
        return term

    def end(self) -> None:
        """End the upkeep. A new acquire must do so: a lease that was handed off and came back has the same token."""
        self.term = None
        self.kept = None

    def live(self) -> bool:
        term = self.term
        return term is not None and term.live()

    def let_run_out(self, lock: Any, why: Loss) -> None:
        """Stop the renewal of a lock whose holder is gone; keep its object alive until the loss is reported."""
        self.renews = False
        self.why = why
        self.kept = lock

    def why_over(self, now_ns: int) -> Loss | None:
        """Return why the validity has ended, if the renewal knows more than that it ran out."""
        if self.why is not None:
            return self.why
        term = self.term
        if term is None:
            return None
        if term.gone is not None:
            return term.gone
        if term.stalled_ns:
            return stalled(term.stalled_ns / SECOND)
        # More than the drift of the last renewal.
        drift_ns = self.ttl_ms * MILLISECOND // 20
        if self.renews and self.max_hold_ns is not None and now_ns >= term.began_ns + self.max_hold_ns - drift_ns:
            return held_longest(self.max_hold_ns / SECOND)
        return None if term.failure is None else RAN_OUT.because(f"its last renewal failed: {term.failure}")


class Term:
    """The upkeep of one lease of a lock, from its acquire to its release or loss.

    The first step of a release takes the hold out of HELD, and from then on the term is not live. So a release that was
    refused or never began ends no upkeep. A renewal belongs to a term: its result says nothing about a later lease of
    the same lock.

    Only the thread that calls `UpkeepSchedule.due` changes a term once it has begun.

    Attributes:
        doubted: whether a vote for the lease is in doubt. It is then verified: extended by the time that is left.
        gone: the reason if the masters have said that the lease is gone.
        number: the number of the entry in the heap that counts. Other entries are stale.
        renewing: whether a renewal is under way. It asked for the right ttl when it began, so no second one waits.
        stalled_ns: for how long this process had not run, so that the lease is no longer renewed; or 0.
    """

    __slots__ = (
        "began_ns",
        "doubted",
        "due_ns",
        "failure",
        "gone",
        "hold",
        "number",
        "reason",
        "renew_ns",
        "renewing",
        "reported",
        "stalled_ns",
        "token",
        "upkeep",
        "watch",
    )

    def __init__(self, upkeep: Upkeep, now_ns: int) -> None:
        self.upkeep = upkeep
        self.hold = upkeep.hold
        self.token = upkeep.hold.token
        self.began_ns = now_ns
        self.doubted = self.renewing = self.reported = False
        self.failure: LockError | None = None
        self.gone: Loss | None = None
        self.reason: Loss | None = None
        self.renew_ns = self.due_ns = self.number = self.stalled_ns = 0
        self.watch: KeyWatch | None = None

    @property
    def renews(self) -> bool:
        return self.upkeep.renews and not self.stalled_ns

    def usual_ns(self) -> int:
        deadline_ns = self.hold.deadline_ns
        return deadline_ns - self.upkeep.ttl_ms * MILLISECOND * 2 // 3 if self.renews else deadline_ns

    def look_ns(self, now_ns: int) -> int:
        usual_ns = self.usual_ns()
        return min(usual_ns, now_ns + FIRST_NS) if self.upkeep.asked else usual_ns

    def plan(self, renew_ns: int) -> None:
        self.renew_ns = renew_ns
        deadline_ns = self.hold.deadline_ns
        due_ns = min(renew_ns, deadline_ns) if self.renews or self.doubted else deadline_ns
        self.due_ns = due_ns if self.watch is None else min(due_ns, self.watch.look_ns())

    def lose(self, reason: Loss, now_ns: int) -> None:
        lease = self.hold.lease
        if lease.token is self.token:
            self.gone = reason
            # An extension that ends only now does not move the deadline again.
            self.hold.lose_what_it_holds_since(lease.since_ns, now_ns)

    def soon_ns(self, random: float) -> int:
        return int(min(self.upkeep.ttl_ms * MILLISECOND // 3, SECOND) * (0.1 + 0.1 * random))

    def is_due(self, quorum: Quorum, now_ns: int) -> bool:
        """Return whether to renew or verify the lease now; plan when to look again in any case."""
        if self.renewing:
            # Its end plans the next renewal. A loss is reported in time even if it hangs.
            self.plan(self.hold.deadline_ns)
        elif self.hold.being_extended(now_ns):
            # A renewal after this extension could shorten the deadline.
            self.plan(max(self.renew_ns, now_ns + POSTPONED_NS))
        elif (self.renews or self.doubted) and self.renew_ns <= now_ns + TOGETHER_NS:
            if self.gains(quorum, now_ns):
                # After an interrupt, the next look finds it due again.
                self.plan(now_ns + self.soon_ns(0))
                return True
            # A renewal with others before its time may gain too little although a later one is needed.
            self.plan(self.renew_ns if self.renew_ns > now_ns else self.hold.deadline_ns)
        else:
            self.plan(self.renew_ns)
        return False

    def live(self) -> bool:
        """Return whether the lease is held and not lost, and no release of it has begun."""
        mine = self.upkeep.term is self and self.token is self.hold.token
        return mine and self.reason is None and self.hold.state == HELD

    def cared_for(self) -> bool:
        """Return whether the lease is live and its lock object exists: a collected one cannot be released."""
        return self.live() and self.upkeep.lock() is not None

    def over(self, now_ns: int) -> bool:
        # Read once: another thread may release the lock or replace the lease meanwhile.
        lease = self.hold.lease
        return now_ns >= lease.deadline_ns and self.live() and self.hold.lease is lease

    def renewal_ttl_ms(self, now_ns: int) -> int:
        """Return the ttl of a renewal that begins now: that of the lock, or less if `max_hold_ns` ends earlier.

        It is 0 for a verification: an extension of a lease with its token always asks for the time that is left.
        """
        upkeep = self.upkeep
        ttl_ms = upkeep.ttl_ms if self.renews else 0
        if upkeep.max_hold_ns is not None:
            ttl_ms = min(ttl_ms, (self.began_ns + upkeep.max_hold_ns - now_ns) // MILLISECOND)
        return max(ttl_ms, 0)

    def gains(self, quorum: Quorum, now_ns: int) -> bool:
        """Return whether a renewal would move the deadline or verify the lease; otherwise the lock runs out.

        It must gain more than the drift of the ttl: each shorter ttl at the end of `max_hold_ns` has a smaller drift,
        so renewals would follow each other without a pause.
        """
        deadline_ns = self.hold.deadline_ns
        if self.doubted:
            # A lease without a known end (`Hold.borrow`) cannot be verified by an extension to its end.
            return deadline_ns != UNBOUNDED
        gain_ns = now_ns + quorum.validity_ns(self.renewal_ttl_ms(now_ns)) - deadline_ns
        return gain_ns > self.upkeep.ttl_ms * MILLISECOND // 20
