# cython: annotation_typing=True
"""The condition of a lock: waiters that a holder of the lock calls, in any process.

A wake-up without a call is allowed, a call that wakes no waiter is not. The rules that ensure this:

  * A waiter enters on a quorum before it releases the lock, and a call is stored on a quorum. Any two quorums have a
    master in common.
  * Tickets of waiters and numbers of calls come from one sequence: a quorum accepts a number only if it is above all
    others that it knows. A call goes only to lower tickets, so a later waiter cannot take the call of an earlier one.
  * Each master gives a call to the first of its living waiters, and to the next one if that waiter dies. A master that
    knows no waiter yet keeps the call. The call of any single master wakes a waiter.
  * A waiter asks at least once a second. It wakes up without a call when a call may have expired since a quorum last
    answered it, or when a master may have forgotten calls (`Doubts`).
  * A call ends only when its waiter has the lock again. If that waiter dies or gives up, the call goes to another one.
"""

from __future__ import annotations

from redlatch.errors import NotOwned
from redlatch.votes import condition_scripts as scripts
from redlatch.votes.family_scripts import BELL

from ..votes.ballot import Ballot
from ..votes.commands import VOTE, Command, Scripted, Watched
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED
from .effects import Answer, Send, Steps
from .hold import Hold
from .lease import new_lease
from .outcome import asking, loss, why_lost
from .quorum import Quorum
from .waiting.watches import Watch, new_watch

# For how long the masters keep calls; at most `max_ttl`, because a master that has forgotten calls is kept out only
# that long.
KEEP_MS = 10_000

# A waiter is dead when it has not asked for this part of KEEP_MS.
ALIVE_SHARE = 4

# A waiter asks again after this time, or this part of KEEP_MS.
POLL_NS = SECOND
POLL_SHARE = 8

# A call must reach a quorum, and a quorum answer a waiter, within this part of KEEP_MS: together no longer than the
# masters keep the call.
HALF = 2

# The least ticket: above the answer that names none.
FIRST = scripts.WAITS + 1

# 0, or more than this, calls all waiters.
MOST_CALLS = 1000


class CallQueue:
    __slots__ = ("_last", "hold", "keep_ms", "key", "keys", "limit_ns", "quorum", "ttl_ms")

    def __init__(self, quorum: Quorum, hold: Hold, key: bytes, ttl_ms: int) -> None:
        self.quorum = quorum
        self.hold = hold
        self.key = key
        self.keys = [key, key + b"\0calls", key + b"\0bell"]
        self.ttl_ms = ttl_ms
        self.keep_ms = min(KEEP_MS, quorum.max_ttl_ms)
        self.limit_ns = quorum.validity_ns(self.keep_ms) // HALF
        self._last = 0

    def waiter(self) -> Waiter:
        return Waiter(self)

    def propose(self) -> int:
        self._last = max(self._last + MOST_CALLS, self.quorum.fences.now())
        return self._last

    def raised(self, ballot: Ballot) -> int:
        """Return a number that a quorum should accept, by its answers."""
        # A copy: another thread may add an answer meanwhile. A master that has accepted counts as 0.
        known = sorted([max(0, -answer) for answer in list((ballot.answers or {}).values())])
        self._last = max(self._last, known[min(ballot.quorum, len(known)) - 1] if known else 0)
        return self.propose()

    def asking(self, ticket: int, alive_ms: int, new: bool, undo: Command) -> Command:
        lease = new_lease(b"%d" % ticket, self.quorum.clock.now(), 0)
        words = [b"%d" % argument for argument in (ticket, alive_ms, self.keep_ms, new)]
        command = Scripted(self.key, lease, scripts.CALL_WAIT, self.keys, words, VOTE, False, undo)
        command.ttl_ms = self.keep_ms
        return command

    def calling(self, number: int, everybody: bool) -> Command:
        lease = new_lease(b"%d" % number, self.quorum.clock.now(), 0)
        words = [b"%d" % number, b"0" if everybody else b"1", b"%d" % self.keep_ms]
        # For a call of all, the script rings.
        rings_from = UNBOUNDED if everybody else FIRST
        command = Scripted(self.key, lease, scripts.CALL_NOTIFY, self.keys, words)
        command.ttl_ms = self.keep_ms
        return command.calls(self.key + BELL, rings_from, UNBOUNDED)

    def notifying(self, count: int) -> Steps:
        yield from asking(self.quorum, self.hold, "notify", self._calling(0 if count > MOST_CALLS else count))

    def _calling(self, count: int) -> Steps:
        quorum = self.quorum
        missing = count or 1
        number = self.propose()
        while True:
            started: int = quorum.clock.now()
            until = started + quorum.wait_ns(self.ttl_ms)
            # One command for each call: its answer names only one waiter.
            numbers = range(number, number + missing)
            ballots = [quorum.ballot(self.calling(each, not count), until) for each in numbers]
            # Each master answers in this order.
            if ballots[1:]:
                yield Send(ballots[:-1])
            yield ballots[-1]
            now = quorum.clock.now()
            self._wake_own(ballots, count)
            # Too late, waiters could have missed the call; and a master may have forgotten it already.
            if now - started <= self.limit_ns and not quorum.doubts.cover(started, ballots[0].command.key):
                missing -= sum([ballot.yes >= ballot.quorum for ballot in ballots])
            if not missing:
                return
            refused = [ballot for ballot in ballots if ballot.yes < ballot.quorum and not ballot.unavailable()]
            number = self.raised(refused[-1]) if refused else self.propose()

    def _wake_own(self, ballots: list[Ballot], count: int) -> None:
        """Have waiters of this client ask: masters push no change that this client makes itself."""
        watches = self.quorum.queues.watches
        if not count:
            watches.notify(self.key)
        for ballot in ballots if count else ():
            for ticket in set((ballot.answers or {}).values()):
                if ticket > scripts.WAITS:
                    watches.notify(self.own_key(ticket))

    def own_key(self, ticket: int) -> bytes:
        return self.key + BELL + b"%d" % ticket


