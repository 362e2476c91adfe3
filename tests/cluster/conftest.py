"""One cluster of three shards for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.shards import Shards, running


@pytest.fixture(scope="module")
def shards() -> Iterator[Shards]:
    with running() as shards:
        yield shards


@pytest.fixture
def names(shards: Shards) -> list[str]:
    """Return a name in each shard."""
    return shards.names()
