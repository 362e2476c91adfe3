"""Renewal and loss of held locks: the part that is the same for threads and asyncio."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from redlatch.errors import LockError
from redlatch.quorum.calls import Calls
from redlatch.quorum.effects import Steps
from redlatch.quorum.outcome import proves_nothing
from redlatch.quorum.policy import Doubts
from redlatch.quorum.upkeep import Term
from redlatch.quorum.upkeep_schedule import LostLock, UpkeepSchedule
from redlatch.votes.ballot import Ballot

logger = logging.getLogger("redlatch")

# At most this many threads of a client report losses at the same time.
MOST_REPORTS = 16


class Renewal:
    """One renewal of several locks. A driver runs `steps`, notes how they ended, and calls `conclude` in any case.

    The thread that attends makes it, because it changes the terms.
    """

    def __init__(self, schedule: UpkeepSchedule, quorum: Calls, terms: list[Term]) -> None:
        self._schedule = schedule
        self._quorum = quorum
        self._terms = terms
        for term in terms:
            term.renewing = True
        now_ns = quorum.clock.now()
        self._wanted = [(term.hold, term.renewal_ttl_ms(now_ns), term.token) for term in terms]
        self._errors: dict[int, LockError] = {}
        self._error: LockError | None = LockError("the renewal failed")

    def steps(self) -> Steps:
        return self._quorum.extend_all(self._wanted, self._errors)

    def succeed(self) -> None:
        self._error = None

    def fail(self, failure: Exception) -> None:
        """Record why the steps failed. They are tried again until the deadline."""
        if isinstance(failure, LockError):
            self._error = failure
            return
        logger.error("a renewal failed; it is tried again until the lock runs out", exc_info=failure)
        self._error = LockError(f"unexpected {type(failure).__name__}; the log has the traceback")

    def conclude(self) -> None:
        self._schedule.conclude(self._terms, self._errors, self._error)


class Question:
    def __init__(self, schedule: UpkeepSchedule, quorum: Calls, terms: list[Term]) -> None:
        self._schedule = schedule
        self._quorum = quorum
        self._terms = terms
        now_ns = quorum.clock.now()
        for term in terms:
            if term.watch is not None:
                term.watch.begin(now_ns)

    def steps(self) -> Steps:
        return self._quorum.ask_about_keys(self._terms)

    def succeed(self) -> None:
        """Do nothing: the ballots have the answers."""

    def fail(self, failure: Exception) -> None:
        if not isinstance(failure, LockError):
            logger.error("a question about held locks failed; it is repeated later", exc_info=failure)

    def conclude(self) -> None:
        self._schedule.keys.conclude(self._terms)


def work_of(schedule: UpkeepSchedule, quorum: Calls, terms: list[Term]) -> list[Renewal | Question]:
    work: list[Renewal | Question] = [Renewal(schedule, quorum, terms)] if terms else []
    asked = schedule.keys.take_due()
    if asked:
        work.append(Question(schedule, quorum, asked))
    return work


class ReportThreads:
    """Threads that report lost locks. Each reports one at a time, because an `on_lost` may take long.

    Args:
        aside: runs a function in a thread of its own; returns False if no thread can start.
    """

    def __init__(self, lost: deque[LostLock], aside: Callable[[Callable[[], None]], bool]) -> None:
        self._lost = lost
        self._aside = aside
        # One entry for each thread that may begin.
        self._idle = [None] * MOST_REPORTS

    def start(self) -> bool:
        """Return False if no thread can start and none is reporting."""
        try:
            self._idle.pop()
        except IndexError:
            return True
        if self._aside(self._run):
            return True
        self._idle.append(None)
        return len(self._idle) < MOST_REPORTS

    def report(self) -> None:
        """Report losses in this thread until none is left."""
        _run_all(self._taken())

    def _run(self) -> None:
        try:
            self.report()
        finally:
            self._idle.append(None)

    def _taken(self) -> Iterator[Callable[[], None]]:
        while True:
            if len(self._lost) > 1:
                self.start()
            try:
                lock, term, reason = self._lost.popleft()
            except IndexError:
                return
            yield partial(lock._report_loss, reason, term)


def report_losses(lost: deque[LostLock]) -> None:
    """Report lost locks, and take each off the queue after its report: an interrupt loses none. For one thread.

    Raises:
        BaseException: the first one, such as SystemExit, that an `on_lost` raised; after all losses were reported.
    """
    _run_all(_reported(lost))


def report_lost_releases(ballots: list[Ballot], doubts: Doubts, now_ns: int) -> None:
    _run_all(lost_releases(ballots, doubts, now_ns))


def _reported(lost: deque[LostLock]) -> Iterator[Callable[[], None]]:
    while lost:
        lock, term, reason = lost[0]
        # After an interrupt a loss may still be unreported, or stand here twice.
        if term.reported:
            lost.popleft()
        else:
            yield partial(lock._report_loss, reason, term)


def lost_releases(ballots: list[Ballot], doubts: Doubts, now_ns: int) -> Iterator[Callable[[], None]]:
    """Take the refused releases off the list, and yield a report for each whose lock had been lost before it."""
    # Not `while ballots`: another thread may take the last one.
    while True:
        try:
            ballot = ballots.pop()
        except IndexError:
            return
        while proves_nothing(doubts, ballot, ballot.released_lease, now_ns):
            if not ballot.missing():
                break
            # The votes that are missing may prove the loss. The engine then puts the ballot on the list again, unless
            # it has counted them just now.
            ballot.reopen(0)
            if not ballot.decided:
                break
        else:
            yield ballot.released_lock._report_loss


def _run_all(reports: Iterable[Callable[[], None]]) -> None:
    failure: BaseException | None = None
    for report in reports:
        try:
            report()
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure
