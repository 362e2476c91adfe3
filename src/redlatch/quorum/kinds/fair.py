"""The fair lock: each master has a queue, and calls only the waiter whose turn it is.

Each waiter draws one ticket by its wall clock, and has it in the queue of every master. A master refuses a ticket that
is more than 100 ms below its highest one; the waiter then takes a higher one. Once a quorum knows a waiter, each later
waiter asks at least one master that knows the first. So requests more than 100 ms apart are served in order, regardless
of clock skew.

Rules that each script keeps on its master (`family_scripts`):
  * While the lock is free, the first waiter in the queue is called: the master changes the key of that waiter, the only
    one that it watches. So a change of the lock wakes one waiter.
  * A waiter that has not asked for `ALIVE_MS` is dead. Each script of a client that asks or leaves passes over it.
  * The master calls no waiter when the key of the lock expires, or when a user deletes it. So a waiter that knows that
    it is the first watches that key, too. And each waiter asks once a second.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redlatch.votes import family_scripts as scripts
from redlatch.votes.kinds import FAIR

from ...votes.ballot import Ballot
from ...votes.commands import NOTHING, REFUSAL, Called, Command, Look, Scripted
from ...votes.payloads import digits
from ...votes.units import MILLISECOND
from ..attempt import Attempt
from ..effects import Effect, Send
from ..hold import Hold
from ..lease import Lease
from ..quorum import Quorum
from ..waiting.contention import wait_for_pushes
from ..waiting.watches import FOREVER_MS, Watch, new_watch
from .kind import Kind
from .watching import ALIVE_MS

# The place in the queue that an attempt asks for: its old one, a new one, or a later one.
KEPT, NEW, CHANGED = range(3)


class Fair(Kind):
    declared = FAIR

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.orderly = True
        self._keys = FAIR.keys_of(key)
        self._me = b""
        self._waiter = b""
        self._ticket = 0
        self._next = 0
        self._place = NEW
        self._since_ns = 0
        self._called: Watch | None = None
        self._answers: dict[int, int] = {}

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        self._me = quorum.tokens.client_token()
        self._waiter = hold.key + scripts.WAITER + self._me
        self._next = quorum.fences.now()
        self._place = NEW
        self._since_ns = quorum.clock.now()

    def acquiring(self, quorum: Quorum, key: bytes, lease: Lease, ttl_ms: int) -> Command:
        self.end_watch(quorum, key)
        place = self._place
        if place == NEW:
            # Until a quorum has answered, the masters may not have checked the ticket.
            self._place = CHANGED
            # After a long wait in the queue of this client, the masters would refuse the old ticket.
            self._next = max(self._next, quorum.fences.now() - scripts.SKEW_US // 2)
        # The ticket changes only here, because the undo of the last attempt names the old ticket.
        self._ticket = self._next
        if place == NEW and key in quorum.queues.crowded:
            quorum.queues.crowded.discard(key)
            self._watch(quorum, key, quorum.clock.now() + quorum.wait_ns(ttl_ms))
        self._answers = {}
        arguments = [lease.token, digits(ttl_ms), self._me, digits(self._ticket), ALIVE_MS, digits(place)]
        return Scripted(
            key, lease, scripts.FAIR_ACQUIRE, self._keys, arguments, REFUSAL, undo=self.undoing(key, lease, True)
        )

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        arguments = [lease.token, self._me, digits(self._ticket)]
        if last:
            command = Scripted(key, lease, scripts.FAIR_RELEASE, self._keys, arguments, NOTHING, True)
            # The place in the queue may exist since the first attempt.
            command.since_ns = self._since_ns
            return command
        # A second copy may come after this client has left the queue. So it does not enter it again.
        again = Scripted(key, lease, scripts.FAIR_UNDO, self._keys, [*arguments, b"0"], NOTHING, True)
        whole = [*arguments, ALIVE_MS]
        return Scripted(key, lease, scripts.FAIR_UNDO, self._keys, whole, NOTHING, True, None, again)

    def note_answers(self, quorum: Quorum, ballot: Ballot) -> bool:
        # A copy: another thread may add an answer meanwhile.
        self._answers = dict(ballot.answers or {})
        highest = -min([0] + list(self._answers.values()))  # noqa: RUF005 (Cython)
        if highest < self._ticket:
            self._place = KEPT
            return False
        self._next = highest + 1
        self._place = CHANGED
        return True

    def _watch(self, quorum: Quorum, key: bytes, until_ns: int) -> Watch:
        """Watch the key of this waiter for a call, and the lock for changes by this client itself."""
        self._called = called = new_watch(quorum, Called(self._waiter), until_ns)
        quorum.queues.watches.add(self._waiter, called)
        quorum.queues.watches.add(key, called)
        return called

    def undone(self, quorum: Quorum, key: bytes, ballot: Ballot) -> None:
        # The masters push no change that the undo makes. So the next wait asks them again.
        self.end_watch(quorum, key)

    def end_watch(self, quorum: Quorum, key: bytes) -> None:
        called: Watch | None = self._called
        if called is not None:
            quorum.queues.watches.remove(self._waiter, called)
            quorum.queues.watches.remove(key, called)
            # Last, so that an interrupted call can be repeated.
            self._called = None

    def behind(self) -> Ballot | None:
        return self._called

    def _left_ns(self, quorum: Quorum) -> int:
        left = sorted([max(0, -1 - answer) for answer in self._answers.values()])
        return min(left[quorum.majority - 1] if len(left) >= quorum.majority else FOREVER_MS, FOREVER_MS) * MILLISECOND

    def wait(self, attempt: Attempt) -> Generator[Effect, None, bool]:
        quorum, key = attempt.quorum, attempt.hold.key
        quorum.queues.crowd(key)
        called = self._called
        if called is None:
            called = self._watch(quorum, key, quorum.clock.now() + quorum.wait_ns(attempt.ttl_ms))
            yield Send([called])
        # This waiter is the first on at least one master.
        if self._answers:
            yield Send([quorum.ballot(Look(key))])
        yield [called]
        if called.yes >= called.quorum:
            return True
        waited = yield from wait_for_pushes(quorum, called, self._left_ns(quorum), attempt.pauses, attempt.until_ns)
        return waited
