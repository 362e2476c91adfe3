"""A master's clock compared with ours. Our times are nanoseconds since boot; a server's, microseconds since 1970."""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple

from redlatch.votes.units import MILLISECOND, SECOND, quorum_of

# A larger difference than the clock's rate explains is a jump. Some servers count whole milliseconds.
JUMP_NS = 10 * MILLISECOND

# A clock stands still if it advances by less than a tenth of a time longer than this. Servers extrapolate a little
# between two readings.
STILL_NS = 100 * MILLISECOND

# Bounds on the error of a clock's rate, whatever the drift factor is.
MIN_RATE, MAX_RATE = 0.001, 0.01

# The other masters' clocks have this time to show whose clock has jumped.
CONFIRM_NS = SECOND


class ClockState(Flag):
    UNJUDGED = auto()
    STEADY = auto()
    STANDS_STILL = auto()
    # A quorum has jumped alike, and no clock agrees with ours.
    OURS_STOOD_STILL = auto()
    # Another master's clock agrees with ours.
    FORWARD = auto()
    # The other masters were not read since.
    FORWARD_UNHEARD = auto()
    FORWARD_UNCLEAR = auto()

    ANY = UNJUDGED | STEADY | STANDS_STILL | OURS_STOOD_STILL | FORWARD | FORWARD_UNHEARD | FORWARD_UNCLEAR


class Leap(NamedTuple):
    """A jump forward of a master's clock; `at_ns` is our time before the reading that showed it.

    Args:
        judged: whether it was decided whose clock has jumped.
        doubted: the identity of the marker that must be replaced because of the jump; or b"".
    """

    by_ns: int
    at_ns: int
    judged: bool = False
    doubted: bytes = b""

    def described(self) -> str:
        return f"its clock was set forward by {self.by_ns / SECOND:.3f} s"


def judge_leap(leap: Leap, others: list[Leap | None], size: int, now_ns: int) -> ClockState:
    """Find out whose clock has jumped, by the last leaps of the masters that were read after this one."""
    alike = [
        other
        for other in others
        if other is not None
        # Each is known to JUMP_NS.
        and abs(other.by_ns - leap.by_ns) < 2 * JUMP_NS
        and abs(other.at_ns - leap.at_ns) < CONFIRM_NS
    ]
    if any([other is None or leap.at_ns - other.at_ns > 2 * CONFIRM_NS for other in others]):
        return ClockState.FORWARD
    if alike and len(alike) + 1 >= quorum_of(size):
        return ClockState.OURS_STOOD_STILL
    if size > 1 and now_ns - leap.at_ns < CONFIRM_NS:
        return ClockState.FORWARD_UNHEARD
    return ClockState.FORWARD_UNCLEAR


class Offset:
    """The offset of a master's clock from ours, as an interval that is as narrow as the readings allow (as in NTP)."""

    def __init__(self, drift_factor: float) -> None:
        self._rate = min(max(drift_factor, MIN_RATE), MAX_RATE)
        self._low = self._high = 0
        self.at_ns = 0
        self._server_us = 0

    def note(self, sent_ns: int, came_ns: int, server_us: int) -> int:
        """Record a reading taken between two moments; return the jump in ns."""
        low = server_us * 1000 - came_ns
        high = server_us * 1000 - sent_ns + MILLISECOND
        jump = 0
        if self.at_ns:
            slack = int((came_ns - self.at_ns) * self._rate)
            self._low, self._high = self._low - slack, self._high + slack
            if low > self._high + JUMP_NS:
                jump = low - self._high
            elif high < self._low - JUMP_NS:
                jump = high - self._low
            elif max(low, self._low) < min(high, self._high):
                low, high = max(low, self._low), min(high, self._high)
        self._low, self._high, self.at_ns, self._server_us = low, high, came_ns, server_us
        return jump

    def server_us(self, now_ns: int) -> int:
        """Return the least that the master's clock shows now, in microseconds since 1970."""
        return (now_ns + self._low) // 1000

    def stands_still(self, sent_ns: int, server_us: int) -> bool:
        """Return True if this reading equals the last one, though time has passed."""
        passed_ns, gone_ns = sent_ns - self.at_ns, (server_us - self._server_us) * 1000
        return bool(self.at_ns) and passed_ns > STILL_NS and -JUMP_NS < gone_ns < passed_ns // 10
