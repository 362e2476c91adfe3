"""What the generators of the algorithm yield: what a driver is to do for them.

  Ballot           send its command to every master; done when it is decided, or its time is over
  Tell(ballots)    send their commands to every master; done at once
  [Ballot, ...]    of ballots that were told: done when each is decided, or its time is over
  Turn             wait until it is called, or its time is over
  Pause(until_ns)  wait
  Answer(value)    return the value; the last effect of an inquiry

A generator goes on when its effect is done. It does no I/O, reads no clock of its own and draws no random number: those
come in with the Policy. Compiled as `redlatch._c.protocol.effects`, too (see `redlatch._c`).
"""

from __future__ import annotations

from collections.abc import Generator

from .ballot import Ballot
from .waiting import Turn


class Tell:
    """Put `ballots` to the vote and wait for nothing."""

    __slots__ = ("ballots",)

    def __init__(self, ballots: list[Ballot]) -> None:
        self.ballots = ballots


class Pause:
    """Wait until `until_ns`."""

    __slots__ = ("until_ns",)

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns


class Answer:
    """Return `value` to whoever asked."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


Effect = Ballot | list[Ballot] | Tell | Turn | Pause | Answer
Steps = Generator[Effect, None, None]
