"""The base of all kinds of locks: the commands and the rules of one acquire."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from redlatch.votes.kinds import PLAIN

from ...votes.ballot import Ballot
from ...votes.commands import AskHolder, Command, Extend, Locked, Owned, new_acquire, new_release
from ..lease import Lease, new_lease

if TYPE_CHECKING:
    from ..quorum import Quorum

# The default of `Kind.late`.
LATE = 8

# To which holds a lease may be handed off: none, plain ones, or those whose token was chosen.
NEVER, PLAIN_ONES, CHOSEN_ONES = range(3)


class Kind:
    """One kind of lock, with the commands of a plain lock unless it defines its own.

    A kind without state serves all locks. A kind with state belongs to one lock object.

    Attributes:
        declared: the row of the kind in the table of all kinds (`votes.kinds`).
        enters_queue: whether a hold waits in the queue of its client, of which only the head asks the masters.
        shares: whether other holds of the same client may have the lock at the same time.
        orderly: whether the masters keep the order of waiters, so waiters of other processes need no chance first.
        undoes: whether an attempt is undone without a known yes. False if another holder may have chosen the same
            token.
        hand_off_group: to which holds a lease may be handed off: `NEVER`, `PLAIN_ONES` or `CHOSEN_ONES`.
        numbers: whether each holder gets a fence.
        late: the most attempts after the timeout that may follow answers of the masters.
        asks_one_first: whether the attempt after a refused one asks one master before the others.
        waits_for_all: whether a refused attempt waits for the other masters. If all refuse, nothing must be undone.
        signs_off: whether the last attempt is undone even if all masters have refused it.
        apart: whether attempts in quick succession must pause, so that they do not collide with those of rivals.
    """

    __slots__ = (
        "apart",
        "asks_one_first",
        "enters_queue",
        "hand_off_group",
        "late",
        "numbers",
        "orderly",
        "shares",
        "signs_off",
        "undoes",
        "waits_for_all",
    )

    declared = PLAIN

    def __init__(self) -> None:
        self.enters_queue = True
        self.shares = False
        self.orderly = False
        self.undoes = True
        self.hand_off_group = NEVER
        self.numbers = False
        self.asks_one_first = False
        self.waits_for_all = True
        self.signs_off = True
        self.late = LATE
        self.apart = True

    # --- one acquire ---------------------------------------------------------------------------------------

    def caller(self) -> Any:
        return None

    def begin(self, quorum: Quorum, hold: Any, caller: Any) -> None:
        """Begin an acquire of a thread or task; raise if it must not wait."""

    def lease(self, quorum: Quorum, key: bytes, since_ns: int, deadline_ns: int) -> Lease:
        return new_lease(quorum.tokens.take(since_ns), since_ns, deadline_ns)

    def ahead(self) -> Ballot | None:
        """Return a ballot to send before the next attempt."""
        return None

    def behind(self) -> Ballot | None:
        """Return a ballot to send directly after the next attempt."""
        return None

    def second_round(self, quorum: Quorum, hold: Any, ballot: Ballot) -> Ballot | None:
        """Return the ballot of a second round if a quorum may say yes in it."""
        return None

    def won(self, quorum: Quorum, hold: Any) -> None:
        """Record that the lock is held."""

    def note_answers(self, quorum: Quorum, ballot: Ballot) -> bool:
        """Record the answers of the masters; return whether to ask again at once."""
        return False

    def undone(self, quorum: Quorum, key: bytes, ballot: Ballot) -> None:
        """Record that an attempt with these votes is being undone."""

    def wait(self, attempt: Any) -> Generator[Any, None, bool]:
        """Wait between two attempts; return whether there was anything to wait for."""
        raise NotImplementedError

    def end_watch(self, quorum: Quorum, key: bytes) -> None:
        """End the watch of an acquire, before the lock is held or given up."""

    def end(self, hold: Any) -> None:
        """Record that the lock is not held any more."""

    # --- commands ------------------------------------------------------------------------------------------

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return new_acquire(key, lease.token, lease.since_ns, ttl_ms)

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        """Return the command that undoes an attempt; `last` if no other one follows."""
        return new_release(key, lease.token, lease.since_ns)

    def releasing(self, key: bytes, lease: Lease) -> Command | None:
        """Return the command that releases a held lock; None if it stays until its ttl is over."""
        return self.undoing(key, lease, True)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return Extend(key, lease.token, lease.since_ns, ttl_ms)

    def repairing(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return new_acquire(key, lease.token, lease.since_ns, ttl_ms)

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Owned(key, lease.token, lease.since_ns)

    def watched(self, key: bytes) -> bytes | None:
        """Return the key that changes with this holder only, if there is one."""
        return None if self.shares else key

    def locked(self, key: bytes) -> Command:
        """Return the command that asks whether the lock is held, or a semaphore is full."""
        return Locked(key, b"", 0)

    def holder(self, key: bytes) -> Command | None:
        """Return the command that asks for the holder; None if there may be several."""
        return AskHolder(key, key)

    def blocker(self, key: bytes) -> Command | None:
        """Return the command that asks which single holder keeps others from acquiring."""
        return self.holder(key)
