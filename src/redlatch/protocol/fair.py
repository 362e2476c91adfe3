# cython: annotation_typing=True
# (A .pxd cannot type the arguments and locals of a generator.)
"""The fair lock: a queue on every master, from which each is called when it is its turn, and nobody else.

How order is agreed on N masters: each waiter draws one ticket, by its wall clock, and stands under it on every master;
so all masters have one order. A master refuses a ticket that is more than a tenth of a second below the highest that it
has, and the waiter takes a higher one: who comes after another was known to a quorum meets at least one master that
knows it, and stands behind it, whatever the clocks say; only where clocks differ by less may it come before.

Rules that each script keeps on its master (`family_scripts`):
  * Where the lock is free, the first in the queue has been called: its own key says so, and it waits for a change of
    that key alone. So a change of the lock wakes one waiter, however many there are.
  * A waiter that has not asked for `ALIVE_MS` is dead, and passed over by whoever asks or leaves.
  * Nobody is called when the lock's key goes by itself, or is deleted by others. Who knows that it is first waits for
    that key, too; and everybody asks once a second.

Compiled as `redlatch._c.protocol.fair`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redlatch.protocol import family_scripts as scripts

from .ballot import FOREVER_MS, Ballot
from .commands import NOTHING, REFUSAL, Called, Command, Look, Scripted
from .contention import wait_for_pushes
from .effects import Effect, Tell
from .family import ALIVE_MS
from .hold import Hold
from .kind import Kind
from .lease import Lease
from .policy import MILLISECOND, Policy
from .waiting import Lines

# A place in the queue: one that is asked for, kept, or changed for a later one.
KEPT, NEW, CHANGED = range(3)


class Fair(Kind):
    """First come, first served over all processes."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.orderly = True
        self._keys = [key, key + b"\0queue"]
        self._me = self._waiter = b""
        self._ticket = self._next = 0
        self._place = NEW
        self._since_ns = 0
        self._called: Ballot | None = None
        self._answers: dict[int, int] = {}

    def begin(self, policy: Policy, hold: Hold, caller: Any) -> None:
        self._me = policy.me()
        self._waiter = hold.key + scripts.WAITER + self._me
        self._next = policy.fences.now()
        self._place = NEW
        self._since_ns = policy.clock.now()

    def acquiring(self, policy: Policy, lines: Lines, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        self.rest(lines, key)
        place = self._place
        if place == NEW:
            self._place = CHANGED  # until a quorum has answered: its ticket may be unchecked so far
            # Who has waited in this client's line does not come so early that it is refused.
            self._next = max(self._next, policy.fences.now() - scripts.SKEW_US // 2)
        self._ticket = self._next  # not before: until now the last attempt may have to be undone
        if place == NEW and key in lines.crowded:  # then it is mostly refused
            lines.crowded.discard(key)
            self._watch(policy, lines, key, policy.clock.now() + policy.patience_ns(ttl_ms))
        self._answers = {}
        arguments = [lease.token, b"%d" % ttl_ms, self._me, b"%d" % self._ticket, b"%d" % ALIVE_MS, b"%d" % place]
        return Scripted(
            key, lease, scripts.FAIR_ACQUIRE, self._keys, arguments, REFUSAL, undo=self.releasing(key, lease)
        )

    def undoing(self, key: bytes, lease: Lease) -> Command:
        arguments = [lease.token, self._me, b"%d" % self._ticket]
        # Sent once more, it may come behind the release by which this client leaves: it does not stand in line again.
        again = Scripted(key, lease, scripts.FAIR_UNDO, self._keys, [*arguments, b"0"], NOTHING, True)
        whole = [*arguments, b"%d" % ALIVE_MS]
        return Scripted(key, lease, scripts.FAIR_UNDO, self._keys, whole, NOTHING, True, None, again)

    def releasing(self, key: bytes, lease: Lease) -> Command:
        arguments = [lease.token, self._me, b"%d" % self._ticket]
        command = Scripted(key, lease, scripts.FAIR_RELEASE, self._keys, arguments, NOTHING, True)
        command.since_ns = self._since_ns  # its place may be there since its first attempt
        return command

    def heed(self, policy: Policy, ballot: Ballot) -> bool:
        """Take a higher ticket where one is asked for; keep what else was answered."""
        self._answers = dict(ballot.answers or {})  # a copy: another thread may add an answer meanwhile
        highest = -min([0] + list(self._answers.values()))  # noqa: RUF005 (Cython)
        if highest < self._ticket:
            self._place = KEPT
            return False
        self._next = highest + 1
        self._place = CHANGED
        return True

    def _watch(self, policy: Policy, lines: Lines, key: bytes, until_ns: int) -> Ballot:
        """Note that this client is to be told when it is called, and when it changes the lock itself."""
        self._called = called = policy.ballot(Called(self._waiter), until_ns)
        lines.watch(self._waiter, called)
        lines.watch(key, called)
        return called

    def undone(self, policy: Policy, lines: Lines, key: bytes, ballot: Ballot) -> None:
        self.rest(lines, key)  # no push tells what the undo changes: the masters are asked anew

    def rest(self, lines: Lines, key: bytes) -> None:
        called, self._called = self._called, None
        if called is not None:
            lines.unwatch(self._waiter, called)
            lines.unwatch(key, called)

    def behind(self) -> Ballot | None:
        return self._called

    def _left_ns(self, policy: Policy) -> int:
        """Return after which time a quorum should have the lock free, by what they answered."""
        left = sorted([max(0, -1 - answer) for answer in self._answers.values()])
        return min(left[policy.quorum - 1] if len(left) >= policy.quorum else FOREVER_MS, FOREVER_MS) * MILLISECOND

    def wait(
        self,
        policy: Policy,
        lines: Lines,
        hold: Hold,
        ttl_ms: int,
        round_ns: int,
        patience_ns: int,
        pauses: int,
        until_ns: int,
    ) -> Generator[Effect, None, bool]:
        lines.crowd(hold.key)
        called = self._called
        if called is None:
            called = self._watch(policy, lines, hold.key, policy.clock.now() + policy.patience_ns(ttl_ms))
            yield Tell([called])
        if self._answers:  # it is first somewhere
            yield Tell([policy.ballot(Look(hold.key))])
        yield [called]
        if called.yes >= called.quorum:
            return True
        waited = yield from wait_for_pushes(policy, called, self._left_ns(policy), pauses, until_ns)
        return waited
