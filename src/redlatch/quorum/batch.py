# cython: annotation_typing=True
"""Many locks in one round: the calls of a single lock, for a list of holds, each with its own result."""

from __future__ import annotations

from collections.abc import Generator
from typing import NoReturn

from redlatch.errors import LockError, NotOwned, QuorumUnavailable

from ..votes.ballot import Ballot
from ..votes.commands import Command
from ..votes.units import SECOND, UNBOUNDED
from .effects import Effect, Pause, Send, Steps
from .hold import Hold, count_acquires
from .outcome import end_release, granted, is_final, no_quorum
from .policy import Outage
from .quorum import Quorum
from .waiting.contention import wait_for_change

# How many locks are under way at once: well below the number of replies that a master may owe.
BATCH = 1024

# So many commands leave together: the masters work on them while the client makes the next ones.
PART = 256

# A release that has no verdict yet: the place of its hold, the hold, whether it is late, and its command if it was sent
# before.
Going = tuple[int, Hold, bool, Command | None]


def acquire_many(quorum: Quorum, holds: list[Hold], ticket: object, ttl_ms: int) -> Steps:
    """Make one attempt on each lock, and a second one if connections broke. Each hold ends HELD or FREE.

    If the iterator is interrupted or raises, the caller abandons the holds with this ticket.

    Raises:
        QuorumUnavailable: two attempts in a row on one lock had no verdict, because too many masters failed.
    """
    steps = _attempt_on_each(quorum, holds, ticket, ttl_ms, UNBOUNDED, True)
    return CountedSteps(steps, quorum, holds, 0)  # type: ignore[return-value]


def _attempt_on_each(
    quorum: Quorum,
    holds: list[Hold],
    ticket: object,
    ttl_ms: int,
    left_ns: int,
    notifies: bool,
) -> Steps:
    # While retrying, waiters are not notified of an undo: two multi-locks would wake each other endlessly.
    hold: Hold
    for first in range(0, len(holds), BATCH):
        trying: list[Hold] = holds[first : first + BATCH]
        for hold in trying:
            hold.claim(ticket)
        broken = yield from _try_each(quorum, trying, ttl_ms, left_ns, notifies, 1)
        if broken:
            yield from _try_each(quorum, broken, ttl_ms, left_ns, notifies, 2)


def acquire_all(quorum: Quorum, holds: list[Hold], ticket: object, ttl_ms: int, give_up_ns: int | None) -> Steps:
    """Try until all locks are won or the time is over. Hold no lock while waiting for the others.

    Raises:
        QuorumUnavailable: too many masters failed, for longer than the client has patience.
    """
    until = UNBOUNDED if give_up_ns is None else give_up_ns
    steps = _win_all(quorum, holds, ticket, ttl_ms, until)
    return CountedSteps(steps, quorum, holds, until)  # type: ignore[return-value]


def _win_all(quorum: Quorum, holds: list[Hold], ticket: object, ttl_ms: int, until: int) -> Steps:
    hold: Hold
    called = quorum.clock.now()
    rides_until = attempts = 0
    while True:
        began = quorum.clock.now()
        rides_until = yield from _try_all(quorum, holds, ticket, ttl_ms, called, until, rides_until)
        now = quorum.clock.now()
        refused: list[Hold] = [hold for hold in holds if not hold.held(now)]
        if not refused:
            return
        won: list[Hold] = [hold for hold in holds if hold.is_held()]
        if won:
            yield Send([quorum.ballot(hold.undoing_attempt()) for hold in won])
        let_go(quorum, won)
        if rides_until:
            pause_until = now + quorum.retry.back_off_ns(quorum.random())
            yield Pause(min(pause_until, rides_until) if rides_until > now else pause_until)
            continue
        if now >= until:
            for hold in refused:
                quorum.queues.watches.notify(hold.key)
            return
        wait = quorum.wait_ns(ttl_ms)
        waited = yield from wait_for_change(quorum, refused[0].key, now - began, wait, attempts, until)
        attempts = 0 if waited else attempts + 1


