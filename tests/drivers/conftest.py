"""Fixtures: the parts of the driver for threads on one real master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.crew import Crew

from redlatch import impl


@pytest.fixture
def unconnected(implementation: impl.Implementation, url: str) -> Iterator[Crew]:
    crew = Crew(implementation, url)
    yield crew
    crew.connections.close()


@pytest.fixture
def crew(unconnected: Crew) -> Crew:
    unconnected.connect()
    return unconnected
