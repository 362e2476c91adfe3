"""The figures of clients for OpenTelemetry.

The counters and gauges are observable instruments. The API has no observable histogram, so the durations that were
counted since the last collection are recorded one by one when the next one begins. Each is recorded as a value in its
bucket, so that the buckets are exact, and the sum nearly so.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
    from opentelemetry.metrics import Histogram as Recorder
except ImportError as error:
    raise ImportError(
        f"redlatch.metrics.otel needs opentelemetry-api: pip install 'redlatch[otel]' ({error})"
    ) from error

from .. import __version__
from ..stats import BUCKETS, Histogram
from .figures import ERRORS, LOCKS, MASTERS, Figure
from .totals import Export, Measured, Sums, Totals, new_lock

GROUP, OUTCOME, REASON, MASTER = (
    "redlatch.lock.group",
    "redlatch.lock.outcome",
    "redlatch.lock.reason",
    "redlatch.master.address",
)

# To record a duration takes about 7 us. With more of them in one collection, each stands for several.
MOST_RECORDS = 20_000

Attributes = Mapping[str, str]

# Not the lock of `export`: the SDK holds its own lock while it observes, and takes it to make an instrument.
_sums_lock = new_lock()


class Meters:
    """The instruments of one meter provider, for all clients that it exports."""

    def __init__(self, meter: Meter) -> None:
        self.totals = Totals(_sums_lock)
        self._recorded = Recorded(meter)
        for figure in (*LOCKS, *MASTERS):
            if figure.kind == "counter":
                create: Callable[..., object] = meter.create_observable_counter
            elif figure.unit in ("s", "1"):
                create = meter.create_observable_gauge
            else:
                create = meter.create_observable_up_down_counter
            if figure.kind != "histogram":
                create(figure.otel, [partial(self._observe, figure)], figure.unit, figure.meaning)

    def _observe(self, figure: Figure, _: CallbackOptions) -> Iterable[Observation]:
        """Observe the series of one instrument."""
        sums = self.totals.read()
        if figure is _FIRST:
            self._recorded.catch_up(sums)
        return [
            Observation(value if isinstance(value, float) else int(value), attributes | _of_part(figure, part))
            for attributes, stats in _series(figure, sums)
            for part, value in figure.values(stats)
        ]


# The instrument whose observation comes with the records of the histograms.
_FIRST = next(figure for figure in LOCKS if figure.kind != "histogram")


def _series(figure: Figure, sums: Sums) -> Iterator[tuple[dict[str, str], object]]:
    """Yield the attributes and the figures of each group or master that a figure has."""
    if figure in LOCKS:
        for group, stats in sums.groups.items():
            yield {GROUP: group} if group else {}, stats
    else:
        for address, master in sums.masters.items():
            yield {MASTER: address}, master


def _of_part(figure: Figure, part: str) -> dict[str, str]:
    """Return the attributes of an outcome or a reason."""
    if not figure.label:
        return {}
    if figure.label == "reason":
        return {REASON: part}
    return {OUTCOME: part, "error.type": ERRORS[part]} if part in ERRORS else {OUTCOME: part}


class Recorded:
    """The histograms, and what of the durations they have already."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.Lock()
        self._recorders: dict[Figure, Recorder] = {
            figure: meter.create_histogram(
                figure.otel, figure.unit, figure.meaning, explicit_bucket_boundaries_advisory=figure.bounds
            )
            for figure in (*LOCKS, *MASTERS)
            if figure.kind == "histogram"
        }
        self._had: dict[tuple[Figure, frozenset[tuple[str, str]]], Histogram] = {}

    def catch_up(self, sums: Sums) -> None:
        """Record the durations that are new. Several readers may collect at a time, and each duration counts once."""
        with self._lock:
            new = []
            for figure in self._recorders:
                for attributes, stats in _series(figure, sums):
                    for _, now in figure.values(stats):
                        key = (figure, frozenset(attributes.items()))
                        new.append((figure, attributes, _difference(now, self._had.get(key, Histogram()))))
                        self._had[key] = now
        share = min(1.0, MOST_RECORDS / max(1, sum([histogram.count for _, _, histogram in new])))
        for figure, attributes, histogram in new:
            for value, count in spread(histogram):
                # At least one of each bucket, because rare durations are what people look for.
                for _ in range(math.ceil(count * share)):
                    self._recorders[figure].record(value, attributes)


def _difference(now: Histogram, had: Histogram) -> Histogram:
    """Return the durations of a histogram that another, older one does not have."""
    counts = [max(0, mine - its) for mine, its in zip(now.counts, had.counts, strict=True)]
    return Histogram(tuple(counts), now.sum - had.sum)


def spread(histogram: Histogram) -> Iterator[tuple[float, int]]:
    """Yield a duration of each bucket, and how often it occurred, so that the sum is that of the histogram.

    All durations stand at the same share of the width of their bucket.
    """
    lower = (0.0, *Histogram.BOUNDS[:-1])
    widths = [*[upper - low for low, upper in zip(lower, Histogram.BOUNDS[:-1], strict=False)], lower[-1]]
    least = sum([count * low for count, low in zip(histogram.counts, lower, strict=True)])
    room = sum([count * width for count, width in zip(histogram.counts, widths, strict=True)])
    # A bucket does not have its lower bound.
    share = min(1.0, max(0.01, (histogram.sum - least) / room)) if room else 1.0
    for place in range(BUCKETS):
        if histogram.counts[place]:
            yield lower[place] + share * widths[place], histogram.counts[place]


# The instruments of each provider. Those of None are of the global one, which may be set later.
_global: list[Meters] = []
_of_provider: weakref.WeakKeyDictionary[MeterProvider, Meters] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def export(client: Measured, group: str, provider: MeterProvider | None) -> Export:
    """Export a client; `redlatch.metrics.otel` describes it."""
    with _lock:
        meters = (_global[0] if _global else None) if provider is None else _of_provider.get(provider)
        if meters is None:
            meters = Meters(get_meter("redlatch", __version__, provider))
            if provider is None:
                _global.append(meters)
            else:
                _of_provider[provider] = meters
    # A collection may keep this waiting, and a fork must not find the lock taken meanwhile.
    return meters.totals.add(client, group, partial(_end, meters))


def _end(meters: Meters, export: Export) -> None:
    """End an export. The instruments stay, because the API has no way to take them away."""
    meters.totals.end(export)