def _try_all(
    quorum: Quorum,
    holds: list[Hold],
    ticket: object,
    ttl_ms: int,
    called_ns: int,
    until_ns: int,
    rides_until_ns: int,
) -> Generator[Effect, None, int]:
    # The result is until when to ride out a lost quorum, or 0.
    began = quorum.clock.now()
    left = (rides_until_ns or until_ns) - began if until_ns else UNBOUNDED
    try:
        yield from _attempt_on_each(quorum, holds, ticket, ttl_ms, left, False)
        return 0
    except QuorumUnavailable as error:
        now = quorum.clock.now()
        rides_until_ns = rides_until_ns or Outage(began, error).rides_until_ns(quorum.patience_ns, called_ns, until_ns)
        if now >= max(rides_until_ns, min(quorum.moving_ns, until_ns)):
            error.elapsed = (now - called_ns) / SECOND
            raise
    free_lost(holds, ticket)
    return rides_until_ns


def let_go(quorum: Quorum, holds: list[Hold]) -> None:
    for hold in holds:
        hold.free()
        quorum.queues.watches.notify(hold.key)


def free_lost(holds: list[Hold], ticket: object) -> None:
    for hold in holds:
        if hold.ticket is ticket and not hold.is_held():
            hold.free()


def _try_each(
    quorum: Quorum, holds: list[Hold], ttl_ms: int, left_ns: int, notifies: bool, number: int
) -> Generator[Effect, None, list[Hold]]:
    """Make attempt number `number` on each hold; return the holds to try again because connections broke."""
    hold: Hold
    asked: list[Ballot] = []
    # Read before the first byte leaves.
    started = quorum.clock.now()
    deadline = started + quorum.validity_ns(ttl_ms)
    until = min(deadline, started + quorum.wait_within(ttl_ms, left_ns))
    for begin in range(0, len(holds), PART):
        some: list[Hold] = holds[begin : begin + PART]
        part: list[Ballot] = [hold.attempt(quorum, ttl_ms, started, deadline, until) for hold in some]
        asked += part
        # Before a byte leaves: a client that closes finds its holds here.
        quorum.queues.unqueued.note(some, started)
        yield Send(part)
    yield asked
    ballot: Ballot
    won: list[bool] = [ballot.yes >= ballot.quorum for ballot in asked]
    # Read the clock after the last vote that counts (see `granted`).
    now = quorum.clock.now()
    undone: list[Ballot] = []
    # Keys that some masters may have had for us.
    stirred: list[bytes] = []
    broken: list[Hold] = []
    lost: list[Hold] = []
    failure: QuorumUnavailable | None = None
    for place in range(len(holds)):
        hold, ballot = holds[place], asked[place]
        if granted(quorum, hold, won[place], deadline, now):
            hold.won_ns = now
            hold.keep(now - started)
            continue
        hold.figures_in(quorum).count_split(ballot)
        undone.append(quorum.ballot(hold.undoing_attempt()))
        if ballot.no < ballot.size:
            stirred.append(hold.key)
        if ballot.unavailable():
            if not is_final(ballot, number):
                broken.append(hold)
                continue
            failure = failure or no_quorum("acquire", quorum, hold, ballot, now - started)
        lost.append(hold)
    if undone:
        yield Send(undone)
    # The claims end last: after an interrupt before this, the caller undoes the attempts that have one.
    for hold in lost:
        hold.free()
    if notifies:
        for key in stirred:
            quorum.queues.watches.notify(key)
    if failure is not None:
        raise failure
    return broken


def tickets(holds: list[Hold]) -> list[object]:
    return [hold.ticket for hold in holds]


