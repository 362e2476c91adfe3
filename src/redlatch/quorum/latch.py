# cython: annotation_typing=True
"""The latch: it opens when enough counts have come, from any process, and stays open.

Each count is a random number, and each master keeps a set of counts, which only grows. So the order does not matter,
and a count that is sent or copied twice counts once. A call that counts has its number on a quorum, so the sets of any
quorum together have all counts. If these sets differ for longer than a moment, the next call copies the missing counts
to all masters. So a master that has forgotten its set gets it back.

The latch is open as soon as one master has enough counts. Before a waiter returns, a quorum knows that it is open.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redlatch.votes import condition_scripts as scripts
from redlatch.votes.scripts import Script

from ..votes.ballot import Ballot
from ..votes.commands import NOTHING, VOTE, Called, Command, Scripted
from ..votes.units import MILLISECOND, SECOND, UNBOUNDED
from .effects import Answer, Effect, Pause, Send, Steps
from .hold import Hold
from .lease import new_lease
from .outcome import asking
from .quorum import Quorum
from .waiting.watches import Watch, new_watch

POLL_NS = SECOND

PART = 256

# Counts are numbers below this one: Lua adds two of them exactly.
COUNTS = 1 << 52


class Counts:
    """One use of a latch: a count, a wait, or a question.

    Args:
        hold: never claimed; it has the name and the key.
        ttl_ms: for how long the masters keep the latch after its last use.
    """

    __slots__ = (
        "_count",
        "_hold",
        "_keys",
        "_last",
        "_quorum",
        "_since_ns",
        "_ttl_ms",
        "_until_ns",
        "_watch",
        "left",
        "mine",
    )

    def __init__(self, quorum: Quorum, hold: Hold, count: int, ttl_ms: int) -> None:
        self._quorum = quorum
        self._hold = hold
        self._keys = [hold.key, hold.key + b"\0open"]
        # `left` is how many are missing, by the last answers; `mine` is the count that this use adds, or 0.
        self._count = self.left = count
        self._ttl_ms = ttl_ms
        self._since_ns = 0
        self._until_ns = UNBOUNDED
        self._watch: Watch | None = None
        self._last: Ballot | None = None
        self.mine = 0

    def counting(self) -> Steps:
        """Add one count. The caller sends `undoing` if this raises."""
        self._since_ns = self._quorum.clock.now()
        self.mine = scripts.OPEN + 1 + int(self._quorum.random() * (COUNTS - 8))
        yield from self._agree("count_down")

    def undoing(self) -> Command:
        lease = new_lease(b"%d" % self.mine, self._since_ns, 0)
        return Scripted(self._hold.key, lease, scripts.LATCH_UNDO, self._keys, [b"%d" % self.mine], NOTHING, True)

    def asking(self) -> Steps:
        """Ask how many counts are missing. This does not prolong the latch's life."""
        ballot: Ballot = yield from self._vote("remaining", scripts.LATCH_LOOK, [])
        answers = _answers(ballot)
        if not self._settled(answers):
            counts: Any = yield from self._fetch(answers)
            self.left = max(0, self._count - max(len(counts), *[_size(answer) for answer in answers]))

    def awaiting(self, until_ns: int) -> Steps:
        quorum = self._quorum
        self._until_ns = until_ns
        pauses = 0
        try:
            while True:
                watch: Watch = self._new_watch()
                yield Send([watch])
                yield from self._agree("wait")
                yield [watch]
                now = quorum.clock.now()
                if not self.left or now >= until_ns:
                    break
                pushes = watch.watchable()
                # From now on a push of any master ends the wait.
                watch.quorum = 1
                longest = POLL_NS if pushes else quorum.retry.pause_ns(pauses, quorum.random())
                watch.reopen(min(now + min(longest, self._ttl_ms * MILLISECOND // 4), until_ns))
                pauses = 0 if pushes else pauses + 1
                yield [watch]
                self.end_watch()
        finally:
            self.end_watch()
        yield Answer(not self.left)

    def _agree(self, what: str) -> Generator[Effect, None, None]:
        """Add the count of this use, if any, and make the masters agree on all counts."""
        quorum = self._quorum
        counts = [self.mine] if self.mine else []
        # A master that has forgotten may be slower than a quorum each time: its answer came after the last result.
        differ = self._last is not None and len(set(_answers(self._last))) > 1
        for last in (False, True):
            ballot: Ballot = yield from self._vote(what, scripts.LATCH_ADD, [self._ttl_ms, self._count, *counts])
            answers = _answers(ballot)
            if self._settled(answers) and not (differ and self.left):
                break
            # Most differences are counts on their way.
            if not last:
                yield Pause(quorum.clock.now() + quorum.retry.pause_ns(1, quorum.random()))
        else:
            found: Any = yield from self._fetch(answers)
            ballot = yield from self._vote(what, scripts.LATCH_ADD, [self._ttl_ms, self._count, *sorted(found)])
            answers = _answers(ballot)
            if not self._settled(answers):
                self.left = max(0, self._count - max([len(found)] + [_size(answer) for answer in answers]))
        self._last = ballot
        if scripts.OPEN in answers:
            if answers.count(scripts.OPEN) < quorum.majority:
                yield from self._vote(what, scripts.LATCH_OPEN, [self._ttl_ms])
            # Masters push no change that this client makes itself.
            self._quorum.queues.watches.notify(self._keys[1])

    def _settled(self, answers: list[int]) -> bool:
        if scripts.OPEN in answers:
            self.left = 0
        elif min(answers) == max(answers):
            self.left = max(0, self._count - _size(answers[0]))
        else:
            return False
        return True

    def _vote(self, what: str, script: Script, numbers: list[int]) -> Generator[Effect, None, Ballot]:
        ballot: Ballot = yield from asking(self._quorum, self._hold, what, self._call(script, numbers))
        return ballot

    def _call(self, script: Script, numbers: list[int]) -> Generator[Effect, None, Ballot]:
        while True:
            ballot = self._ballot(script, numbers)
            yield ballot
            if ballot.yes >= ballot.quorum and not self._quorum.doubts.cover(
                ballot.command.since_ns, ballot.command.key
            ):
                return ballot

    def _ballot(self, script: Script, numbers: list[int]) -> Ballot:
        quorum = self._quorum
        now = quorum.clock.now()
        lease = new_lease(b"%d" % self.mine, now, 0)
        words = [b"%d" % number for number in numbers]
        command = Scripted(self._hold.key, lease, script, self._keys, words, VOTE)
        if script is scripts.LATCH_ADD or script is scripts.LATCH_OPEN:
            command.ttl_ms = self._ttl_ms
        return quorum.ballot(command, now + self._wait_ns(now))

    def _fetch(self, answers: list[int]) -> Generator[Effect, None, set[int]]:
        """Return the counts that a quorum has together; only our own if it did not answer all questions."""
        counts: set[int] = {self.mine} if self.mine else set()
        most = max([_size(answer) for answer in answers])
        for first in range(1, most + 1, PART):
            last = min(first + PART, most + 1)
            part = [self._ballot(scripts.LATCH_AT, [place]) for place in range(first, last)]
            yield Send(part)
            yield part
            for ballot in part:
                if ballot.yes < ballot.quorum:
                    return {self.mine} if self.mine else set()
                counts.update([answer for answer in _answers(ballot) if answer > scripts.OPEN])
        return counts

    def _new_watch(self) -> Watch:
        quorum, key, now = self._quorum, self._keys[1], self._quorum.clock.now()
        watch = new_watch(quorum, Called(key), now + self._wait_ns(now))
        self._watch = watch
        self._quorum.queues.watches.add(key, watch)
        return watch

    def _wait_ns(self, now_ns: int) -> int:
        return self._quorum.wait_within(self._ttl_ms, self._until_ns - now_ns)

    def end_watch(self) -> None:
        """Stop watching; harmless when repeated. The caller of an interrupted wait repeats it."""
        if self._watch is not None:
            self._quorum.queues.watches.remove(self._keys[1], self._watch)
            # Last, so that an interrupted call can be repeated.
            self._watch = None


def _answers(ballot: Ballot) -> list[int]:
    # A copy: another thread may add an answer meanwhile.
    return list((ballot.answers or {}).values())


def _size(answer: int) -> int:
    return (answer - 2) // scripts.DIGESTS if answer != scripts.OPEN else 0
