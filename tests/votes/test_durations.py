"""The buckets of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import impl
from redlatch.stats import BUCKETS, Histogram


def durations(implementation: impl.Implementation, *given_ns: int) -> Histogram:
    counted = implementation.module("votes.durations").Durations()
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
