"""What a kind of lock asks the masters. Compiled as `redlatch._c.protocol.kind`, too (see `redlatch._c`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .ballot import Ballot
from .commands import Command, Extend, Locked, Owned, new_acquire, new_release
from .lease import Lease, new_lease
from .policy import Policy

# When the time is over, what the masters answered is still heeded so many times.
LATE = 8

# Whose leases may pass from one hold to another (see `Kind.passes`).
NEVER, PLAIN_ONES, CHOSEN_ONES = range(3)


class Kind:
    """One kind of lock. The commands are those of a plain lock, unless a kind has others.

    A kind without state serves all locks; others belong to one lock object.

    Attributes:
        queues: whether only the head of the client's line asks.
        shares: whether other holds of the same client may have the lock at the same time.
        orderly: whether the masters know whose turn it is, so that waiters of other processes need no chance first.
        undoes: whether an attempt is undone although no master is known to have said yes. False where the token was
            chosen: the key may be of others, who chose the same one.
        passes: which holds of this client its lease may pass to.
        numbers: whether each holder gets a number.
        leads: whether an attempt after a refused one asks one master before the others.
        settles: whether a refused attempt waits for the masters that have not answered; then mostly nothing is undone.
        signs_off: whether the masters are told when nobody tries any more.
        late: how many more attempts may follow the masters' answers after the timeout.
        apart: whether attempts in quick succession must pause, because those of rivals may collide with them.
    """

    __slots__ = (
        "apart",
        "late",
        "leads",
        "numbers",
        "orderly",
        "passes",
        "queues",
        "settles",
        "shares",
        "signs_off",
        "undoes",
    )

    def __init__(self) -> None:
        self.queues = True
        self.shares = False
        self.orderly = False
        self.undoes = True
        self.passes = NEVER
        self.numbers = False
        self.leads = False
        self.settles = True
        self.signs_off = True
        self.late = LATE
        self.apart = True

    # --- one acquire ---------------------------------------------------------------------------------------

    def caller(self) -> Any:
        """Return the calling thread or task if the kind needs it; else None."""
        return None

    def begin(self, policy: Policy, hold: Any, caller: Any) -> None:
        """Begin an acquire for what `caller` has returned; or refuse."""

    def lease(self, policy: Policy, lines: Any, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        """Return what an attempt asks for."""
        return new_lease(policy.tokens.take(), since_ns, deadline_ns)

    def ahead(self) -> Ballot | None:
        """Return the question to ask before the next attempt."""
        return None

    def behind(self) -> Ballot | None:
        """Return the question to ask right behind the next attempt."""
        return None

    def second_round(self, policy: Policy, hold: Any, ballot: Ballot) -> Ballot | None:
        """Return the ballot of a second round, where a quorum would say yes in one; None where it need not."""
        return None

    def won(self, policy: Policy, hold: Any) -> None:
        """Note that it is held."""

    def heed(self, policy: Policy, ballot: Ballot) -> bool:
        """Note what the masters answered; tell whether it is worth asking again at once."""
        return False

    def undone(self, policy: Policy, lines: Any, key: bytes, ballot: Ballot) -> None:
        """Note that an attempt is being undone; `ballot` has its votes."""

    def wait(
        self,
        policy: Policy,
        lines: Any,
        hold: Any,
        ttl_ms: int,
        round_ns: int,
        patience_ns: int,
        pauses: int,
        until_ns: int,
    ) -> Generator[Any, None, bool]:
        """Wait for a change between two attempts.

        Args:
            round_ns: how long the last attempt took.
            patience_ns: how long an attempt waits for answers.
            pauses: how many times in a row there was nothing to wait for.
            until_ns: when the time is over.

        Returns:
            Whether there was anything to wait for.
        """
        raise NotImplementedError

    def rest(self, lines: Any, key: bytes) -> None:
        """Note that nothing is waited for any more."""

    def end(self, hold: Any) -> None:
        """Note that nothing is held any more."""

    # --- commands ------------------------------------------------------------------------------------------

    def acquiring(self, policy: Policy, lines: Any, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        """Return the command of an attempt."""
        return new_acquire(key, lease.token, lease.since_ns, ttl_ms)

    def undoing(self, key: bytes, lease: Lease) -> Command:
        """Return the command that undoes an attempt after which another follows."""
        return self.releasing(key, lease)

    def releasing(self, key: bytes, lease: Lease) -> Command:
        """Return the command that releases it, or undoes the last attempt."""
        return new_release(key, lease.token, lease.since_ns)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        """Return the command that extends it."""
        return Extend(key, lease.token, lease.since_ns, ttl_ms)

    def owned(self, key: bytes, lease: Lease) -> Command:
        """Return the question whether it is ours."""
        return Owned(key, lease.token, lease.since_ns)

    def locked(self, key: bytes) -> Command:
        """Return the question whether anybody has it; of a semaphore, whether all permits are taken."""
        return Locked(key, b"", 0)
