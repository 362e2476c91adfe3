"""Latches without masters: their keys and attributes, and counts that cannot work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import redlatch
from redlatch import ConfigurationError, impl


@pytest.fixture(params=[redlatch.Client, redlatch.AsyncClient])
def client(request: pytest.FixtureRequest, implementation: impl.Implementation) -> Any:
    """A client of each face that is not connected."""
    return request.param("redis://127.0.0.1:1", prefix="p:")


def test_a_latch_has_keys_of_its_own(client: Any) -> None:
    latch = client.latch("n", 3)
    assert latch._hold.key == b"{p:n}\0latch"
    assert (latch.name, latch.count) == ("n", 3)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_latch_cannot_be_copied(client: Any, how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="belongs to one client"):
        how(client.latch("n", 1))


@pytest.mark.parametrize("count", [1, 10_000])
def test_counts_from_1_to_10_000_are_accepted(client: Any, count: int) -> None:
    assert client.latch("n", count).count == count


@pytest.mark.parametrize(
    ("count", "error"), [(0, ConfigurationError), (10_001, ConfigurationError), (True, TypeError), (1.0, TypeError)]
)
def test_other_counts_are_refused(client: Any, count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^count: "):
        client.latch("n", count)
