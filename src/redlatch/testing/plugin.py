"""The pytest plugin: fixtures with clients in memory, and with real masters and clusters on this machine.

pytest imports it in every run, so a test that uses no fixture of it imports nothing else of redlatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redlatch import Client
    from redlatch.testing import AsyncMemoryClient, Cluster, MemoryClient

SETTING = "redlatch_masters"
COUNT = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"how many masters the fixtures of redlatch have (default {COUNT})"
    parser.addini(SETTING, text, default=str(COUNT))


@pytest.fixture(scope="session")
def _redlatch_running(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """Run real masters for a session. With pytest-xdist, each process has its own."""
    from redlatch.testing import masters

    with masters(_count(pytestconfig)) as urls:
        yield urls


@pytest.fixture
def redlatch_masters(_redlatch_running: list[str]) -> Iterator[list[str]]:
    """Return the URLs of real masters on this machine. All tests of a session share them.

    All locks are removed after the test. The server program is the one of ``redlatch[testing]``, or a valkey-server or
    redis-server on PATH.
    """
    from redlatch.testing import clear

    yield list(_redlatch_running)
    clear(_redlatch_running)


@pytest.fixture
def redlatch_client(redlatch_masters: list[str]) -> Iterator[Client]:
    """Return a `Client` of the real masters. It is closed after the test."""
    from redlatch import Client

    with Client(redlatch_masters) as client:
        yield client


@pytest.fixture(scope="session")
def _redlatch_cluster_running() -> Iterator[Cluster]:
    from redlatch.testing import cluster

    running = cluster()
    with running:
        yield running


@pytest.fixture
def redlatch_cluster(_redlatch_cluster_running: Cluster) -> Iterator[Cluster]:
    """Return a running cluster of three shards, each with a replica. All tests of a session share it.

    After the test all nodes run again, and all locks are removed. Slots and primaries stay where the test moved them.
    """
    yield _redlatch_cluster_running
    _redlatch_cluster_running.repair()
    _redlatch_cluster_running.clear()


@pytest.fixture
def redlatch_memory(pytestconfig: pytest.Config) -> Iterator[MemoryClient]:
    """Return a client in memory, with its own masters and time: a `Client` without a server."""
    from redlatch.testing import MemoryClient

    with MemoryClient(_count(pytestconfig)) as client:
        yield client


@pytest.fixture
def redlatch_async_memory(redlatch_memory: MemoryClient) -> Iterator[AsyncMemoryClient]:
    """Return a client in memory for asyncio, with the masters and time of `redlatch_memory`, like another process."""
    from redlatch.testing import AsyncMemoryClient

    client = AsyncMemoryClient(redlatch_memory.memory)
    yield client
    client.drop()


def _count(config: pytest.Config) -> int:
    given = str(config.getini(SETTING))
    if not given.isdecimal() or int(given) < 1:
        raise pytest.UsageError(f"{SETTING}: a number from 1 on is needed, got {given!r}")
    return int(given)
