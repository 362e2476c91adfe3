# cython: annotation_typing=True
"""The semaphore: each holder has one of its numbered slots. The rate limit: each slot stays taken for a while."""

from __future__ import annotations

from typing import Any

from redlatch.votes import family_scripts as scripts
from redlatch.votes.kinds import RATE_LIMIT, SEMAPHORE

from ...votes.ballot import Ballot
from ...votes.commands import NOTHING, REFUSAL, Command, Scripted
from ...votes.payloads import digits
from ...votes.units import MILLISECOND
from ..hold import Hold
from ..lease import NO_LEASE, Lease
from ..quorum import Quorum
from ..waiting.watches import Watch
from .kind import LATE
from .watching import WatchingKind

# An answer reports this many slots, one bit each, and one more bit says that all slots are taken. Lua represents
# integers of up to 53 bits exactly.
WINDOW = 50
FULL_BIT = 1 << WINDOW


class Slot(WatchingKind):
    """A holder of one slot of a semaphore. A quorum must agree on the slot, so no two holders have the same one."""

    declared = SEMAPHORE
    taking = scripts.SLOT_ACQUIRE

    def __init__(self, keys: list[bytes], permits: int) -> None:
        super().__init__()
        self.shares = True
        self._keys = keys
        self._permits = permits
        # Enough to ask about every window.
        self.late = LATE + (permits - 1) // WINDOW
        self._slot = 0
        self._next = 0
        # The first slots of the windows that no answer has reported yet.
        self._unseen: list[int] = []

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        self._start_over(quorum)

    def _start_over(self, quorum: Quorum) -> None:
        self._next = self._any_of(quorum, range(self._permits))
        self._unseen = list(range(0, self._permits, WINDOW))

    def _any_of(self, quorum: Quorum, slots: range | list[int]) -> int:
        return slots[int(quorum.random() * len(slots))]

    def _window(self) -> range:
        first = self._slot - self._slot % WINDOW
        return range(first, min(first + WINDOW, self._permits))

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        # The slot changes only here, because the undo of the last attempt names the old slot.
        self._slot = self._next
        window = self._window()
        numbers = ttl_ms, self._slot, window.start, len(window), self._permits
        arguments = [lease.token] + [digits(number) for number in numbers]
        undo = self.undoing(key, lease, True)
        return Scripted(key, lease, self.taking, self._keys, arguments, REFUSAL, undo=undo)

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        return Scripted(key, lease, scripts.SLOT_RELEASE, self._keys, [lease.token, digits(self._slot)], NOTHING, True)

    def extending(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        arguments = [lease.token, digits(self._slot), digits(ttl_ms)]
        return Scripted(key, lease, scripts.SLOT_EXTEND, self._keys, arguments)

    def repairing(self, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        numbers = ttl_ms, self._slot, 0, 0, self._permits
        arguments = [lease.token] + [digits(number) for number in numbers]
        return Scripted(key, lease, scripts.SLOT_ACQUIRE, self._keys, arguments, REFUSAL)

    def owned(self, key: bytes, lease: Lease) -> Command:
        return Scripted(key, lease, scripts.SLOT_OWNED, self._keys, [lease.token, digits(self._slot)])

    def locked(self, key: bytes) -> Command:
        return Scripted(key, NO_LEASE, scripts.FULL, self._keys[:1], [digits(self._permits)])

    def holder(self, key: bytes) -> Command | None:
        return None

    def _taken(self, quorum: Quorum, ballot: Ballot) -> list[int]:
        """Return the slots that each master reports as taken, as bits."""
        # A copy: another thread may add an answer meanwhile.
        return [-answer for answer in list((ballot.answers or {}).values())]

    def note_answers(self, quorum: Quorum, ballot: Ballot) -> bool:
        """Choose another slot; return whether it may be free on a quorum."""
        taken = self._taken(quorum, ballot)
        lost = quorum.size - quorum.majority
        if sum([mask >= FULL_BIT for mask in taken]) > lost:
            self._start_over(quorum)
            return False
        window = self._window()
        free = [
            slot
            for place, slot in enumerate(window)
            if sum([mask >> place & 1 for mask in taken]) <= lost and slot != self._slot
        ]
        if window.start in self._unseen:
            self._unseen.remove(window.start)
        self.apart = bool(free)
        if free:
            self._next = self._any_of(quorum, free)
            return True
        if self._unseen:
            first = self._any_of(quorum, self._unseen)
            self._next = self._any_of(quorum, range(first, min(first + WINDOW, self._permits)))
            return True
        self._start_over(quorum)
        return False


class Permit(Slot):
    """A permit of a rate limit: a slot that stays taken for a period after the acquire. Only an undo gives it back.

    An acquire counts from its end, so that no window of the period has more acquires than permits. A master counts from
    when it gave the slot, earlier by up to the length of the attempt. So the slot lives longer (`lives_ms`) than the
    period, and an attempt that took longer than that difference (`slack_ns`) does not count: the caller gives it back.
    """

    declared = RATE_LIMIT
    taking = scripts.RATE_ACQUIRE

    def __init__(self, keys: list[bytes], permits: int, lives_ms: int, slack_ns: int) -> None:
        super().__init__(keys, permits)
        self._lives_ms = lives_ms
        self.slack_ns = slack_ns
        # When a quorum may have a free slot, by the last answers; 0 if that is not known.
        self.free_ns = 0

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        return super().acquiring(quorum, key, lease, self._lives_ms)

    def releasing(self, key: bytes, lease: Lease) -> Command | None:
        return None

    def _taken(self, quorum: Quorum, ballot: Ballot) -> list[int]:
        taken = super()._taken(quorum, ballot)
        lefts = sorted([max(0, answer - FULL_BIT) for answer in taken])
        known = len(lefts) >= quorum.majority
        self.free_ns = quorum.clock.now() + lefts[quorum.majority - 1] * MILLISECOND if known else 0
        # The bits of a full master say when its first slot is free.
        return [2 * FULL_BIT - 1 if answer >= FULL_BIT else answer for answer in taken]

    def left_ns(self, quorum: Quorum, look: Watch) -> int:
        left_ns = look.left_ns()
        return min(left_ns, max(0, self.free_ns - quorum.clock.now())) if self.free_ns else left_ns
