"""What the tests of the metrics share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from redlatch.stats import BUCKETS, Histogram, LockStats, MasterStats, Stats

ROOT = Path(__file__).parents[2]


class Told:
    """Has the figures that a test gives it."""

    def __init__(self, *masters: MasterStats, **groups: LockStats) -> None:
        self.masters = masters
        self.groups = {name.strip("_"): figures for name, figures in groups.items()}

    def stats(self) -> Stats:
        return Stats(groups=self.groups, masters=self.masters)


class Slow(Told):
    """Takes so long to say its figures that a fork surely comes meanwhile."""

    def __init__(self) -> None:
        super().__init__(sku=LockStats(acquired=1))
        self.begun = threading.Event()

    def stats(self) -> Stats:
        self.begun.set()
        time.sleep(0.05)
        return super().stats()


def durations(sum_of_all: float = 0.0, **counts: int) -> Histogram:
    """Return a histogram: ``durations(0.5, at3=2)`` has two durations in the fourth bucket."""
    found = [0] * BUCKETS
    for place, count in counts.items():
        found[int(place.removeprefix("at"))] = count
    return Histogram(tuple(found), sum_of_all)


def samples(registry: prometheus_client.CollectorRegistry) -> Iterator[Sample]:
    """Yield all series of a registry, as the parser of prometheus_client reads them from an answer to a scrape."""
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        yield from family.samples


def value(registry: prometheus_client.CollectorRegistry, name: str, **labels: str) -> float:
    """Return the only series with a name and these labels; others may differ."""
    (found,) = [
        sample.value for sample in samples(registry) if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(found)


class Collected:
    """A meter provider, and what its reader collects."""

    def __init__(self, readers: int = 1) -> None:
        self.readers = [InMemoryMetricReader() for _ in range(readers)]
        self.provider = MeterProvider(metric_readers=self.readers, shutdown_on_exit=False)

    def points(self, reader: int = 0) -> dict[str, list[Any]]:
        """Collect the data points of each instrument."""
        data = self.readers[reader].get_metrics_data()
        if data is None:
            return {}
        metrics = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def value(self, name: str, **attributes: str) -> Any:
        """Collect the only value of an instrument with these attributes, whose last parts are given."""
        (found,) = [
            point.value
            for point in self.points().get(name, [])
            if isinstance(point, NumberDataPoint)
            and attributes.items()
            <= {key.rpartition(".")[2]: text for key, text in (point.attributes or {}).items()}.items()
        ]
        return found
