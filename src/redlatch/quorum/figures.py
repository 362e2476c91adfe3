"""The figures of a running client: counts of acquires and of held locks. `Client.stats` reads them.

In a build of Python without the GIL, two threads that count at once may count once.
"""

from __future__ import annotations

from redlatch.stats import LockStats

from ..votes.ballot import Ballot
from ..votes.units import Durations

# The locks of all further groups count as those of OTHERS: group names must not fill the memory.
MOST_GROUPS, OTHERS = 100, "(others)"


class Figures:
    """The figures of one group of locks (see `redlatch.stats.LockStats`)."""

    __slots__ = (
        "acquire_time",
        "acquired",
        "busy",
        "cancelled",
        "hand_offs",
        "hold_time",
        "lost",
        "renewal_slack",
        "renewals",
        "renewals_failed",
        "split_votes",
        "timed_out",
        "unavailable",
    )

    def __init__(self) -> None:
        self.acquired = self.busy = self.timed_out = self.unavailable = self.cancelled = 0
        self.hand_offs = self.split_votes = self.renewals = self.renewals_failed = 0
        self.lost: dict[str, int] = {}
        self.acquire_time = Durations()
        self.hold_time = Durations()
        self.renewal_slack = Durations()

    def win(self, waited_ns: int) -> None:
        self.acquired = self.acquired + 1
        self.acquire_time.count(waited_ns)

    def refuse(self, at_once: bool) -> None:
        """Count a refused acquire; `at_once` means that it had no time to wait."""
        if at_once:
            self.busy = self.busy + 1
        else:
            self.timed_out = self.timed_out + 1

    def count_split(self, ballot: Ballot) -> None:
        if ballot.yes > 0 and ballot.no > 0:
            self.split_votes = self.split_votes + 1

    def renew(self, left_ns: int) -> None:
        """Count an extension that came when this much of the validity was left."""
        self.renewals = self.renewals + 1
        self.renewal_slack.count(left_ns)

    def lose(self, reason: str) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1

    def stats(self, held: int, waiting: int) -> LockStats:
        return LockStats(
            acquired=self.acquired,
            busy=self.busy,
            timed_out=self.timed_out,
            unavailable=self.unavailable,
            cancelled=self.cancelled,
            hand_offs=self.hand_offs,
            split_votes=self.split_votes,
            renewals=self.renewals,
            renewals_failed=self.renewals_failed,
            lost=dict(self.lost),
            held=held,
            waiting=waiting,
            acquire_time=self.acquire_time.histogram(),
            hold_time=self.hold_time.histogram(),
            renewal_slack=self.renewal_slack.histogram(),
        )


class Groups:
    """The figures of all groups of locks of one client; locks without a group are in ""."""

    def __init__(self) -> None:
        self.by_name: dict[str, Figures] = {"": Figures()}

    def name_of(self, figures: Figures | None) -> str:
        return next((name for name, its in list(self.by_name.items()) if its is figures), "")

    def named(self, name: str) -> Figures:
        figures = self.by_name.get(name)
        if figures is None:
            if len(self.by_name) > MOST_GROUPS:
                name = OTHERS
            figures = self.by_name.setdefault(name, Figures())
        return figures
