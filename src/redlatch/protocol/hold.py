"""What one lock object knows of its claim. Compiled as `redlatch._c.protocol.hold`, too (see `redlatch._c`)."""

from __future__ import annotations

from typing import Any

from redlatch.errors import AlreadyHeld, NotOwned

from .ballot import Ballot
from .commands import Command
from .kind import Kind
from .lease import NO_LEASE, Lease, new_lease
from .policy import MILLISECOND, UNBOUNDED, Policy

# What a Hold is doing. WAITING: for its turn in this client; nothing was sent. SETTLING: a release was interrupted, or
# failed; it may be called again. PASSED: another hold has the lease; the claim is about to be given up. UNDOING: an
# interrupted acquire is being undone; the claim is about to be given up.
FREE, WAITING, ASKING, HELD, RELEASING, SETTLING, PASSED, UNDOING = range(8)

# An extension that waits for another one checks again within this time, even in a busy process.
WANTED_NS = 100 * MILLISECOND

# Older than every connection: what releases it is sent on whatever connection there is, and on each that is made anew.
_BEFORE_ALL_NS = -1


class Hold:
    """One holder's claim on one name, and the lease that it has or asks for.

    Args:
        kind: what kind of lock it is (see `kind`).

    Attributes:
        lease: of the last attempt. It is noted here before the first byte with its token leaves, so that whoever
            interrupts an attempt at any point can undo it (`abandon`). It counts while the state says so.

    Another thread may replace the lease at any time. So a change of it compares and replaces (`_replace`), and names
    the token that it means. One Hold is one holder: a second `acquire` while one is under
    way or held is refused, since two holders that share a token would release each other's lock. So each
    acquire brings a ticket, and the one noted here has the claim. Between a question and the step that follows from
    it there is never a call: there, and only there, another thread or an interrupt might come in between.
    """

    __slots__ = (
        "elapsed_ns",
        "extending",
        "key",
        "kind",
        "lease",
        "lost_ns",
        "name",
        "shown",
        "state",
        "ticket",
        "wanted_ns",
    )

    def __init__(self, name: str | bytes, key: bytes, kind: Kind) -> None:
        self.name = name
        self.key = key
        self.kind = kind
        self.state = FREE
        self.lease: Lease = NO_LEASE
        self.elapsed_ns = 0
        self.extending: Any = None  # the ballot of the extension that is under way
        self.wanted_ns = 0  # an extension waits for another one, and checks again before this time; 0 if none waits
        self.shown = False  # whether its token was told to somebody who may release with it, wherever he is
        self.lost_ns = 0  # what was asked for before then is lost: somebody has deleted the key
        self.ticket: object = None  # of the acquire that has the claim

    @property
    def token(self) -> bytes:
        """The token of the last attempt."""
        return self.lease.token

    @property
    def fence(self) -> int:
        """The number of this holder; 0 where it has none."""
        return self.lease.fence

    @property
    def deadline_ns(self) -> int:
        """Until when the holder may act; 0 where nothing was granted."""
        return self.lease.deadline_ns if self.state >= HELD else 0

    def claim(self, ticket: object) -> None:
        """Reserve this Hold for the acquire that has this ticket.

        Raises:
            AlreadyHeld: another claim has it, or its release is under way.
        """
        if self.ticket is None or self.state == SETTLING:
            self.ticket = ticket  # no call since the check: only one of two threads gets the claim
            self.state = FREE
            self.kind.end(self)
            return
        raise AlreadyHeld(
            f"{self.name!r} is held, or asked for, through this lock object already; "
            "release it first, or take one lock object per holder",
            name=self.name,
        )

    def ask(self, lease: Lease) -> None:
        """Note what an attempt that is about to begin asks for."""
        self.lease = lease
        self.shown = False
        self.state = ASKING

    def attempt(
        self, policy: Policy, lines: Any, ttl_ms: int, started_ns: int, deadline_ns: int, until_ns: int
    ) -> Ballot:
        """Begin an attempt: note its token, before the first byte with it leaves, and return the ballot on it.

        Args:
            lines: who waits for whom in this client (see `waiting`).
            started_ns: the time now.
            deadline_ns: until when the lock may be held if it is won.
            until_ns: for how long the votes are waited for.
        """
        kind = self.kind
        lease = kind.lease(policy, lines, self.key, started_ns, deadline_ns)
        self.ask(lease)
        return policy.ballot(kind.acquiring(policy, lines, self.key, lease, ttl_ms), until_ns)

    def releasing(self) -> Command:
        """Return the command that releases it, or undoes its last attempt."""
        return self.kind.releasing(self.key, self.lease)

    def extending_to(self, ttl_ms: int, now_ns: int) -> Command:
        """Return the command that extends it, made now."""
        command = self.kind.extending(self.key, self.lease, ttl_ms)
        command.since_ns = now_ns
        return command

    def keep(self, elapsed_ns: int) -> None:
        """Hold what was asked for until its deadline; the attempt took elapsed_ns."""
        self.elapsed_ns = elapsed_ns
        self.extending = None
        self.state = HELD

    def borrow(self, token: bytes) -> None:
        """Hold what somebody else has acquired with this token, nobody knows since when, nor until when."""
        self.ask(new_lease(token, _BEFORE_ALL_NS, UNBOUNDED))
        self.keep(0)

    def _replace(self, old: Lease, new: Lease) -> bool:
        """Replace a lease; return False if another thread has replaced it meanwhile."""
        if self.lease is not old:  # no call before the next step
            return False
        self.lease = new
        return True

    def shorten(self, token: bytes, deadline_ns: int) -> None:
        """End the lease with this token at a deadline, unless it ends earlier."""
        lease = self.lease
        while lease.token is token and deadline_ns < lease.deadline_ns:
            if self._replace(lease, lease.until(deadline_ns)):
                return
            lease = self.lease

    def prolong(self, token: bytes, asked_ns: int, deadline_ns: int) -> None:
        """Take over an extension of the lease with this token, unless the lock was lost meanwhile.

        Args:
            asked_ns: when the extension began.
            deadline_ns: what it has granted; 0 keeps the deadline, because a later extension has begun.
        """
        lease = self.lease
        while lease.token is token and self.lost_ns < asked_ns:
            if self._replace(lease, lease.extended(deadline_ns or lease.deadline_ns, asked_ns)):
                return
            lease = self.lease

    def may_pass_to(self, other: Hold) -> bool:
        """Tell whether the lease may be passed on: who needs a number of its own must find one left.

        It keeps its token. So not once somebody knows that: he could release what the other one holds.
        """
        if self.shown or not self.kind.passes or self.kind.passes != other.kind.passes:
            return False
        return not other.kind.numbers or self.lease.fence < self.lease.fence_end

    def lose(self, now_ns: int) -> None:
        """Take note that somebody has deleted the key: what is held, or is being passed on or taken over, is lost."""
        self.lost_ns = now_ns  # first: `inherit` and `prolong` look at it last
        if self.state == HELD:
            self.shorten(self.lease.token, now_ns)

    def holds_since(self, since_ns: int) -> bool:
        """Tell whether it still holds the lease of the attempt made at `since_ns`, and no newer one."""
        return self.state == HELD and self.lease.since_ns == since_ns

    def lose_what_it_holds_since(self, since_ns: int, now_ns: int) -> None:
        """Note that the key of the attempt made at `since_ns` was deleted; a newer lease stays as it is."""
        while self.holds_since(since_ns):
            lease = self.lease
            shorter = lease.until(min(lease.deadline_ns, now_ns))
            if self.state == HELD and lease.since_ns == since_ns and self.lease is lease:  # no call to the end
                self.lost_ns = now_ns
                self.lease = shorter
                return

    def inherit(self, lease: Lease, giver: Hold) -> None:
        """Hold what another hold has held."""
        self.lease = lease
        self.shown = False
        self.elapsed_ns = giver.elapsed_ns
        self.extending = None
        self.state = HELD
        lost_ns = max(self.lost_ns, giver.lost_ns)
        if lease.asked_ns < lost_ns:
            self.shorten(lease.token, lost_ns)

    def renew(self, renewal: Ballot | None, deadline_ns: int) -> None:
        """Note an extension that nobody waits for: what comes of it counts as soon as somebody looks (`adopt`).

        Args:
            renewal: the ballot of the extension; None forgets the one before.
            deadline_ns: what it asks for.
        """
        while True:
            lease = self.lease
            if lease.renewal is renewal or self._replace(lease, lease.renewing(renewal, deadline_ns)):
                return

    def being_extended(self, now_ns: int) -> bool:
        """Tell whether an extension is under way, or waits for its turn."""
        ballot = self.extending
        return now_ns < self.wanted_ns or (ballot is not None and now_ns < ballot.until_ns)

    def adopt(self, now_ns: int) -> None:
        """Take over what came of such an extension: it counts if a quorum has answered before the old deadline."""
        while True:
            lease = self.lease
            if lease.renewal is None or not lease.renewal.decided or self._replace(lease, lease.renewed(now_ns)):
                return

    def busy(self, now_ns: int) -> bool:
        """Tell whether it is worth waiting for: it waits, asks, holds, or is being released.

        Not once its token was shown: somebody may release with it elsewhere, and that only the masters say.
        """
        return (self.held(now_ns) and not self.shown) or self.state in (WAITING, ASKING, RELEASING)

    def free(self) -> None:
        """Hold nothing; the claim is given up last. If interrupted before that, this may be repeated."""
        self.kind.end(self)
        self.state = FREE  # no call from here to the end
        self.ticket = None

    def abandon(self, ticket: object) -> Command | None:
        """Give up whatever an interrupted acquire may have left on the masters.

        Args:
            ticket: the acquire's; where it has no claim (any more) nothing happens.

        Returns:
            The command that undoes it, or None where nothing was sent.
        """
        if self.ticket is not ticket:
            return None
        try:
            return self.undoing(ticket)
        finally:  # also after a second interrupt
            self.end_undoing(ticket)

    def undoing(self, ticket: object) -> Command | None:
        """Begin to undo an acquire that was interrupted; if interrupted, this may be repeated.

        Returns:
            The command that undoes it. None where nothing was sent, and where another thread releases the lock already.
        """
        if self.state in (FREE, WAITING, PASSED) or (self.state == ASKING and not self.kind.undoes):
            return None
        command = self.releasing()
        # Another thread may have released it before, or during `releasing`.
        if self.ticket is not ticket or self.state not in (ASKING, HELD, SETTLING, UNDOING):
            return None
        self.state = UNDOING  # no call since the question: from now on nobody can release it, or pass its lease on
        return command

    def end_undoing(self, ticket: object) -> None:
        """Give up the claim of an acquire that was interrupted, unless another thread is releasing the lock."""
        if self.ticket is ticket and self.state != RELEASING:
            self.free()

    def begin_release(self, now_ns: int) -> tuple[bool, bool]:
        """Note that it is being released.

        Returns:
            Whether its validity is over, and whether this is a second try: then a "no" may be the work of the first.

        Raises:
            NotOwned: nothing is held, or another thread releases it.
        """
        self.adopt(now_ns)
        if self.state not in (HELD, SETTLING):  # no call between this question and its consequence
            raise NotOwned(f"{self.name!r} is not held; there is nothing to release", name=self.name)
        late = self.state == HELD and now_ns >= self.lease.deadline_ns
        resent = self.state == SETTLING
        self.state = RELEASING
        return late, resent

    def insist(self, ticket: object) -> Command | None:
        """Mark an interrupted release as unsettled; return the command to send again, or None where there is none.

        Args:
            ticket: of the claim that is released. If that claim has ended, nothing happens.
        """
        if self.ticket is not ticket:
            return None
        if self.state == PASSED:
            self.free()
        if self.state not in (HELD, RELEASING, SETTLING):
            return None
        command = self.releasing()
        # During `releasing` another thread may have claimed it, or passed its lease on.
        if self.ticket is not ticket or self.state not in (HELD, RELEASING, SETTLING):
            return None
        self.state = SETTLING  # last: a second interrupt before it changes nothing
        return command

    def held(self, now_ns: int) -> bool:
        """Tell whether the holder may still believe that the lock is its own."""
        return self.state == HELD and now_ns < self.lease.deadline_ns
