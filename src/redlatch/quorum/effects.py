"""The effects: the iterators of the algorithm return them, and the driver performs them.

Ballot           send its command to every master, and wait until it is decided or its time is over
Send(ballots)    send their commands to every master; do not wait
[Ballot, ...]    wait until each of these ballots, which were sent before, is decided or its time is over
QueueEntry       wait until it is called or its time is over
Pause(until_ns)  wait
Answer(value)    return the value; the last effect of an iterator that answers a question

An iterator does no I/O, and takes the time and random numbers from the `Quorum`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..votes.ballot import Ballot
from .waiting.queues import QueueEntry


class Send:
    __slots__ = ("ballots",)

    def __init__(self, ballots: list[Ballot]) -> None:
        self.ballots = ballots


class Pause:
    __slots__ = ("until_ns",)

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns


class Answer:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Call:
    """The steps of an acquire or a release, which a driver must recover if they fail or are interrupted."""

    __slots__ = ()

    def end(self) -> Any:
        """Return the answer, after the last step. The driver recovers the call if this raises."""
        return None

    def recover(self, driver: Any, error: BaseException) -> None:
        """Leave nothing behind, after the steps were closed. If interrupted, this may be repeated."""
        raise NotImplementedError


Effect = Ballot | list[Ballot] | Send | QueueEntry | Pause | Answer
Steps = Generator[Effect, None, None]


def _nothing() -> Steps:
    yield from ()


# The steps of a call that is over. They end here: of two threads that begin a generator at once, one gets a ValueError.
ENDED = _nothing()
next(ENDED, None)
