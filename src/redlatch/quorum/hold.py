"""One lock object in the algorithm: its claim, and the lease that it has or asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redlatch.loss import Loss

from ..votes.ballot import Ballot
from ..votes.commands import Command
from ..votes.key import key_of
from ..votes.units import MILLISECOND, UNBOUNDED
from .claim import ASKING, FREE, HANDED_OFF, HELD, RELEASING, UNCONFIRMED, UNDOING, WAITING, Claim
from .figures import Figures
from .kinds.kind import Kind
from .lease import NO_LEASE, Lease, new_lease

if TYPE_CHECKING:
    from .quorum import Quorum

WANTED_NS = 100 * MILLISECOND

# Earlier than the loss of any connection, so that a release with this time is sent on every new connection.
_BEFORE_ALL_NS = -1


class Hold(Claim):
    """One holder's claim on one name, and the lease that it has or asks for.

    Another thread may replace the lease at any time. So a change of the lease compares and replaces (`_replace`), and
    names the token of the lease that it changes.

    Attributes:
        lease: what the last attempt asked for, stored before the first byte with its token leaves, so that an
            interrupted attempt can be undone at any point. It counts only in the state HELD.
        wanted_ns: if an extension waits for another one, the time before which it checks again; otherwise 0.
        has_upkeep: whether a lock object with this hold has an upkeep, or had one; a cheap check before the lock
            object is asked.
        token_exposed: whether the token was given to a user, who may release the lock with it from anywhere.
        lacking: when an extension began, and a bit mask of the masters that had no key then (see `quorum.repair`).
        lost_ns: leases that were asked for until this time are lost, because the key was deleted.
        lost_because: the token of the lease that was last found lost, and its loss.
    """

    __slots__ = (
        "elapsed_ns",
        "extending",
        "figures",
        "has_upkeep",
        "key",
        "kind",
        "lacking",
        "lease",
        "lost_because",
        "lost_ns",
        "token_exposed",
        "wanted_ns",
        "won_ns",
    )

    def __init__(self, name: str | bytes, key: bytes, kind: Kind) -> None:
        self._open(name, key, kind)

    def _open(self, name: str | bytes, key: bytes, kind: Kind) -> None:
        self._begin(name)
        self.key = key
        self.kind = kind
        self.lease: Lease = NO_LEASE
        self.elapsed_ns = self.wanted_ns = self.lost_ns = self.won_ns = 0
        self.extending: Any = None
        self.token_exposed = False
        self.lacking = (0, 0)
        self.lost_because: tuple[bytes, Loss] | None = None
        self.figures: Figures | None = None
        self.has_upkeep = False

    @property
    def token(self) -> bytes:
        return self.lease.token

    @property
    def fence(self) -> int:
        return self.lease.fence

    @property
    def deadline_ns(self) -> int:
        return self.lease.deadline_ns if HELD <= self.state < UNDOING else 0

    def claim(self, ticket: object) -> None:
        self._to_claimed(ticket)
        self.kind.end(self)

    def ask(self, lease: Lease) -> None:
        self.lease = lease
        self.token_exposed = False
        self._to_asking()

    def attempt(self, quorum: Quorum, ttl_ms: int, started_ns: int, deadline_ns: int, until_ns: int) -> Ballot:
        kind = self.kind
        lease = kind.lease(quorum, self.key, started_ns, deadline_ns)
        self.ask(lease)
        command = kind.acquiring(quorum, self.key, lease, ttl_ms)
        command.ttl_ms = ttl_ms
        return quorum.ballot(command, until_ns)

    def undoing_attempt(self) -> Command:
        return self.kind.undoing(self.key, self.lease, True)

    def releasing(self) -> Command:
        return self.kind.releasing(self.key, self.lease)  # type: ignore[return-value]

    def extending_to(self, ttl_ms: int, now_ns: int) -> Command:
        command = self.kind.extending(self.key, self.lease, ttl_ms)
        command.since_ns = now_ns
        command.ttl_ms = ttl_ms
        return command

    def keep(self, elapsed_ns: int) -> None:
        self._hold(elapsed_ns)
        # The key may have been deleted since `granted` checked. Before HELD, `lose` changes only `lost_ns`.
        if self.lost_ns >= self.lease.since_ns:
            self.shorten(self.lease.token, self.lost_ns)

    def borrow(self, token: bytes) -> None:
        self.ask(new_lease(token, _BEFORE_ALL_NS, UNBOUNDED))
        self._hold(0)

    def _hold(self, elapsed_ns: int) -> None:
        self.elapsed_ns = elapsed_ns
        self.extending = None
        self._to_held()

    def _replace(self, old: Lease, new: Lease) -> bool:
        if self.lease is not old:
            return False
        self.lease = new
        return True

    def shorten(self, token: bytes, deadline_ns: int) -> None:
        lease = self.lease
        while lease.token is token and deadline_ns < lease.deadline_ns:
            if self._replace(lease, lease.until(deadline_ns)):
                return
            lease = self.lease

    def prolong(self, token: bytes, asked_ns: int, deadline_ns: int) -> None:
        """Apply an extension that began at `asked_ns`, unless the lock was lost meanwhile.

        A `deadline_ns` of 0 keeps the deadline, because a later extension has begun.
        """
        lease = self.lease
        while lease.token is token and self.lost_ns < asked_ns:
            if self._replace(lease, lease.extended(deadline_ns or lease.deadline_ns, asked_ns)):
                return
            lease = self.lease

    def may_hand_off_to(self, other: Hold) -> bool:
        """Return whether the lease may be handed off to another hold.

        It keeps its token: with an exposed token, a user could release the lock of the next holder.
        """
        if self.token_exposed or not self.kind.hand_off_group or self.kind.hand_off_group != other.kind.hand_off_group:
            return False
        return not other.kind.numbers or self.lease.fence < self.lease.fence_end

    def lose(self, now_ns: int) -> None:
        """Record that the key was deleted: a lease that is held or handed off meanwhile is lost."""
        # First: `take_lease` checks `lost_ns` after its last change, and `prolong` before each replacement.
        self.lost_ns = now_ns
        if self.state == HELD:
            self.shorten(self.lease.token, now_ns)

    def holds_since(self, since_ns: int) -> bool:
        return self.state == HELD and self.lease.since_ns == since_ns

    def lose_what_it_holds_since(self, since_ns: int, now_ns: int) -> None:
        """End the lease of the attempt that began then, because its key was deleted; keep a newer one."""
        while self.holds_since(since_ns):
            lease = self.lease
            shorter = lease.until(min(lease.deadline_ns, now_ns))
            if self.state == HELD and lease.since_ns == since_ns and self.lease is lease:
                # No call may come between the check and the end.
                self.lost_ns = now_ns
                self.lease = shorter
                return

    def take_lease(self, lease: Lease, giver: Hold) -> None:
        self.lease = lease
        self.token_exposed = False
        self.won_ns = 0
        self.elapsed_ns = giver.elapsed_ns
        self.extending = None
        self._to_held()
        lost_ns = max(self.lost_ns, giver.lost_ns)
        if lease.asked_ns < lost_ns:
            self.shorten(lease.token, lost_ns)

    def give_back(self) -> Command:
        """Return the command that releases a lease which the hold cannot use; call `to_waiting` once it was sent.

        In the state ASKING, `undoing` releases it after an interrupt.
        """
        self._to_asking()
        return self.releasing()

    def refresh(self, ballot: Ballot | None, deadline_ns: int) -> None:
        while True:
            lease = self.lease
            if lease.refresh is ballot or self._replace(lease, lease.refreshing(ballot, deadline_ns)):
                return

    def being_extended(self, now_ns: int) -> bool:
        ballot = self.extending
        return now_ns < self.wanted_ns or (ballot is not None and now_ns < ballot.until_ns)

    def apply_refresh(self, now_ns: int) -> None:
        while True:
            lease = self.lease
            if lease.refresh is None or not lease.refresh.decided or self._replace(lease, lease.refreshed(now_ns)):
                return

    def busy(self, now_ns: int) -> bool:
        """Return whether other holds of this client should wait for this one.

        A hold whose token was exposed is not busy: a user may release it elsewhere, and only the masters know.
        """
        return (self.held(now_ns) and not self.token_exposed) or self.state in (WAITING, ASKING, RELEASING)

    def free(self) -> None:
        self.kind.end(self)
        self._to_free()

    def undoing(self, ticket: object) -> Command | None:
        """Return the command that undoes an interrupted acquire; None if another thread releases the lock already."""
        if self.state in (FREE, WAITING, HANDED_OFF) or (self.state == ASKING and not self.kind.undoes):
            return None
        command = self.undoing_attempt()
        # Another thread may have released the lock meanwhile.
        return command if self._to_undoing(ticket) else None

    def end_undoing(self, ticket: object) -> None:
        """End the claim of an interrupted acquire, unless another thread is releasing the lock and will end it."""
        if self.ticket is ticket and self.state not in (RELEASING, HANDED_OFF):
            self.free()

    def begin_release(self, now_ns: int) -> tuple[bool, bool]:
        """Begin a release; return whether the validity was over by then, and whether it was sent before."""
        self.apply_refresh(now_ns)
        resent = self._to_releasing(now_ns)
        return self.let_go_ns >= self.lease.deadline_ns, resent

    def resend_release(self, ticket: object, now_ns: int) -> Command | None:
        """Mark an interrupted release as unconfirmed; return the command to send again, or None."""
        if self.ticket is not ticket:
            return None
        if self.state == HANDED_OFF:
            self.free()
        if self.state not in (HELD, RELEASING, UNCONFIRMED):
            return None
        command = self.releasing()
        # No caller waits for the answers: a "no" to a later copy may be the work of this one.
        command.tried = -1
        # Meanwhile another thread may have claimed the hold, or handed its lease off.
        return command if self._to_resent(ticket, command, now_ns) else None

    def figures_in(self, quorum: Quorum) -> Figures:
        return quorum.figures if self.figures is None else self.figures

    def count_end(self, quorum: Quorum, ended_ns: int, lost: Loss | None = None) -> None:
        """Count the end of the lease, once, and its loss, before another acquire can claim the hold."""
        # No call comes between the two lines: if two threads find a loss at the same time, one of them counts it.
        won_ns = self.won_ns
        self.won_ns = 0
        if won_ns:
            figures = self.figures_in(quorum)
            figures.hold_time.count(ended_ns - won_ns)
            if lost:
                figures.lose(lost.kind.value)

    def held(self, now_ns: int) -> bool:
        return self.is_held() and now_ns < self.lease.deadline_ns


def hold_on(prefix: bytes, name: str | bytes, kind: Kind) -> Hold:
    hold: Hold = Hold.__new__(Hold)
    hold._open(name, key_of(prefix, name), kind)
    return hold


def those_held(locks: list[Any], holds: list[Hold]) -> list[Any]:
    """Return the locks of these holds, with None in place of each that is not held."""
    found: list[Any] = []
    for place in range(len(holds)):
        hold = holds[place]
        found.append(locks[place] if hold.is_held() else None)
    return found


def count_acquires(quorum: Quorum, holds: list[Hold], began_ns: int, at_once: bool) -> None:
    """Count each acquire of a batch; `at_once` means that it had no time to wait."""
    for hold in holds:
        figures = hold.figures_in(quorum)
        if hold.is_held():
            figures.win(hold.won_ns - began_ns)
        else:
            figures.refuse(at_once)
