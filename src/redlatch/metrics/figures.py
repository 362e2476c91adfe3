"""The exported figures. The tests of the dashboard, the alerts and `docs/metrics.md` also read this list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..loss import COUNTED
from ..stats import Histogram

Kind = Literal["counter", "gauge", "histogram"]

# The series of each reason starts at 0, so that its first loss is an increase.
REASONS = tuple([kind.value for kind in COUNTED])

# The error class of each outcome. "_OTHER" is the fallback of the semantic conventions.
ERRORS = {
    "busy": "LockBusy",
    "timeout": "LockTimeout",
    "unavailable": "QuorumUnavailable",
    "cancelled": "_OTHER",
}


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """One family of series.

    Attributes:
        prometheus: the name in Prometheus; for a counter without the ending "_total".
        parts: the attributes of `LockStats` or `MasterStats` that it shows, by the value of `label`.
        label: "" if there is only one part.
        bounds: the exported upper bounds of a histogram's buckets, in seconds.
    """

    prometheus: str
    otel: str
    kind: Kind
    unit: str
    meaning: str
    parts: Mapping[str, str]
    label: str = ""
    bounds: tuple[float, ...] = ()

    @property
    def series(self) -> str:
        return self.prometheus + "_total" if self.kind == "counter" else self.prometheus

    def values(self, stats: object) -> Iterator[tuple[str, Any]]:
        for part, attribute in self.parts.items():
            value = getattr(stats, attribute)
            if isinstance(value, Mapping):
                for key in dict.fromkeys([*REASONS, *value]):
                    yield key, value.get(key, 0)
            else:
                yield part, value


# The bounds of the buckets: 64 us to 67 s, 16 ms to 67 s, and 64 us to 1 s.
_FINE, _COARSE, _SHORT = (Histogram.BOUNDS[first : last + 1] for first, last in ((6, 26), (14, 26), (6, 20)))

LOCKS = (
    Figure(
        "redlatch_acquire_seconds",
        "redlatch.lock.acquire.duration",
        "histogram",
        "s",
        "How long the acquires took that won their lock.",
        {"": "acquire_time"},
        bounds=_FINE,
    ),
    Figure(
        "redlatch_acquire",
        "redlatch.lock.acquire.count",
        "counter",
        "{acquire}",
        "How many acquires have ended, by their outcome.",
        {
            "acquired": "acquired",
            "busy": "busy",
            "timeout": "timed_out",
            "unavailable": "unavailable",
            "cancelled": "cancelled",
        },
        "outcome",
    ),
    Figure(
        "redlatch_waiting",
        "redlatch.lock.pending_requests",
        "gauge",
        "{acquire}",
        "How many acquires are under way.",
        {"": "waiting"},
    ),
    Figure("redlatch_held", "redlatch.lock.held", "gauge", "{lock}", "How many locks are held.", {"": "held"}),
    Figure(
        "redlatch_hold_seconds",
        "redlatch.lock.hold.duration",
        "histogram",
        "s",
        "How long locks were held that were released, handed off or lost.",
        {"": "hold_time"},
        bounds=_FINE,
    ),
    Figure(
        "redlatch_lost",
        "redlatch.lock.lost",
        "counter",
        "{lock}",
        "How many locks were lost, by the reason.",
        {"": "lost"},
        "reason",
    ),
    Figure(
        "redlatch_renewal_slack_seconds",
        "redlatch.lock.renewal.slack",
        "histogram",
        "s",
        "How much of the validity was left when renewals came.",
        {"": "renewal_slack"},
        bounds=_COARSE,
    ),
    Figure(
        "redlatch_renewal",
        "redlatch.lock.renewal.count",
        "counter",
        "{renewal}",
        "How many extensions have ended, by their outcome.",
        {"renewed": "renewals", "failed": "renewals_failed"},
        "outcome",
    ),
    Figure(
        "redlatch_handoff",
        "redlatch.lock.handoff",
        "counter",
        "{handoff}",
        "How many releases handed the lease to the next waiter of the same client.",
        {"": "hand_offs"},
    ),
    Figure(
        "redlatch_split_vote",
        "redlatch.lock.split_vote",
        "counter",
        "{attempt}",
        "How many attempts got votes, but not of a quorum, because other masters refused.",
        {"": "split_votes"},
    ),
)

MASTERS = (
    Figure(
        "redlatch_master_up",
        "redlatch.master.up",
        "gauge",
        "1",
        "1 if the votes of the master count, else 0.",
        {"": "voting"},
    ),
    Figure(
        "redlatch_master_reply_seconds",
        "redlatch.master.reply.duration",
        "histogram",
        "s",
        "How long the answers of the master to the pulses of the guard took.",
        {"": "reply_time"},
        bounds=_SHORT,
    ),
    Figure(
        "redlatch_quarantine_seconds",
        "redlatch.master.quarantine.remaining",
        "gauge",
        "s",
        "For how much longer the guard keeps the master out.",
        {"": "kept_out"},
    ),
    Figure(
        "redlatch_quarantine",
        "redlatch.master.quarantine.count",
        "counter",
        "{quarantine}",
        "How often the guard has begun to keep the master out.",
        {"": "quarantines"},
    ),
)


def cumulated(figure: Figure, histogram: Histogram) -> list[int]:
    """Return the number of durations up to each exported bound, then the number of all."""
    below, counts = 0, []
    for bound, count in zip(Histogram.BOUNDS, histogram.counts, strict=True):
        below += count
        if bound in figure.bounds:
            counts.append(below)
    return [*counts, below]
