"""The figures of clients for OpenTelemetry. The buckets of a histogram are exact, and its sum nearly so."""

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

# If a collection has more, each record stands for several.
MOST_RECORDS = 20_000

Attributes = Mapping[str, str]

# Not the lock of `export`: the SDK holds its own lock while it observes, and takes it to create an instrument.
_sums_lock = new_lock()


class Meters:
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
        sums = self.totals.read()
        if figure is _FIRST:
            self._recorded.catch_up(sums)
        return [
            Observation(value if isinstance(value, float) else int(value), attributes | _of_part(figure, part))
            for attributes, stats in _series(figure, sums)
            for part, value in figure.values(stats)
        ]


_FIRST = next(figure for figure in LOCKS if figure.kind != "histogram")


def _series(figure: Figure, sums: Sums) -> Iterator[tuple[dict[str, str], object]]:
    if figure in LOCKS:
        for group, stats in sums.groups.items():
            yield {GROUP: group} if group else {}, stats
    else:
        for address, master in sums.masters.items():
            yield {MASTER: address}, master


def _of_part(figure: Figure, part: str) -> dict[str, str]:
    if not figure.label:
        return {}
    if figure.label == "reason":
        return {REASON: part}
    return {OUTCOME: part, "error.type": ERRORS[part]} if part in ERRORS else {OUTCOME: part}


class Recorded:
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
        # Several readers may collect concurrently, and each duration counts once.
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
                # At least one of each bucket: rare durations matter most.
                for _ in range(math.ceil(count * share)):
                    self._recorders[figure].record(value, attributes)


def _difference(now: Histogram, had: Histogram) -> Histogram:
    counts = [max(0, mine - its) for mine, its in zip(now.counts, had.counts, strict=True)]
    return Histogram(tuple(counts), now.sum - had.sum)


def spread(histogram: Histogram) -> Iterator[tuple[float, int]]:
    """Yield a duration of each bucket and its count, so that their sum is that of the histogram."""
    lower = (0.0, *Histogram.BOUNDS[:-1])
    widths = [*[upper - low for low, upper in zip(lower, Histogram.BOUNDS[:-1], strict=False)], lower[-1]]
    least = sum([count * low for count, low in zip(histogram.counts, lower, strict=True)])
    room = sum([count * width for count, width in zip(histogram.counts, widths, strict=True)])
    share = min(1.0, max(0.01, (histogram.sum - least) / room)) if room else 1.0
    for place in range(BUCKETS):
        if histogram.counts[place]:
            yield lower[place] + share * widths[place], histogram.counts[place]


# The API cannot remove instruments. The global provider may be set later.
_global: list[Meters] = []
_of_provider: weakref.WeakKeyDictionary[MeterProvider, Meters] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def export(client: Measured, group: str, provider: MeterProvider | None) -> Export:
    with _lock:
        meters = (_global[0] if _global else None) if provider is None else _of_provider.get(provider)
        if meters is None:
            meters = Meters(get_meter("redlatch", __version__, provider))
            if provider is None:
                _global.append(meters)
            else:
                _of_provider[provider] = meters
    # Outside the lock: a collection may delay this, and a fork must not find the lock taken.
    return meters.totals.add(client, group, partial(_end, meters))


def _end(meters: Meters, export: Export) -> None:
    meters.totals.end(export)
