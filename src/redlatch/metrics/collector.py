"""A collector of prometheus_client for the figures of clients."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
    from prometheus_client.utils import floatToGoString
except ImportError as error:
    raise ImportError(
        f"redlatch.metrics.prometheus needs prometheus_client: pip install 'redlatch[prometheus]' ({error})"
    ) from error

from .figures import LOCKS, MASTERS, Figure, cumulated
from .totals import Export, Measured, Totals, new_lock

# A finalizer may close an export in the middle of a scrape.
_lock = new_lock()


class LockCollector(Collector):
    def __init__(self) -> None:
        self.totals = Totals(_lock)

    def describe(self) -> Iterable[Metric]:
        # The registry refuses other families of these names.
        return [*[_family(figure, "group") for figure in LOCKS], *[_family(figure, "master") for figure in MASTERS]]

    def collect(self) -> Iterator[Metric]:
        sums = self.totals.read()
        for figures, label, found in ((LOCKS, "group", sums.groups), (MASTERS, "master", sums.masters)):
            for figure in figures:
                family = _family(figure, label)
                for name, stats in found.items():
                    for part, value in figure.values(stats):
                        _add(family, figure, [name, part] if figure.label else [name], value)
                yield family


def _family(figure: Figure, label: str) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    labels = [label, figure.label] if figure.label else [label]
    unit = "seconds" if figure.unit == "s" else ""
    if figure.kind == "histogram":
        return HistogramMetricFamily(figure.prometheus, figure.meaning, labels=labels, unit=unit)
    if figure.kind == "counter":
        return CounterMetricFamily(figure.prometheus, figure.meaning, labels=labels)
    return GaugeMetricFamily(figure.prometheus, figure.meaning, labels=labels, unit=unit)


def _add(
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily,
    figure: Figure,
    labels: list[str],
    value: Any,
) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = [floatToGoString(bound) for bound in (*figure.bounds, math.inf)]
        family.add_metric(labels, list(zip(bounds, cumulated(figure, value), strict=True)), value.sum)
    else:
        family.add_metric(labels, float(value))


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, LockCollector] = weakref.WeakKeyDictionary()


def export(client: Measured, group: str, registry: CollectorRegistry | None) -> Export:
    chosen = REGISTRY if registry is None else registry
    with _lock:
        collector = _collectors.get(chosen)
        if collector is None:
            collector = LockCollector()
            chosen.register(collector)
            _collectors[chosen] = collector
        return collector.totals.add(client, group, partial(_end, weakref.ref(chosen), collector))


def _end(registry: weakref.ref[CollectorRegistry], collector: LockCollector, export: Export) -> None:
    with _lock:
        last = collector.totals.end(export)
        chosen = registry()
        if last and chosen is not None and _collectors.get(chosen) is collector:
            del _collectors[chosen]
            chosen.unregister(collector)