def release_many(quorum: Quorum, holds: list[Hold], wait_ns: int, errors: dict[int, LockError]) -> Steps:
    """Release each lock as `release` does; put errors into a dict by place in `holds`."""
    hold: Hold
    for first in range(0, len(holds), BATCH):
        started = quorum.clock.now()
        until = started + wait_ns
        going: list[Going] = []
        for place in range(first, min(first + BATCH, len(holds))):
            hold = holds[place]
            try:
                late, resent = hold.begin_release(started)
                going.append((place, hold, late, hold.unanswered if resent else None))
            except NotOwned as error:
                errors[place] = error
        while going:
            asked: list[Ballot] = []
            for begin in range(0, len(going), PART):
                part: list[Ballot] = []
                for _, hold, _, sent in going[begin : begin + PART]:
                    command = sent or hold.releasing()
                    part.append(quorum.ballot(command, until))
                asked += part
                yield Send(part)
            if quorum.queues.heads or quorum.queues.watches.by_key:
                for _, hold, _, _ in going:
                    quorum.queues.leave(hold, started, False)
            yield asked
            going = _end_releases(quorum, going, asked, started, errors)


def _end_releases(
    quorum: Quorum, going: list[Going], asked: list[Ballot], started_ns: int, errors: dict[int, LockError]
) -> list[Going]:
    hold: Hold
    ballot: Ballot
    broken: list[Going] = []
    for number in range(len(going)):
        ballot = asked[number]
        place, hold, late, sent = going[number]
        try:
            if not end_release(quorum, hold, ballot, late, sent is not None, started_ns):
                broken.append((place, hold, late, ballot.command))
        except LockError as error:
            errors[place] = error
    return broken


def together(many: list[Steps], errors: dict[int, LockError]) -> Steps:
    """Run many generators at once; put errors into a dict by place in `many`."""
    for first in range(0, len(many), BATCH):
        going = list(range(first, min(first + BATCH, len(many))))
        while going:
            still: list[int] = []
            asked: list[Ballot] = []
            sent: list[Ballot] = []
            until = 0
            for index in going:
                try:
                    effect = next(many[index], None)
                except LockError as error:
                    errors[index] = error
                    continue
                if effect is not None:
                    still.append(index)
                    # A generator continues only once its ballots are sent: its next step may wake waiters.
                    if isinstance(effect, Send):
                        sent += effect.ballots
                    elif isinstance(effect, Ballot):
                        asked.append(effect)
                    elif isinstance(effect, Pause):
                        until = max(until, effect.until_ns)
            if sent or asked:
                yield Send(sent + asked)
            if asked:
                yield asked
            if until:
                yield Pause(until)
            going = still


def _count_failure(quorum: Quorum, holds: list[Hold], error: BaseException) -> None:
    for hold in holds:
        figures = hold.figures_in(quorum)
        if isinstance(error, QuorumUnavailable):
            figures.unavailable += 1
        else:
            figures.cancelled += 1


class CountedSteps:
    """The steps of a batch. They count each acquire once, even if the batch is interrupted or never begins."""

    __slots__ = ("_began_ns", "_counted", "_holds", "_quorum", "_steps", "_until_ns")

    def __init__(self, steps: Steps, quorum: Quorum, holds: list[Hold], until_ns: int) -> None:
        self._steps = steps
        self._quorum = quorum
        self._holds = holds
        self._until_ns = until_ns
        self._began_ns = 0
        self._counted = False

    def __iter__(self) -> CountedSteps:
        return self

    def __next__(self) -> Effect:
        if not self._began_ns:
            self._began_ns = self._quorum.clock.now()
        try:
            return next(self._steps)
        except StopIteration:
            self._counted = True
            count_acquires(self._quorum, self._holds, self._began_ns, self._until_ns <= self._began_ns)
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        if not self._counted:
            self._counted = True
            _count_failure(self._quorum, self._holds, error)

    def close(self) -> None:
        self._steps.close()
        self._fail(GeneratorExit())

    def throw(self, error: BaseException) -> NoReturn:
        self.close()
        raise error
