"""A client, and a lock that it holds, for the tests of lock objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redlatch import Client, impl


@pytest.fixture
def client(implementation: impl.Implementation, url: str) -> Iterator[Any]:
    with Client(url) as client:
        yield client


@pytest.fixture
def held(client: Any, name: str) -> Any:
    """Return a lock that is held."""
    lock = client.lock(name, ttl=60)
    assert lock.acquire()
    return lock
