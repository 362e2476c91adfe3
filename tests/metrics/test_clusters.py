"""The figures of the nodes of a cluster, as a scrape shows them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from support.faces import await_true

from metrics.crew import samples
from redlatch import Client
from redlatch.metrics import prometheus
from redlatch.testing.clusters import cluster


def figures(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Return the series of a family, by the address of the node."""
    return {sample.labels["master"]: sample.value for sample in samples(registry) if sample.name == name}


def test_each_primary_has_its_figures_until_it_leaves() -> None:
    registry = CollectorRegistry(auto_describe=True)
    made = cluster(3, replicas=1)
    with made as urls, Client(made.url, patience=30.0) as client, prometheus(client, registry=registry):
        nodes = [url.removeprefix("redis://").partition("/")[0] for url in urls]

        def primaries() -> dict[str, float]:
            return {nodes[made.primary(shard)]: 1.0 for shard in range(3)}

        def replies() -> dict[str, float]:
            with client.lock(made.name_in(0), ttl=5.0):
                return figures(registry, "redlatch_master_reply_seconds_count")

        client.connect(require="all")
        assert figures(registry, "redlatch_master_up") == primaries()
        assert figures(registry, "redlatch_quarantine_total").keys() == primaries().keys()
        former = nodes[made.primary(0)]
        await_true(lambda: replies()[former] > 0, 30.0)
        before = replies()[former]
        made.fail_over(0)
        await_true(lambda: replies().keys() == primaries().keys())
        assert former not in replies()
        made.fail_over(0)
        await_true(lambda: former in replies())
        # The counter goes on where it was.
        assert replies()[former] >= before
        await_true(lambda: figures(registry, "redlatch_master_up") == primaries())
