"""The plain lock."""

from __future__ import annotations

from collections.abc import Generator

from ..attempt import Attempt
from ..effects import Effect
from ..waiting.contention import wait_for_change
from .kind import PLAIN_ONES, Kind


class Plain(Kind):
    """One key and one holder. After a refused attempt, one master is asked first (see `FirstMaster`)."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.hand_off_group = PLAIN_ONES
        self.asks_one_first = True
        self.waits_for_all = self.signs_off = False

    def wait(self, attempt: Attempt) -> Generator[Effect, None, bool]:
        round_ns = attempt.now_ns - attempt.started_ns
        wait_ns, pauses, until_ns = attempt.wait_ns, attempt.pauses, attempt.until_ns
        return wait_for_change(attempt.quorum, attempt.hold.key, round_ns, wait_ns, pauses, until_ns)


PLAIN = Plain()
