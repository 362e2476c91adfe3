"""One cluster of three shards for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.shards import Shards

from redlatch.testing.clusters import cluster


@pytest.fixture(scope="module")
def shards() -> Iterator[Shards]:
    made = cluster(3, replicas=0)
    with made as urls:
        running = Shards(made, urls)
        yield running
        running.close()


@pytest.fixture
def names(shards: Shards) -> list[str]:
    """Return a name in each shard."""
    return shards.names()
