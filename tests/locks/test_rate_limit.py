"""The part of a rate limit that both faces share: its arguments, and how long a permit lives."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from redlatch import AsyncClient, Client, ConfigurationError, Guard

URL = "redis://127.0.0.1:1"


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(URL)


@pytest.mark.parametrize("limit", [0, -1, 1_000_001])
def test_a_limit_out_of_range_is_refused(client: Any, limit: int) -> None:
    with pytest.raises(ConfigurationError, match=f"^limit: 1 to 1,000,000 are needed; got {limit}$"):
        client.rate_limit("n", limit, 1.0)


@pytest.mark.parametrize("limit", [True, 1.0, "1", None])
def test_a_limit_is_a_whole_number(client: Any, limit: Any) -> None:
    with pytest.raises(TypeError, match=f"^limit: a whole number is needed, not {type(limit).__name__}$"):
        client.rate_limit("n", limit, 1.0)


@pytest.mark.parametrize("period", [0, -1, 0.009, float("nan"), float("inf")])
def test_a_period_out_of_range_is_refused(client: Any, period: float) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^period: a finite number of seconds, at least 0.01, is needed; got "
    ):
        client.rate_limit("n", 1, period)


@pytest.mark.parametrize("period", [True, "1", None])
def test_a_period_is_a_number(client: Any, period: Any) -> None:
    with pytest.raises(TypeError, match=f"^period: seconds as a number are needed, not {type(period).__name__}$"):
        client.rate_limit("n", 1, period)


def test_a_period_above_the_guard_names_the_guard_that_allows_it(client: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^period: 61 s is above the 60 s of the guard; .*Guard\(max_ttl=61\)$"
    ):
        client.rate_limit("n", 1, 61)
    assert client.rate_limit("n", 1, 60).period == 60.0


def test_the_options_of_a_rate_limit_are_checked_when_it_is_made(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^timeout: "):
        client.rate_limit("n", 1, 1.0, timeout=-1)
    with pytest.raises(TypeError, match=r"^group: "):
        client.rate_limit("n", 1, 1.0, group=1)
    with pytest.raises(ConfigurationError, match=r"^name: "):
        client.rate_limit("", 1, 1.0)
    with pytest.raises(TypeError, match=r"^blocking: "):
        client.rate_limit("n", 1, 1.0)._until_ns("yes", None)


def test_a_client_without_scripts_has_no_rate_limits() -> None:
    with pytest.raises(ConfigurationError, match="semaphores, rate limits, read-write locks"):
        Client(URL, scripts="watch").rate_limit("n", 1, 1.0)


def test_a_rate_limit_shows_its_arguments_and_is_not_copied(client: Any) -> None:
    limit = client.rate_limit(b"n", 3, 0.5)
    assert (limit.name, limit.limit, limit.period) == (b"n", 3, 0.5)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.copy(limit)


@pytest.mark.parametrize("drift_factor", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("period", [0.01, 1.0, 59.9, 60.0])
def test_a_permit_outlives_the_period_and_an_attempt_even_on_a_fast_clock(drift_factor: float, period: float) -> None:
    limit = Client(URL, drift_factor=drift_factor).rate_limit("n", 1, period)
    for _ in range(20):
        lock = limit._permit()
        kind = lock._hold.kind
        needed_ms = period * 1000 + kind.slack_ns / 1_000_000
        assert kind._lives_ms * (1 - drift_factor) - 2 >= needed_ms - 0.001
        # A master that has forgotten its permits is kept out for the horizon, and longer by the drift.
        assert lock._ttl_ms <= 60_000
        assert lock._ttl_ms * (1 + drift_factor) + 2 >= needed_ms - 0.001
        limit._slack_ns = max(limit._slack_ns, min(2 * kind.slack_ns, limit._longest_slack_ns()))


def test_a_permit_has_no_upkeep_even_if_the_client_reports_losses() -> None:
    client = Client(URL, on_lost=lambda lock, reason: None, guard=Guard(max_ttl=5.0), ttl=5.0)
    assert client.rate_limit("n", 1, 5.0)._permit()._upkeep is None
