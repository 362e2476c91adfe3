"""An outage of one name: the attempts on its lock find no quorum, and how long acquires ride that out.

The waiters of a name become its head one after the other, and share what the earlier heads have found. Otherwise each
would ride the outage out from its start, or wait for the same silent masters. Other names are not affected: the user
may lack the right to one key only.
"""

from __future__ import annotations

from redlatch.errors import QuorumUnavailable


class Outage:
    """Too many masters failed in each of several attempts in a row on one name.

    Args:
        since_ns: when the first of these attempts began.
        error: what the last of them would raise. It is never raised itself, because several waiters may repeat it.
    """

    __slots__ = ("_gave_up_before_ns", "_gave_up_ns", "error", "since_ns")

    def __init__(self, since_ns: int, error: QuorumUnavailable) -> None:
        self.since_ns = since_ns
        self.error = error
        # The start of the last attempts of the last two acquires that gave up.
        self._gave_up_ns = self._gave_up_before_ns = 0

    def give_up(self, started_ns: int) -> None:
        self._gave_up_before_ns = self._gave_up_ns
        self._gave_up_ns = started_ns

    def rides_until_ns(self, patience_ns: int, began_ns: int, until_ns: int) -> int:
        """Return until when an acquire rides the outage out; 0 if it gives up at once.

        Args:
            began_ns: when the acquire began. Time before that does not count.
            until_ns: the end of its timeout; 0 for a single attempt.
        """
        if not patience_ns:
            return 0
        return min(max(self.since_ns, began_ns) + patience_ns, until_ns)

    def known(self, patience_ns: int, began_ns: int, until_ns: int, now_ns: int) -> bool:
        """Return whether an acquire that has waited behind others gives up without an attempt of its own.

        With patience, it has ridden the outage out while it waited. Without, two heads before it have begun their last
        attempts since this acquire began, and have found no quorum.
        """
        if patience_ns:
            return now_ns >= self.rides_until_ns(patience_ns, began_ns, until_ns)
        return began_ns <= self._gave_up_before_ns
