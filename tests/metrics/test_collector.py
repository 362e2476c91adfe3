"""Prometheus: what a scrape of real clients shows, read back by the parser of prometheus_client."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.faces import PATIENCE, Face, at_once, await_true
from support.forked import in_child

from metrics.crew import Slow, Told, samples, value
from redlatch import Client, ConfigurationError, LockTimeout, impl
from redlatch.metrics import prometheus
from redlatch.metrics.figures import LOCKS, MASTERS, REASONS
from redlatch.stats import LockStats, Stats
from redlatch.testing import embedded


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def test_a_scrape_shows_what_has_become_of_acquires(
    connect: Face, three: list[str], name: str, registry: CollectorRegistry
) -> None:
    client = connect(three)
    with prometheus(client.raw, "rest", registry):
        held = client.lock(name, group="sku")
        assert held.acquire()
        assert not client.lock(name, group="sku").acquire(blocking=False)
        assert not client.lock(name, group="sku").acquire(timeout=0.05)
        assert client.lock(f"{name}-2").acquire()
        outcomes = {
            (sample.labels["group"], sample.labels["outcome"]): sample.value
            for sample in samples(registry)
            if sample.name == "redlatch_acquire_total"
        }
        none = dict.fromkeys(("acquired", "busy", "timeout", "unavailable", "cancelled"), 0)
        assert outcomes == {("sku", outcome): count for outcome, count in none.items()} | {
            ("rest", outcome): count for outcome, count in none.items()
        } | {("sku", "acquired"): 1, ("sku", "busy"): 1, ("sku", "timeout"): 1, ("rest", "acquired"): 1}
        assert value(registry, "redlatch_held", group="sku") == 1
        held.extend(5.0)
        held.release()
        assert value(registry, "redlatch_held", group="sku") == 0
        assert value(registry, "redlatch_hold_seconds_count", group="sku") == 1
        assert value(registry, "redlatch_renewal_total", group="sku", outcome="renewed") == 1
        assert value(registry, "redlatch_renewal_slack_seconds_bucket", group="sku", le="4.194304") == 0
        assert value(registry, "redlatch_renewal_slack_seconds_bucket", group="sku", le="16.777216") == 1


def test_an_acquire_that_waits_is_shown(
    connect: Face, three: list[str], name: str, registry: CollectorRegistry
) -> None:
    client = connect(three)
    prometheus(client.raw, registry=registry)
    held = client.lock(name, group="sku")
    assert held.acquire()
    waiting = client.lock(name, group="sku").start("acquire", timeout=PATIENCE)
    await_true(lambda: value(registry, "redlatch_waiting", group="sku") == 1)
    held.release()
    assert waiting.result(PATIENCE)
    await_true(lambda: value(registry, "redlatch_waiting", group="sku") == 0)
    assert value(registry, "redlatch_acquire_seconds_count", group="sku") == 2


def test_the_families_are_those_of_the_list(three: list[str], registry: CollectorRegistry) -> None:
    with Client(three) as client:
        prometheus(client, registry=registry)
        families = {
            family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())
        }
    figures = {figure.prometheus: figure for figure in (*LOCKS, *MASTERS)}
    assert set(families) == set(figures)
    for family_name, family in families.items():
        figure = figures[family_name]
        assert (family.type, family.documentation) == (figure.kind, figure.meaning)
        assert family.unit == ("seconds" if figure.unit == "s" else "")
        labels = {"group"} if figure in LOCKS else {"master"}
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {
            frozenset(labels | ({figure.label} if figure.label else set()))
        }


def test_the_older_text_format_has_the_same_series(three: list[str], name: str, registry: CollectorRegistry) -> None:
    with Client(three) as client:
        prometheus(client, registry=registry)
        with client.lock(name):
            pass
    text = prometheus_client.generate_latest(registry).decode()
    families = prometheus_client.parser.text_string_to_metric_families(text)
    older = {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }
    newer = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples(registry)}
    assert older == newer


def test_each_reason_of_a_loss_begins_with_zero(three: list[str], name: str, registry: CollectorRegistry) -> None:
    with Client(three) as client:
        prometheus(client, registry=registry)
        lost = [sample for sample in samples(registry) if sample.name == "redlatch_lost_total"]
        assert {sample.labels["reason"]: sample.value for sample in lost} == dict.fromkeys(REASONS, 0)
        held = client.lock(name, ttl=0.2, group="sku")
        assert held.acquire()
        assert held.lost.wait(PATIENCE)
        await_true(lambda: value(registry, "redlatch_lost_total", group="sku", reason="expired") == 1)


def test_a_master_that_fails_is_shown(
    fleet: Callable[..., embedded.Masters], name: str, registry: CollectorRegistry, implementation: impl.Implementation
) -> None:
    masters = fleet(3)
    with Client(masters.urls) as client:
        prometheus(client, registry=registry)
        client.connect(require="all")
        addresses = [master.address for master in client.health().masters]
        up = [value(registry, "redlatch_master_up", master=address) for address in addresses]
        assert up == [1, 1, 1]
        masters.kill(1)

        def is_down() -> bool:
            with client.lock(name):
                return value(registry, "redlatch_master_up", master=addresses[1]) == 0

        await_true(is_down)
        assert value(registry, "redlatch_master_up", master=addresses[0]) == 1


def test_masters_are_shown_once_a_client_has_connected_and_until_it_is_closed(
    three: list[str], registry: CollectorRegistry, implementation: impl.Implementation
) -> None:
    client = Client(three)
    prometheus(client, registry=registry)

    def shown() -> list[float]:
        return [sample.value for sample in samples(registry) if sample.name == "redlatch_master_up"]

    assert shown() == []
    client.connect(require="all")
    assert shown() == [1, 1, 1]
    client.close()
    assert shown() == []


def test_no_name_of_a_lock_is_shown(connect: Face, three: list[str], registry: CollectorRegistry) -> None:
    client = connect(three)
    with prometheus(client.raw, registry=registry):
        lock = client.lock("customer-of-the-month", group="customers")
        assert lock.acquire()
        lock.release()
        text = generate_latest(registry).decode()
    assert "customers" in text
    assert "of-the-month" not in text


# --- several clients -----------------------------------------------------------------------------------


def test_clients_of_one_registry_are_added_up(
    connect: Face, three: list[str], name: str, registry: CollectorRegistry
) -> None:
    first, second = connect(three), connect(three)
    export = prometheus(first.raw, "one", registry)
    prometheus(second.raw, "two", registry)
    for number, client in enumerate((first, first, second)):
        assert client.lock(f"{name}-{number}", group="sku").acquire()
        assert client.lock(f"{name}-{number}-rest").acquire()

    def acquired(group: str) -> float:
        return value(registry, "redlatch_acquire_total", group=group, outcome="acquired")

    assert [acquired(group) for group in ("sku", "one", "two")] == [3, 2, 1]
    first.close()
    export.close()
    # A counter that went down would look like a restart of the process.
    assert [acquired(group) for group in ("sku", "one", "two")] == [3, 2, 1]
    assert value(registry, "redlatch_held", group="one") == 0
    assert value(registry, "redlatch_held", group="two") == 1


def test_registries_have_their_own_sums(three: list[str], name: str, registry: CollectorRegistry) -> None:
    other = CollectorRegistry()
    with Client(three) as first, Client(three) as second:
        prometheus(first, registry=registry)
        prometheus(first, registry=other)
        prometheus(second, registry=other)
        for number, client in enumerate((first, second)):
            with client.lock(f"{name}-{number}"):
                pass
        assert value(registry, "redlatch_acquire_total", outcome="acquired") == 1
        assert value(other, "redlatch_acquire_total", outcome="acquired") == 2


def test_a_client_that_nobody_else_has_is_collected(three: list[str], name: str, registry: CollectorRegistry) -> None:
    client = Client(three)
    prometheus(client, registry=registry)
    with client.lock(name):
        pass
    assert value(registry, "redlatch_acquire_total", outcome="acquired") == 1
    gone = weakref.ref(client)
    client.close()
    del client
    gc.collect()
    assert gone() is None
    assert value(registry, "redlatch_acquire_total", outcome="acquired") == 1


def test_the_last_export_takes_the_families_away(registry: CollectorRegistry) -> None:
    first, second = Told(_=LockStats(acquired=1)), Told(_=LockStats(acquired=2))
    exports = [prometheus(client, registry=registry) for client in (first, second)]
    exports[0].close()
    assert value(registry, "redlatch_acquire_total", outcome="acquired") == 3
    exports[1].close()
    exports[1].close()
    assert list(samples(registry)) == []
    with prometheus(first, registry=registry):
        assert value(registry, "redlatch_acquire_total", outcome="acquired") == 1
    assert list(samples(registry)) == []


def test_a_client_is_exported_once(registry: CollectorRegistry) -> None:
    client = Told()
    with prometheus(client, registry=registry), pytest.raises(ConfigurationError, match="exported already"):
        prometheus(client, registry=registry)


def test_a_registry_with_a_family_of_the_same_name_refuses_the_export(registry: CollectorRegistry) -> None:
    Gauge("redlatch_held", "not ours", registry=registry)
    client = Told()
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        prometheus(client, registry=registry)
    assert [sample.name for sample in samples(registry)] == ["redlatch_held"]


def test_the_global_registry_is_the_default() -> None:
    client = Told(here=LockStats(acquired=7))
    with prometheus(client):
        labels = {"group": "here", "outcome": "acquired"}
        assert prometheus_client.REGISTRY.get_sample_value("redlatch_acquire_total", labels) == 7
    assert prometheus_client.REGISTRY.get_sample_value("redlatch_acquire_total", labels) is None


def test_a_registry_that_is_forgotten_takes_its_collector_with_it() -> None:
    registry, client = CollectorRegistry(), Told()
    gone = weakref.ref(registry)
    prometheus(client, registry=registry)
    del registry
    gc.collect()
    assert gone() is None


# --- threads -------------------------------------------------------------------------------------------


def test_scrapes_while_others_lock_never_see_a_counter_go_down(
    connect: Face, three: list[str], name: str, registry: CollectorRegistry
) -> None:
    client = connect(three)
    prometheus(client.raw, registry=registry)
    over = threading.Event()
    scraped: list[list[float]] = [[], []]

    def lock(number: int) -> int:
        won = 0
        try:
            for _ in range(30):
                lock = client.lock(f"{name}-{number % 2}", group=f"group-{number}", timeout=PATIENCE)
                won += lock.acquire()
                lock.release()
        finally:
            over.set()
        return won

    def scrape(seen: list[float]) -> int:
        ending = False
        while not ending:
            ending = over.is_set()
            found = [
                sample.value
                for sample in samples(registry)
                if sample.name == "redlatch_acquire_total" and sample.labels["outcome"] == "acquired"
            ]
            seen.append(sum(found))
        return 0

    won = at_once([*[partial(lock, number) for number in range(4)], *[partial(scrape, seen) for seen in scraped]])
    assert sum(won) == 120
    for seen in scraped:
        assert seen == sorted(seen)
        assert seen[-1] > 0
    totals = [
        value(registry, "redlatch_acquire_total", group=f"group-{number}", outcome="acquired") for number in range(4)
    ]
    assert totals == [30, 30, 30, 30]
    assert sum([value(registry, "redlatch_held", group=f"group-{number}") for number in range(4)]) == 0


def test_exports_begin_and_end_while_others_scrape(registry: CollectorRegistry) -> None:
    over = threading.Event()
    client = Told(sku=LockStats(acquired=1))
    prometheus(client, registry=registry)

    def come_and_go() -> None:
        try:
            for _ in range(200):
                other = Told(sku=LockStats(acquired=1))
                with prometheus(other, registry=registry):
                    pass
        finally:
            over.set()

    def scrape() -> list[float]:
        seen, ending = [], False
        while not ending:
            ending = over.is_set()
            seen.append(value(registry, "redlatch_acquire_total", group="sku", outcome="acquired"))
        return seen

    _, first, second = at_once([come_and_go, scrape, scrape])
    assert first == sorted(first)
    assert second == sorted(second)
    assert value(registry, "redlatch_acquire_total", group="sku", outcome="acquired") == 201


class Closing(Told):
    """Closes the export of another client while it is read, as a finalizer may."""

    def __init__(self) -> None:
        super().__init__(sku=LockStats(acquired=1))
        self.close: Callable[[], object] = list

    def stats(self) -> Stats:
        self.close()
        return super().stats()


@pytest.mark.parametrize("first", [True, False])
def test_an_export_that_ends_in_the_middle_of_a_scrape_counts_once(registry: CollectorRegistry, first: bool) -> None:
    closing, other = Closing(), Told(sku=LockStats(acquired=2))
    clients = (closing, other) if first else (other, closing)
    exports = {client: prometheus(client, registry=registry) for client in clients}
    closing.close = exports[other].close
    for _ in range(2):
        assert value(registry, "redlatch_acquire_total", group="sku", outcome="acquired") == 3


def test_a_child_that_is_forked_in_the_middle_of_a_scrape_can_be_scraped(registry: CollectorRegistry) -> None:
    client = Slow()
    with prometheus(client, registry=registry):
        scrape = threading.Thread(target=generate_latest, args=(registry,))
        scrape.start()
        assert client.begun.wait(PATIENCE)
        in_child(lambda: generate_latest(registry))
        scrape.join()


def test_an_error_of_the_body_ends_the_export(three: list[str], name: str, registry: CollectorRegistry) -> None:
    with Client(three) as client, client.lock(name):
        with pytest.raises(LockTimeout), prometheus(client, registry=registry), client.lock(name, timeout=0.01):
            pass
        assert list(samples(registry)) == []