class Waiter:
    """One wait for a call; `claim` is the ticket of the claim on the lock, which it gives up for the wait."""

    __slots__ = ("_confirmed_ns", "_last", "_number", "_queue", "_since_ns", "_ticket", "_watch", "claim", "entered")

    def __init__(self, queue: CallQueue) -> None:
        self._queue = queue
        self._ticket = 0
        self._since_ns = 0
        self._confirmed_ns = 0
        self._number = 0
        self._last: Ballot | None = None
        self._watch: Watch | None = None
        self.entered = False
        self.claim: object = queue.hold.ticket

    @property
    def key(self) -> bytes:
        return self._queue.key

    def entering(self) -> Steps:
        """Enter on a quorum, and raise NotOwned or LockLost if the caller does not hold the lock then."""
        quorum, hold = self._queue.quorum, self._queue.hold
        self._since_ns = quorum.clock.now()
        self._ticket = self._queue.propose()
        self.entered = True
        yield from asking(quorum, hold, "wait", self._enter())
        now = quorum.clock.now()
        if not hold.held(now):
            if hold.deadline_ns:
                raise loss(why_lost(quorum, hold, True), hold, now - self._since_ns)
            raise NotOwned(f"cannot wait: {hold.name!r} was released meanwhile", name=hold.name)
        # The lock object keeps its holder, which acquires again after the wait.
        hold.awaited = True

    def _enter(self) -> Steps:
        queue, quorum = self._queue, self._queue.quorum
        while True:
            ballot = self._question(queue.keep_ms // ALIVE_SHARE, True)
            yield ballot
            started: int = ballot.command.since_ns
            if ballot.yes >= ballot.quorum and not quorum.doubts.cover(started, ballot.command.key):
                self._confirmed_ns = started
                return
            # Some masters may have accepted the old ticket.
            yield Send([quorum.ballot(self.leaving(0))])
            self._ticket = queue.raised(ballot)

    def give_up(self) -> None:
        # Again: an interrupt may have struck the end of `awaiting`.
        self._end_watch()
        self._queue.hold.awaited = False

    def awaiting(self, until_ns: int) -> Steps:
        queue, quorum = self._queue, self._queue.quorum
        pauses = 0
        called = False
        try:
            while True:
                question = self._question(queue.keep_ms // ALIVE_SHARE, False)
                watch: Watch = self._new_watch()
                # The watch first: a call before it is in the answer to the question.
                yield Send([watch, question])
                yield [question, watch]
                now = quorum.clock.now()
                called = self._called(question, now)
                if called or now >= until_ns:
                    break
                pushes = watch.watchable()
                kept = list(watch.answers or ())
                # From now on a push of any master ends the wait.
                watch.quorum = 1
                watch.reopen(min(now + self._rest_ns(pushes, pauses), until_ns))
                pauses = 0 if pushes else pauses + 1
                yield [watch]
                left = watch.answers or {}
                called = any([index not in left for index in kept])
                if called:
                    break
                self._end_watch()
        finally:
            self._end_watch()
        yield Send([self._parting(called)])
        if not called:
            queue.quorum.queues.watches.notify(queue.key)
        self.give_up()
        yield Answer(called)

    def _parting(self, called: bool) -> Ballot:
        queue = self._queue
        if not called:
            return queue.quorum.ballot(self.leaving(0))
        # The waiter counts as alive until it should have the lock again. The answers, which `used` reads, come before
        # those of the acquire that follows.
        self._last = self._question(max(queue.ttl_ms, queue.keep_ms // ALIVE_SHARE), False)
        return self._last

    def _rest_ns(self, pushes: bool, pauses: int) -> int:
        if not pushes:
            return self._queue.quorum.retry.pause_ns(pauses, self._queue.quorum.random())
        return min(POLL_NS, self._queue.keep_ms * MILLISECOND // POLL_SHARE)

    def _called(self, question: Ballot, now_ns: int) -> bool:
        """Return whether the waiter was called, or may have missed a call."""
        quorum, limit_ns = self._queue.quorum, self._queue.limit_ns
        numbers = _numbers(question)
        if numbers:
            self._number = min(numbers)
            return True
        if quorum.doubts.cover(self._confirmed_ns) or now_ns - self._confirmed_ns > limit_ns:
            return True
        if question.yes >= question.quorum:
            self._confirmed_ns = question.command.since_ns
        return False

    def _question(self, alive_ms: int, new: bool) -> Ballot:
        queue = self._queue
        command = queue.asking(self._ticket, alive_ms, new, self.leaving(0))
        return queue.quorum.ballot(command, command.since_ns + queue.quorum.wait_ns(queue.ttl_ms))

    def _new_watch(self) -> Watch:
        """Watch the bells of this waiter and of all, and the condition for calls by this client itself."""
        queue = self._queue
        key = queue.own_key(self._ticket)
        until_ns = queue.quorum.clock.now() + queue.quorum.wait_ns(queue.ttl_ms)
        self._watch = watch = new_watch(queue.quorum, Watched([key, queue.keys[2]]), until_ns)
        for watched in (key, queue.keys[2], queue.key):
            queue.quorum.queues.watches.add(watched, watch)
        return watch

    def _end_watch(self) -> None:
        watch, queue = self._watch, self._queue
        if watch is not None:
            for watched in (queue.own_key(self._ticket), queue.keys[2], queue.key):
                queue.quorum.queues.watches.remove(watched, watch)
            # Last, so that an interrupted call can be repeated.
            self._watch = None

    def leaving(self, used: int) -> Command:
        """Return the command by which the waiter leaves; calls other than `used` go to other waiters."""
        queue = self._queue
        lease = new_lease(b"%d" % self._ticket, self._since_ns, 0)
        words = [b"%d" % self._ticket, b"%d" % used, b"%d" % queue.keep_ms]
        keys = [*queue.keys, queue.own_key(self._ticket)]
        command = Scripted(queue.key, lease, scripts.CALL_LEAVE, keys, words, releases=True)
        return command.calls(queue.key + BELL, FIRST, UNBOUNDED)

    def used(self) -> int:
        """Return the number of the call that woke this waiter; 0 if it is not known."""
        numbers = [self._number] if self._number else _numbers(self._last)
        return min(numbers, default=0)


def _numbers(question: Ballot | None) -> list[int]:
    # A copy: another thread may add an answer meanwhile.
    answers = [] if question is None else list((question.answers or {}).values())
    return [answer for answer in answers if answer > scripts.WAITS]
