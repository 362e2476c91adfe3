"""Count leases and acquires in the figures: each ends once, even an acquire that never begins."""

from __future__ import annotations

from typing import NoReturn

from redlatch.errors import QuorumUnavailable
from redlatch.loss import LOST_BEFORE, Loss

from ..votes.ballot import Ballot
from .claim import HELD
from .effects import Effect, Steps
from .figures import Figures
from .hold import Hold
from .quorum import Quorum


def figures_of(quorum: Quorum, hold: Hold) -> Figures:
    return quorum.figures if hold.figures is None else hold.figures


def count_end(quorum: Quorum, hold: Hold, ended_ns: int, lost: Loss | None = None) -> None:
    """Count the end of a lease, once, and its loss, before another acquire can claim the hold."""
    # No call comes between the two lines: if two threads find a loss at the same time, one of them counts it.
    won_ns = hold.won_ns
    hold.won_ns = 0
    if won_ns:
        figures = figures_of(quorum, hold)
        figures.hold_time.count(ended_ns - won_ns)
        if lost:
            figures.lose(lost.kind.value)


def count_lost_release(quorum: Quorum, hold: Hold) -> None:
    """Count the loss of a lease whose release was counted before its answers came (`release(wait=False)`)."""
    figures_of(quorum, hold).lose(LOST_BEFORE.kind.value)


def count_split(quorum: Quorum, hold: Hold, ballot: Ballot) -> None:
    if ballot.yes > 0 and ballot.no > 0:
        figures = figures_of(quorum, hold)
        figures.split_votes = figures.split_votes + 1


def count_acquires(quorum: Quorum, holds: list[Hold], began_ns: int, at_once: bool) -> None:
    """Count each acquire of a batch; `at_once` means that it had no time to wait."""
    for hold in holds:
        figures = figures_of(quorum, hold)
        if hold.state == HELD:
            figures.win(hold.won_ns - began_ns)
        else:
            figures.refuse(at_once)


def count_failure(quorum: Quorum, holds: list[Hold], error: BaseException) -> None:
    for hold in holds:
        figures = figures_of(quorum, hold)
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
            count_failure(self._quorum, self._holds, error)

    def close(self) -> None:
        self._steps.close()
        self._fail(GeneratorExit())

    def throw(self, error: BaseException) -> NoReturn:
        self.close()
        raise error
