"""The list of figures: it has every field of the dataclasses, under names that follow the conventions."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from metrics.crew import durations
from redlatch.metrics.figures import ERRORS, LOCKS, MASTERS, REASONS, Figure, cumulated
from redlatch.stats import Histogram, LockStats, MasterStats

FIGURES = [*LOCKS, *MASTERS]
every_figure = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.prometheus)


@pytest.mark.parametrize(("figures", "stats"), [(LOCKS, LockStats), (MASTERS, MasterStats)])
def test_every_figure_of_a_client_is_exported_once(figures: tuple[Figure, ...], stats: type) -> None:
    exported = sorted(attribute for figure in figures for attribute in figure.parts.values())
    assert exported == sorted({field.name for field in fields(stats)} - {"address"})


@every_figure
def test_a_name_follows_the_conventions(figure: Figure) -> None:
    assert re.fullmatch(r"redlatch(_[a-z]+)+", figure.prometheus)
    assert re.fullmatch(r"redlatch(\.[a-z_]+){2,}", figure.otel)
    # A base unit ends the name, and the ending of a counter is not part of it.
    assert figure.prometheus.endswith("_seconds") == (figure.unit == "s")
    assert not figure.prometheus.endswith("_total")
    assert figure.series.endswith("_total") == (figure.kind == "counter")


def test_no_name_is_used_twice() -> None:
    assert len({figure.prometheus for figure in FIGURES}) == len({figure.otel for figure in FIGURES}) == len(FIGURES)


@every_figure
def test_a_label_tells_parts_apart(figure: Figure) -> None:
    assert bool(figure.label) == (len(figure.parts) > 1 or figure.parts == {"": "lost"})


@every_figure
def test_exported_bounds_are_bounds_of_buckets(figure: Figure) -> None:
    assert bool(figure.bounds) == (figure.kind == "histogram")
    assert set(figure.bounds) < set(Histogram.BOUNDS)


def test_each_outcome_but_success_has_an_error() -> None:
    (acquires,) = [figure for figure in FIGURES if figure.otel == "redlatch.lock.acquire.count"]
    assert set(ERRORS) == set(acquires.parts) - {"acquired"}


def test_a_reason_that_is_new_is_exported_too() -> None:
    (lost,) = [figure for figure in FIGURES if figure.label == "reason"]
    values = dict(lost.values(LockStats(lost={"expired": 2, "eaten": 1})))
    assert values == dict.fromkeys(REASONS, 0) | {"expired": 2, "eaten": 1}


def test_counts_of_buckets_beyond_exported_bounds_are_added_up() -> None:
    figure = next(figure for figure in FIGURES if figure.bounds)
    histogram = durations(1.0, at0=1, at6=2, at7=4, at26=8, at27=16, at39=32)
    counts = cumulated(figure, histogram)
    assert (figure.bounds[0], figure.bounds[1], figure.bounds[-1]) == (64e-6, 128e-6, 67.108864)
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (3, 7, 15, 63)
