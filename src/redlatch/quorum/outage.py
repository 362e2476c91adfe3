"""An outage: the time for which no quorum votes, and how long the acquires of a client ride it out.

All acquires of a client share what one of them has found out. Otherwise the waiters of one name, which become the head
one after the other, would each ride an outage out anew, or each wait for the same silent masters. Compiled as
`redlatch._c.quorum.outage`, too (see `redlatch._c`).
"""

from __future__ import annotations

from ..votes.ballot import Ballot


class Outage:
    """What the attempts of a client have found out about the quorum.

    Any thread may call the methods. If two do so at once, an acquire may give up an attempt too early or too late.

    Args:
        longest_ns: for how long an acquire rides an outage out; 0 gives up at once.

    Attributes:
        since_ns: when the first attempt without a verdict began; 0 if the last attempt had a verdict.
        ballot: the ballot of the last attempt without a verdict; None if there is no outage.
        waited_ns: how long that attempt waited for its ballot.
    """

    __slots__ = ("_gave_up_before_ns", "_gave_up_ns", "_noted_ns", "ballot", "longest_ns", "since_ns", "waited_ns")

    def __init__(self, longest_ns: int) -> None:
        self.longest_ns = longest_ns
        self.since_ns = self.waited_ns = self._noted_ns = 0
        # When the last attempts of the last two acquires that gave up began; 0 if there was a verdict since.
        self._gave_up_ns = self._gave_up_before_ns = 0
        self.ballot: Ballot | None = None

    def note(self, ballot: Ballot, started_ns: int, now_ns: int) -> None:
        """Note that an attempt had no verdict.

        Args:
            ballot: its ballot.
            started_ns: when the attempt began. If no attempt was made for a while before that, it is another outage.
            now_ns: when its votes were counted.
        """
        if not self.since_ns or started_ns - self._noted_ns > self.longest_ns:
            self.since_ns = started_ns
        self._noted_ns = now_ns
        self.waited_ns = now_ns - started_ns
        self.ballot = ballot

    def give_up(self, started_ns: int) -> None:
        """Note that the acquire gives up whose attempt was noted last; that attempt began at `started_ns`."""
        # Attempts that were under way at the same time count once.
        if started_ns - self._gave_up_ns >= self.waited_ns:
            self._gave_up_before_ns = self._gave_up_ns
            self._gave_up_ns = started_ns

    def end(self) -> None:
        """Note that a quorum has voted."""
        self.since_ns = self._gave_up_ns = self._gave_up_before_ns = 0
        self.ballot = None

    def rides_until_ns(self, began_ns: int, until_ns: int) -> int:
        """Return until when an acquire rides the outage out; 0 if it gives up at once.

        Args:
            began_ns: when the acquire began. Time before that does not count.
            until_ns: the end of its timeout; 0 for a single attempt.
        """
        if not self.longest_ns:
            return 0
        return min(max(self.since_ns, began_ns) + self.longest_ns, until_ns)

    def known(self, began_ns: int, until_ns: int, now_ns: int) -> bool:
        """Return whether an acquire that has waited behind others gives up without an attempt of its own.

        With patience, it has ridden the outage out meanwhile. Without, two other acquires have tried since it began,
        one after the other, and have found no quorum.

        Args:
            began_ns, until_ns: as for `rides_until_ns`.
            now_ns: the time now. If no attempt was made for a while before that, the quorum may be back.
        """
        # Without patience, an attempt would take as long as the last one did.
        if not self.since_ns or now_ns - self._noted_ns > max(self.longest_ns, self.waited_ns):
            return False
        if self.longest_ns:
            return now_ns >= self.rides_until_ns(began_ns, until_ns)
        return began_ns <= self._gave_up_before_ns
