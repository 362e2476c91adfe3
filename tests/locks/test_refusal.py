"""The error of a lock that was not won in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redlatch import Client, LockBusy, LockTimeout, impl


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


@pytest.mark.parametrize("timeout", [0, 2.5])
def test_the_error_says_when_another_call_may_succeed(client: Any, held: Any, name: str, timeout: float) -> None:
    """The time that is left if this client has the lock, and else the longest pause of `Retry`."""
    error = client.lock(name, timeout=timeout)._not_won()
    assert held.remaining() <= error.retry_after <= 60
    assert client.lock(f"{name}-other", timeout=timeout)._not_won().retry_after == 0.05


def test_the_time_until_another_call_is_never_0(client: Any, name: str) -> None:
    lock = client.lock(name, ttl=0.02)
    assert lock.acquire()
    assert client.lock(name)._not_won().retry_after >= 0.05


@pytest.mark.parametrize(("timeout", "kind"), [(0, LockBusy), (None, LockBusy), (2.5, LockTimeout)])
def test_a_with_that_did_not_win_says_how_long_it_waited(client: Any, name: str, timeout: Any, kind: Any) -> None:
    error = client.lock(name, timeout=timeout)._not_won()
    assert type(error) is kind and error.name == name
    assert kind is LockBusy or error.elapsed == 2.5
