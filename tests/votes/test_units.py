"""The arithmetic of quorums and drift, and the interface of a clock."""

from __future__ import annotations

from types import ModuleType

import pytest

from redlatch import impl


@pytest.fixture
def units(implementation: impl.Implementation) -> ModuleType:
    return implementation.module("votes.units")


@pytest.mark.parametrize("masters", range(1, 12))
def test_a_quorum_is_the_smallest_number_of_which_any_two_share_a_master(units: ModuleType, masters: int) -> None:
    quorum = units.quorum_of(masters)
    assert 2 * quorum > masters >= 2 * (quorum - 1)


@pytest.mark.parametrize(
    ("ttl_ms", "factor", "drift_ns"),
    [(1, 0.0, 2_000_000), (10_000, 0.0, 2_000_000), (10_000, 0.01, 102_000_000), (1, 0.5, 2_500_000)],
)
def test_drift_is_a_share_of_the_ttl_and_two_milliseconds(
    units: ModuleType, ttl_ms: int, factor: float, drift_ns: int
) -> None:
    assert units.drift_ns(ttl_ms, factor) == drift_ns


def test_the_drift_of_the_longest_ttl_is_an_integer_of_nanoseconds(units: ModuleType) -> None:
    century_ms = 100 * 365 * 86_400_000
    assert units.drift_ns(century_ms, 0.25) == century_ms * 250_000 + 2_000_000


def test_unbounded_is_later_than_any_time_and_fits_into_a_c_integer(units: ModuleType) -> None:
    assert 200 * 365 * 86_400 * units.SECOND > units.UNBOUNDED > 100 * 365 * 86_400 * units.SECOND
    assert 2 * units.UNBOUNDED <= 1 << 63


def test_a_clock_must_define_how_it_reads_the_time(units: ModuleType) -> None:
    with pytest.raises(NotImplementedError):
        units.Clock().now()
