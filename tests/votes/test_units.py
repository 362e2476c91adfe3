"""The arithmetic of quorums and drift, and the buckets of durations."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl
from redlatch.stats import BUCKETS, Histogram


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


# --- durations ---------------------------------------------------------------------------------------


def durations(implementation: impl.Implementation, *given_ns: int) -> Histogram:
    counted = implementation.module("votes.units").Durations()
    for duration_ns in given_ns:
        counted.count(duration_ns)
    histogram: Histogram = counted.histogram()
    return histogram


@given(duration_ns=st.integers(0, 2**62))
def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(
    build: impl.Implementation, duration_ns: int
) -> None:
    [place] = [place for place, count in enumerate(durations(build, duration_ns).counts) if count]
    # In integers: a double has too few digits for the last buckets.
    bounds = [1000 << number for number in range(BUCKETS - 1)]
    assert place == len([bound for bound in bounds if bound < duration_ns])


@pytest.mark.parametrize(("duration_ns", "bound"), [(1_000, 1e-6), (1_001, 2e-6), (128_000, 128e-6), (128_001, 256e-6)])
def test_the_bounds_belong_to_their_buckets(
    implementation: impl.Implementation, duration_ns: int, bound: float
) -> None:
    assert durations(implementation, duration_ns).quantile(1.0) == bound


def test_all_durations_are_summed(implementation: impl.Implementation) -> None:
    histogram = durations(implementation, 1_000_000, 2_000_000, 2_000_000)
    assert (histogram.count, histogram.sum) == (3, 0.005)
    assert histogram.mean == pytest.approx(0.005 / 3)


def test_a_clock_that_goes_back_does_no_harm(implementation: impl.Implementation) -> None:
    assert durations(implementation, -5).counts[0] == 1
