"""The fair lock: each master has a queue, and calls only the waiter whose turn it is.

Each waiter draws one ticket by its wall clock, and has it in the queue of every master. A master refuses a ticket that
is more than 100 ms below its highest one; the waiter then takes a higher one. Once a quorum knows a waiter, each later
waiter asks at least one master that knows the first. So requests more than 100 ms apart are served in order, regardless
of clock skew.

Rules that each script keeps on its master (`family_scripts`):
  * When the lock becomes free, the first waiter is called. It was told that it is the first and watches the lock; or
    its bell is rung, which only this waiter watches. So a release wakes one waiter.
  * The releasing client knows the next waiter since it has won, so the release rings the bell, too. If that waiter has
    left, the answer names the first one, and a second command rings its bell (`Scripted.follow`).
  * A waiter that has not asked for `ALIVE_MS` is dead. Each script of a client that asks or leaves passes over it.
  * The master calls no waiter when the key of the lock expires, or when a user deletes it. A waiter that was told that
    it is the first knows when the key expires. And each waiter asks once a second.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redlatch.votes.family_scripts import BELL, BELLS, FAIR_ACQUIRE, FAIR_RELEASE, FAIR_UNDO, SKEW_US
from redlatch.votes.kinds import FAIR

from ...votes.ballot import Ballot
from ...votes.commands import Called, Command, LookAsFirst, Scripted
from ...votes.payloads import digits
from ...votes.units import MILLISECOND, UNBOUNDED
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

    def __init__(self, keys: list[bytes]) -> None:
        super().__init__()
        self.orderly = True
        # The last key is the bell of this waiter.
        self._keys = [*keys, b""]
        self._bells = keys[1] + BELL
        # The number of this waiter on the masters, and the same in digits.
        self.number = 0
        self._me = b""
        self._bell = b""
        self._ticket = 0
        self._next = 0
        self._place = NEW
        self._since_ns = 0
        self._called: Watch | None = None
        self._is_first = False
        # The ballot of the last attempt, with the answers of the masters that said yes: who is next.
        self._attempt: Ballot | None = None

    def begin(self, quorum: Quorum, hold: Hold, caller: Any) -> None:
        self.number = BELLS + int(quorum.random() * BELLS)
        self._me = digits(self.number)
        self._keys[-1] = self._bell = self._bells + self._me
        self._attempt = None
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
            self._next = max(self._next, quorum.fences.now() - SKEW_US // 2)
        # The ticket changes only here, because the undo of the last attempt names the old ticket.
        self._ticket = self._next
        if place == NEW and key in quorum.queues.crowded:
            quorum.queues.crowded.discard(key)
            self._watch(quorum, key, quorum.clock.now() + quorum.wait_ns(ttl_ms))
        self._is_first = False
        self._attempt = None
        arguments = [lease.token, digits(ttl_ms), self._me, digits(self._ticket), ALIVE_MS, digits(place)]
        command = Scripted(key, lease, FAIR_ACQUIRE, self._keys, arguments, undo=self.undoing(key, lease, True))
        # A yes names the next waiter, which is not called before the release.
        return command.calls(self._bells, UNBOUNDED, BELLS)

    def undoing(self, key: bytes, lease: Lease, last: bool) -> Command:
        arguments = [lease.token, self._me, digits(self._ticket)]
        if last:
            keys, after = self._keys, self._after()
            if after:
                keys = keys + [self._bells + client for client in after]
                arguments += after
            command = Scripted(key, lease, FAIR_RELEASE, keys, arguments, releases=True)
            # The place in the queue may exist since the first attempt.
            command.since_ns = self._since_ns
            return command.calls(self._bells, BELLS, BELLS)
        # A second copy may come after this client has left the queue. So it does not enter it again.
        again = Scripted(key, lease, FAIR_UNDO, self._keys, [*arguments, b"0"], releases=True)
        again.calls(self._bells, BELLS, BELLS)
        arguments += [ALIVE_MS]
        undo = Scripted(key, lease, FAIR_UNDO, self._keys, arguments, releases=True, again=again)
        return undo.calls(self._bells, BELLS, BELLS)

    def _after(self) -> list[bytes]:
        """Return the clients that are next by the answers to the attempt that has won."""
        won = self._attempt
        after: list[bytes] = []
        if won is None or won.answers is None:
            return after
        # A copy: another thread may add an answer meanwhile.
        for answer in list(won.answers.values()):
            if answer > 1:
                client = digits(answer)
                if client not in after:
                    after.append(client)
        return after

    def second_round(self, quorum: Quorum, hold: Any, ballot: Ballot) -> Ballot | None:
        self._attempt = ballot
        return None

    def note_answers(self, quorum: Quorum, ballot: Ballot) -> bool:
        # A copy: another thread may add an answer meanwhile.
        highest, bells = 0, BELLS
        for answer in list((ballot.answers or {}).values()):
            if -bells < answer < -highest:
                highest = -answer
        if highest < self._ticket:
            self._is_first = highest > 0
            self._place = KEPT
            return False
        self._next = highest + 1
        self._place = CHANGED
        return True

    def _watch(self, quorum: Quorum, key: bytes, until_ns: int) -> Watch:
        """Watch the bell of this waiter, and the lock for changes by this client itself; the first one, by all."""
        command: Command = Called(self._bell)
        if self._is_first:
            command = LookAsFirst(key, self._bell)
        self._called = called = new_watch(quorum, command, until_ns)
        quorum.queues.watches.add(self._bell, called)
        quorum.queues.watches.add(key, called)
        return called

    def undone(self, quorum: Quorum, key: bytes, ballot: Ballot) -> None:
        # The masters push no change that the undo makes. So the next wait asks them again.
        self.end_watch(quorum, key)

    def end_watch(self, quorum: Quorum, key: bytes) -> None:
        called: Watch | None = self._called
        if called is not None:
            quorum.queues.watches.remove(self._bell, called)
            quorum.queues.watches.remove(key, called)
            # Last, so that an interrupted call can be repeated.
            self._called = None

    def behind(self) -> Ballot | None:
        return self._called

    def wait(self, attempt: Attempt) -> Generator[Effect, None, bool]:
        quorum, key = attempt.quorum, attempt.hold.key
        quorum.queues.crowd(key)
        called = self._called
        if called is None or self._is_first:
            self.end_watch(quorum, key)
            called = self._watch(quorum, key, quorum.clock.now() + quorum.wait_ns(attempt.ttl_ms))
            yield Send([called])
        yield [called]
        if called.yes >= called.quorum:
            return True
        left_ns = called.left_ns() if self._is_first else FOREVER_MS * MILLISECOND
        waited = yield from wait_for_pushes(quorum, called, left_ns, attempt.pauses, attempt.until_ns)
        return waited
