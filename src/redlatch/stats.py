"""The figures of a client, as `Client.stats` returns them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

# The last bucket has everything above 2**38 us, which are three days.
BUCKETS = 40


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of durations.

    Attributes:
        counts: the number of durations in each bucket. The upper bounds of the buckets are `BOUNDS`.
        sum: the sum of all durations, in seconds.
    """

    # The upper bounds in seconds: 1 us, 2 us, 4 us and so on, and infinity.
    BOUNDS: ClassVar[tuple[float, ...]] = (*[2**place / 1_000_000 for place in range(BUCKETS - 1)], math.inf)

    counts: tuple[int, ...] = (0,) * BUCKETS
    sum: float = 0.0

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean duration in seconds; 0.0 if there was none."""
        return self.sum / max(1, self.count)

    def quantile(self, share: float) -> float:
        """Return a bound in seconds that this share of the durations does not exceed; 0.0 if there was none.

        It is the upper bound of a bucket, so the duration itself may be as little as half of it.

        Args:
            share: from 0 to 1; 0.99 is the 99th percentile.
        """
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.BOUNDS, self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON: the buckets that are not empty have their upper bounds as keys."""
        buckets = {f"{bound:g}": count for bound, count in zip(self.BOUNDS, self.counts, strict=True) if count}
        return {"count": self.count, "sum": self.sum, "buckets": buckets}

    def __add__(self, other: Histogram) -> Histogram:
        counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        return Histogram(tuple(counts), self.sum + other.sum)


@dataclass(frozen=True, slots=True)
class LockStats:
    """The figures of locks. All but `held` and `waiting` count since the client was made.

    An `rlock` counts once, however often its thread or task has acquired it before the last release.

    Attributes:
        acquired: acquires that have won their lock.
        busy: acquires that were refused at once: another holder had the lock, or the queue of this client was full.
        timed_out: acquires whose timeout passed while another holder had the lock.
        unavailable: acquires that ended with QuorumUnavailable.
        cancelled: acquires that ended otherwise: by a cancelled task, Ctrl-C, a closed client, or a lock object in use.
        hand_offs: releases that handed the lease to the next waiter of this client.
        split_votes: attempts that got votes of some masters, but not of a quorum, because others refused.
        renewals: extensions that have succeeded, by `auto_renew` and by `extend`.
        renewals_failed: extensions that failed because no quorum answered; `auto_renew` tries again.
        lost: locks that were lost, by the value of their `LossKind`. A lock that is neither released nor renewed nor
            watched is not counted.
        held: locks that are held now.
        waiting: acquires that are under way now.
        acquire_time: the durations of the acquires that have won.
        hold_time: for how long locks were held that were released, handed off or lost.
        renewal_slack: the validity that was left when renewals succeeded. If it nears zero, locks will be lost.
    """

    acquired: int = 0
    busy: int = 0
    timed_out: int = 0
    unavailable: int = 0
    cancelled: int = 0
    hand_offs: int = 0
    split_votes: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    waiting: int = 0
    acquire_time: Histogram = Histogram()
    hold_time: Histogram = Histogram()
    renewal_slack: Histogram = Histogram()

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class MasterStats:
    """The figures of one master.

    Attributes:
        address: its address, without credentials.
        voting: whether its votes count now.
        kept_out: seconds for which the guard still keeps it out; 0.0 if it does not, or if that is not known yet.
        quarantines: the number of its quarantines.
        reply_time: the durations of its answers to the pulses of the guard, about one a second while locks are acquired
            or extended. Empty without a guard.
    """

    address: str
    voting: bool
    kept_out: float = 0.0
    quarantines: int = 0
    reply_time: Histogram = Histogram()

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Stats(LockStats):
    """The figures of a client: of all its locks as in `LockStats`, of each group of locks, and of each master.

    Attributes:
        groups: the figures of the locks of each group, by the name that was given as ``group=``. Locks without a group
            belong to the group "".
        masters: in the order in which they were given; none before the client connects and after its end.
    """

    groups: Mapping[str, LockStats] = field(default_factory=dict)
    masters: tuple[MasterStats, ...] = ()


def without_the_present(stats: Stats) -> Stats:
    # A forked child owns none of its parent's locks and acquires.
    groups = {name: replace(figures, held=0, waiting=0) for name, figures in stats.groups.items()}
    return replace(stats, held=0, waiting=0, groups=groups)


def sum_of(all_of_them: list[LockStats]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for each in fields(LockStats):
        values = [getattr(stats, each.name) for stats in all_of_them]
        if each.name == "lost":
            reasons = sorted({reason for value in values for reason in value})
            sums["lost"] = {reason: sum([value.get(reason, 0) for value in values]) for reason in reasons}
        elif values:
            sums[each.name] = sum(values[1:], start=values[0])
    return sums


def _plain(value: Any) -> Any:
    if isinstance(value, (Histogram, LockStats, MasterStats)):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value
