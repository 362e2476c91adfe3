"""The policies of a client: pauses, limits of hand-offs, the first master, numbers of fenced locks, doubts, outages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from redlatch.errors import ConfigurationError, QuorumUnavailable

from ..votes.key import slot_of
from ..votes.units import SECOND, UNBOUNDED


@dataclass(frozen=True, slots=True)
class Retry:
    """Set the back-off with jitter between two attempts on a lock that another holder has.

    The n-th pause is drawn uniformly from 0 to min(longest, first * 2**n) seconds. This "full jitter" spreads the
    attempts of contenders that started together (see the Redis documentation on distributed locks).

    Args:
        first: the bound of the first pause, in seconds. Default 0.004.
        longest: the largest bound of a pause, in seconds. Default 0.050.

    Raises:
        ConfigurationError: a bound is out of range.
        TypeError: a bound is not a number.
    """

    first: float = 0.004
    longest: float = 0.050

    def __post_init__(self) -> None:
        for bound in (self.first, self.longest):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                raise TypeError(f"retry: a number of seconds is needed, not {type(bound).__name__}")
        if not 0 < self.first <= self.longest < float("inf"):
            raise ConfigurationError(
                f"retry: 0 < first <= longest is needed, in seconds; got first={self.first}, longest={self.longest}"
            )

    def pause_ns(self, attempt: int, random: float) -> int:
        """Return the pause after attempt number `attempt`, counted from 0; `random` is in [0, 1)."""
        return self.growing_ns(attempt, random, self.longest)

    def growing_ns(self, attempt: int, random: float, longest: float) -> int:
        bound = min(longest, self.first * 2.0 ** min(attempt, 32))
        return int(bound * random * SECOND)

    def back_off_ns(self, random: float) -> int:
        """Return a pause in which nearly all polling waiters of other processes ask."""
        return int(self.longest * (0.5 + random / 2) * SECOND)

    def again_ns(self, attempt: int, round_ns: int, random: float) -> int:
        """Return the pause if the key was gone after each attempt; its bound starts at the duration of a round."""
        bound = min(int(self.longest * SECOND), round_ns << min(attempt, 32))
        return int(bound * random)


@dataclass(frozen=True, slots=True)
class Handoff:
    """Set for how long a lease may pass from one waiter of a client to the next without a command to the masters.

    After that time the client releases the lock, and other processes get a chance first.

    Args:
        tenure: seconds since the lock was won. 0 turns hand-offs off. Default 0.1.
        count: how many times the lease may be handed off. 0 turns hand-offs off. Default 10,000.

    Raises:
        ConfigurationError: a bound is out of range.
        TypeError: a bound has the wrong type.
    """

    tenure: float = 0.1
    count: int = 10_000

    def __post_init__(self) -> None:
        if isinstance(self.tenure, bool) or not isinstance(self.tenure, (int, float)):
            raise TypeError(f"handoff: tenure must be a number of seconds, not {type(self.tenure).__name__}")
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise TypeError(f"handoff: count must be an integer, not {type(self.count).__name__}")
        if not 0 <= self.tenure < float("inf") or not 0 <= self.count < UNBOUNDED:
            raise ConfigurationError(
                f"handoff: finite bounds of at least 0 are needed; got tenure={self.tenure}, count={self.count}"
            )


class FirstMaster:
    """Chooses the master that all clients ask first for a contended key.

    If several clients ask all masters at once, their votes may split and no client wins. If all ask the same master
    first, one of them wins it, and the others have nothing to undo.

    Attributes:
        round_ns: the duration of the last lost attempt that asked all masters at once.
    """

    __slots__ = ("_deprioritised", "round_ns")

    def __init__(self) -> None:
        self.round_ns = 0
        # Until when a master is not asked first, by its index.
        self._deprioritised: dict[int, int] = {}

    def first_of(self, order: tuple[int, ...], key: bytes, now_ns: int) -> int:
        """Return which master of an order (`Quorum.order`) to ask first; -1 if there is none."""
        if len(order) == 1:
            return -1
        start = crc32(key)
        for step in range(len(order)):
            index = order[(start + step) % len(order)]
            if self._deprioritised.get(index, 0) <= now_ns:
                return index
        return -1

    def deprioritise(self, index: int, now_ns: int) -> None:
        """Ask another master first for a second: this one did not answer."""
        self._deprioritised[index] = now_ns + SECOND


FENCE_LEAD_US = 3_600_000_000


class Fences:
    """Proposes numbers for fenced locks: above all that this client has seen, and not below its wall clock.

    The clock is only a hint. If the masters have higher numbers, a second round takes higher ones than those.

    But masters may forget their numbers. So a number also exceeds the mean of the wall clock and the time of the last
    marker by FENCE_LEAD_US (FE1). If a master forgets everything, it gets a new marker, and the lead puts the next
    numbers above the earlier ones. If it loses its numbers alone, the clock does.

    If a marker is read before the masters vote on a number, a number below `marked_floor` is granted only if it is not
    below the present `floor`.

    Args:
        wall: returns the wall clock in microseconds since 1970.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self._wall = wall
        self._seen = 0
        self._marked = 0
        self.marked_floor = 0

    def propose(self) -> int:
        return max(self._seen + 1, self.floor())

    def last_of_block(self, first: int, successors: int) -> int:
        """Return the last number of a block, which has numbers for later holders.

        It is a single number while the numbers are above the clock's: leases in quick succession would take blocks
        faster than the clock advances, and the lead over a forgetful master would be lost.
        """
        return first if first > self.floor() else first + successors

    def floor(self) -> int:
        wall, marked = self._wall(), self._marked
        return max(wall, (wall + marked) // 2 + FENCE_LEAD_US if marked else 0)

    def mark(self, since_us: int) -> None:
        """Record a marker of this time, in microseconds since 1970 by the master's clock."""
        self._marked = max(self._marked, since_us)
        self.marked_floor = self.floor()

    def now(self) -> int:
        """Return the wall clock alone, for the tickets of fair locks, which must advance as time does."""
        return self._wall()

    def note(self, number: int) -> None:
        self._seen = max(self._seen, number)


class Doubts:
    """The times before which votes may be void, because a master lost its keys or its clock jumped.

    A cluster is one master, but each of its nodes forgets for itself: there a doubt is about all slots that the node
    has ever had (see `concern`), and in this class "master" stands for a node.

    Attributes:
        until_ns: leases that were asked for before this time are in doubt.
    """

    __slots__ = ("_by_master", "_others", "_slots", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0
        # The slots that each node has had; None for servers.
        self._slots: dict[int, set[int]] | None = None
        # For each master: its last doubt, and the largest one before.
        self._by_master: dict[int, tuple[int, int]] = {}
        self._others: dict[int, int] = {}

    def add(self, until_ns: int, master: int = -1) -> None:
        """Record that a master's votes before this time may be void; -1 stands for all masters."""
        self._by_master[master] = until_ns, max(self._by_master.get(master, (0, 0)))
        self.until_ns = max(self.until_ns, until_ns)

    def clear(self, master: int) -> None:
        """Forget the last doubt about a master: it had no reason. Earlier doubts stay."""
        self._by_master[master] = 0, self._by_master.get(master, (0, 0))[1]
        self.until_ns = max([max(doubts) for doubts in self._by_master.values()])

    def note_other(self, until_ns: int, master: int) -> None:
        """Record that a master may not remember releases before this time."""
        self._others[master] = until_ns

    def concern(self, master: int, slots: set[int]) -> bool:
        """Record the slots of a node; return whether this brings further leases into doubt.

        A slot may have moved shortly before or after a node forgot its keys, and the client hears of both in any order.
        """
        if self._slots is None:
            self._slots = {}
        had = self._slots.setdefault(master, set())
        more = not slots <= had
        had |= slots
        return more and max(self._by_master.get(master, (0, 0))) > 0

    def kept(self, master: int, asked_ns: int, key: bytes) -> bool:
        """Return whether a master has the memory of this time, as far as is known."""
        if self._slots is not None:
            return all([self._kept(node, asked_ns) for node in self._nodes_of(key)])
        return self._kept(master, asked_ns)

    def _kept(self, master: int, asked_ns: int) -> bool:
        return asked_ns >= self._others.get(master, 0) and not self.of(master, asked_ns)

    def _nodes_of(self, key: bytes) -> list[int]:
        slot = slot_of(key)
        return [-1, *[node for node, slots in (self._slots or {}).items() if slot in slots]]

    def of(self, master: int, asked_ns: int) -> bool:
        """Return whether a master's vote for a lease that was asked for then may be void."""
        return asked_ns < max(self._by_master.get(master, (0, 0)))

    def cover(self, asked_ns: int, key: bytes = b"") -> bool:
        """Return whether a lease that was asked for then may have lost a vote since; without a key, any lease."""
        if asked_ns >= self.until_ns:
            return False
        if self._slots is None or not key:
            return True
        return any([self.of(node, asked_ns) for node in self._nodes_of(key)])


class Outage:
    """Too many masters failed in each of several attempts in a row on one name, and acquires may ride that out.

    The waiters of a name become its head one after the other, and share what the earlier heads have found. Otherwise
    each would ride the outage out from its start, or wait for the same silent masters. Other names are not affected:
    the user may lack the right to one key only.

    Args:
        since_ns: when the first of these attempts began.
        error: what the last of them would raise. It is never raised itself, because several waiters may repeat it.
    """

    __slots__ = ("_gave_up_before_ns", "_gave_up_ns", "error", "since_ns")

    def __init__(self, since_ns: int, error: QuorumUnavailable) -> None:
        self.since_ns = since_ns
        self.error = error
        # When the last two acquires that gave up began their last attempts.
        self._gave_up_ns = self._gave_up_before_ns = 0

    def give_up(self, started_ns: int) -> None:
        self._gave_up_before_ns = self._gave_up_ns
        self._gave_up_ns = started_ns

    def rides_until_ns(self, patience_ns: int, began_ns: int, until_ns: int) -> int:
        """Return until when an acquire rides the outage out; 0 if it gives up at once.

        A single attempt has an `until_ns` of 0.
        """
        if not patience_ns:
            return 0
        return min(max(self.since_ns, began_ns) + patience_ns, until_ns)

    def known(self, patience_ns: int, began_ns: int, until_ns: int, now_ns: int) -> bool:
        """Return whether an acquire that has waited behind others gives up without an attempt of its own.

        With patience, it has ridden the outage out while it waited. Without, two heads before it have begun their last
        attempts since it began, and have found no quorum.
        """
        if patience_ns:
            return now_ns >= self.rides_until_ns(patience_ns, began_ns, until_ns)
        return began_ns <= self._gave_up_before_ns
