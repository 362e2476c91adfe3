"""OpenTelemetry: what a reader collects of real clients."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from support.faces import PATIENCE, Face, at_once
from support.forked import in_child

from metrics.crew import Collected, Slow, Told, durations
from redlatch import Client, ConfigurationError
from redlatch.metrics import otel
from redlatch.metrics.figures import LOCKS, MASTERS
from redlatch.metrics.meters import MOST_RECORDS, spread
from redlatch.stats import Histogram, LockStats, MasterStats


@pytest.fixture
def collected() -> Collected:
    return Collected()


def histogram(points: dict[str, list[Any]], name: str) -> HistogramDataPoint:
    """Return the only data point of a histogram."""
    (point,) = points[name]
    assert isinstance(point, HistogramDataPoint)
    return point


def test_a_collection_has_what_has_become_of_acquires(
    connect: Face, three: list[str], name: str, collected: Collected
) -> None:
    client = connect(three)
    with otel(client.raw, "rest", collected.provider):
        held = client.lock(name, group="sku")
        assert held.acquire()
        assert not client.lock(name, group="sku").acquire(blocking=False)
        count = "redlatch.lock.acquire.count"
        assert collected.value(count, group="sku", outcome="acquired") == 1
        assert collected.value(count, group="sku", outcome="busy", type="LockBusy") == 1
        assert collected.value(count, group="rest", outcome="acquired") == 0
        assert collected.value("redlatch.lock.held", group="sku") == 1
        held.release()
        assert collected.value("redlatch.lock.held", group="sku") == 0
        points = collected.points()
        assert histogram(points, "redlatch.lock.acquire.duration").count == 1
        assert histogram(points, "redlatch.lock.hold.duration").attributes == {"redlatch.lock.group": "sku"}
        assert [point.value for point in points["redlatch.master.up"]] == [1, 1, 1]


def test_the_instruments_are_those_of_the_list(collected: Collected) -> None:
    some = durations(0.01, at12=2)
    client = Told(
        MasterStats("a", True, reply_time=some),
        sku=LockStats(acquire_time=some, hold_time=some, renewal_slack=some),
    )
    otel(client, meter_provider=collected.provider)
    data = collected.readers[0].get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "redlatch"
    found = {metric.name: (metric.unit, metric.description) for metric in scope.metrics}
    assert found == {figure.otel: (figure.unit, figure.meaning) for figure in (*LOCKS, *MASTERS)}


def test_a_group_without_a_name_has_no_attribute(collected: Collected) -> None:
    client = Told(_=LockStats(held=1))
    otel(client, meter_provider=collected.provider)
    (point,) = collected.points()["redlatch.lock.held"]
    assert (point.value, point.attributes) == (1, {})


# --- histograms ----------------------------------------------------------------------------------------


def test_the_buckets_and_the_sum_of_a_histogram_are_those_of_the_figures(collected: Collected) -> None:
    # 2, 3 and 4 ms
    client = Told(sku=LockStats(acquire_time=durations(0.009, at11=1, at12=2)))
    otel(client, meter_provider=collected.provider)
    point = histogram(collected.points(), "redlatch.lock.acquire.duration")
    assert point.explicit_bounds == LOCKS[0].bounds
    counts = dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))
    assert {bound: count for bound, count in counts.items() if count} == {0.002048: 1, 0.004096: 2}
    assert point.sum == pytest.approx(0.009)


def test_each_duration_is_recorded_once(collected: Collected) -> None:
    client = Told(sku=LockStats(acquire_time=durations(0.003, at12=1)))
    otel(client, meter_provider=collected.provider)
    assert histogram(collected.points(), "redlatch.lock.acquire.duration").count == 1
    assert histogram(collected.points(), "redlatch.lock.acquire.duration").count == 1
    client.groups = {"sku": LockStats(acquire_time=durations(0.033, at12=11))}
    point = histogram(collected.points(), "redlatch.lock.acquire.duration")
    assert point.count == 11
    assert point.sum == pytest.approx(0.033)


def test_each_of_two_readers_gets_each_duration_once() -> None:
    collected = Collected(readers=2)
    client = Told(sku=LockStats(acquire_time=durations(0.006, at12=2)))
    otel(client, meter_provider=collected.provider)
    for reader in (0, 1, 0):
        assert histogram(collected.points(reader), "redlatch.lock.acquire.duration").count == 2


@pytest.mark.parametrize(
    "given",
    [
        durations(0.0, at0=3),
        durations(3e-6, at0=3),
        durations(0.0035, at12=1),
        durations(1.6, at12=1, at20=2, at5=1000),
        durations(400_000.0, at39=1),
        # A reader may see the sum of one duration less than the counts.
        durations(0.001, at12=3),
    ],
)
def test_values_stay_in_their_buckets_and_keep_the_sum(given: Histogram) -> None:
    lower = (0.0, *Histogram.BOUNDS)
    values = list(spread(given))
    assert [count for _, count in values] == [count for count in given.counts if count]
    for value, count in values:
        places = [place for place in range(40) if lower[place] < value <= Histogram.BOUNDS[place]]
        assert [given.counts[place] for place in places] == [count]
    total = sum(value * count for value, count in values)
    least = sum(count * low for count, low in zip(given.counts, lower, strict=False))
    assert total == pytest.approx(max(given.sum, least), rel=0.02, abs=1e-6)


def test_more_durations_than_a_collection_bears_are_thinned_out(collected: Collected) -> None:
    many = 10 * MOST_RECORDS
    client = Told(sku=LockStats(acquired=many + 1, acquire_time=durations(0.003 * many + 1.0, at12=many, at20=1)))
    otel(client, meter_provider=collected.provider)
    points = collected.points()
    point = histogram(points, "redlatch.lock.acquire.duration")
    # The rare one is there.
    assert point.count == MOST_RECORDS + 1
    assert point.bucket_counts[point.explicit_bounds.index(1.048576)] == 1
    assert collected.value("redlatch.lock.acquire.count", group="sku", outcome="acquired") == many + 1


# --- several clients -----------------------------------------------------------------------------------


def test_clients_of_one_provider_are_added_up_without_a_warning(
    three: list[str], name: str, collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Client(three) as first, Client(three) as second:
        export = otel(first, meter_provider=collected.provider)
        otel(second, meter_provider=collected.provider)
        for number, client in enumerate((first, second)):
            with client.lock(f"{name}-{number}", group="sku"):
                pass
        count = "redlatch.lock.acquire.count"
        assert collected.value(count, group="sku", outcome="acquired") == 2
        first.close()
        export.close()
        assert collected.value(count, group="sku", outcome="acquired") == 2
    # The kit warns of an instrument that is made twice.
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_child_that_is_forked_in_the_middle_of_a_collection_can_export(collected: Collected) -> None:
    client = Slow()
    with otel(client, meter_provider=collected.provider):
        collection = threading.Thread(target=collected.points)
        collection.start()
        assert client.begun.wait(PATIENCE)
        in_child(lambda: otel(Told(), meter_provider=collected.provider))
        collection.join()


def test_a_client_is_exported_once(collected: Collected) -> None:
    client = Told()
    with otel(client, meter_provider=collected.provider):
        with pytest.raises(ConfigurationError, match="exported already"):
            otel(client, meter_provider=collected.provider)


def test_a_client_that_nobody_else_has_is_collected(three: list[str], name: str, collected: Collected) -> None:
    client = Client(three)
    otel(client, meter_provider=collected.provider)
    with client.lock(name):
        pass
    assert collected.value("redlatch.lock.acquire.count", outcome="acquired") == 1
    gone = weakref.ref(client)
    client.close()
    del client
    gc.collect()
    assert gone() is None
    assert collected.value("redlatch.lock.acquire.count", outcome="acquired") == 1


def test_no_name_of_a_lock_is_collected(connect: Face, three: list[str], collected: Collected) -> None:
    client = connect(three)
    otel(client.raw, meter_provider=collected.provider)
    lock = client.lock("customer-of-the-month", group="customers")
    assert lock.acquire()
    lock.release()
    data = collected.readers[0].get_metrics_data()
    assert data is not None
    assert "customers" in data.to_json()
    assert "of-the-month" not in data.to_json()


def test_readers_that_collect_while_others_lock_miss_no_duration(connect: Face, three: list[str], name: str) -> None:
    collected = Collected(readers=2)
    client = connect(three)
    otel(client.raw, meter_provider=collected.provider)

    def lock(number: int) -> None:
        for _ in range(25):
            lock = client.lock(f"{name}-{number}", group="sku")
            assert lock.acquire()
            lock.release()

    def collect(reader: int) -> None:
        for _ in range(20):
            collected.points(reader)

    at_once([*[partial(lock, number) for number in (0, 1)], *[partial(collect, reader) for reader in (0, 1)]])
    for reader in (0, 1):
        points = collected.points(reader)
        assert histogram(points, "redlatch.lock.acquire.duration").count == 50
        assert histogram(points, "redlatch.lock.hold.duration").count == 50


GLOBAL = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import redlatch, redlatch.metrics

client = redlatch.Client("redis://127.0.0.1:1")
redlatch.metrics.otel(client, "early")
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
other = redlatch.Client("redis://127.0.0.1:1")
redlatch.metrics.otel(other, "late")
held = [
    metric
    for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
    for metric in scope.metrics
    if metric.name == "redlatch.lock.held"
]
print(sorted(point.attributes["redlatch.lock.group"] for metric in held for point in metric.data.data_points))
"""


def test_the_global_provider_may_be_set_later() -> None:
    # It can be set once in a process.
    said = subprocess.check_output([sys.executable, "-W", "error", "-c", GLOBAL], text=True)
    assert said == "['early', 'late']\n"
