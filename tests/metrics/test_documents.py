"""The dashboard, the alerts and docs/metrics.md: they name what is exported, and all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from metrics.crew import ROOT, Told, samples
from redlatch.metrics import prometheus
from redlatch.metrics.figures import LOCKS, MASTERS, REASONS
from redlatch.stats import LockStats, MasterStats

PAGE = (ROOT / "docs/metrics.md").read_text()
DASHBOARD: dict[str, Any] = json.loads(files("redlatch.metrics").joinpath("grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
(ALERTS,) = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]

# Prometheus adds these labels to what it scrapes.
OF_PROMETHEUS = {"job", "instance"}

# What stands for the variables of Grafana.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$group": ".*"}


def exported() -> dict[str, dict[str, set[str]]]:
    """Return the values of each label of each series that a client exports."""
    registry, client = CollectorRegistry(), Told(MasterStats("a", True), sku=LockStats())
    found: dict[str, dict[str, set[str]]] = {}
    with prometheus(client, registry=registry):
        for sample in samples(registry):
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return found


EXPORTED = exported()


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Return all selectors of a query."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def grouped(query: str) -> set[str]:
    """Return the labels by which a query adds up."""
    return {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(",")}


def families(queries: list[str]) -> set[str]:
    """Return the families that queries use."""
    return {re.sub(r"_(bucket|sum|count)$", "", str(each.name)) for query in queries for each in selectors(query)}


every_query = pytest.mark.parametrize("query", [*QUERIES, *[rule["expr"] for rule in RULES]])


@every_query
def test_a_query_asks_for_series_and_labels_that_are_exported(query: str) -> None:
    found = selectors(query)
    assert found
    for selector in found:
        assert selector.name in EXPORTED
        labels = EXPORTED[selector.name]
        assert grouped(query) <= set(labels) | OF_PROMETHEUS
        for matcher in selector.matchers.matchers:
            assert matcher.name in set(labels) | OF_PROMETHEUS
            if matcher.name in ("outcome", "reason"):
                assert set(matcher.value.split("|")) <= labels[matcher.name]


@every_query
def test_a_query_takes_the_rate_of_a_counter_and_the_value_of_a_gauge(query: str) -> None:
    gauges = {figure.series for figure in (*LOCKS, *MASTERS) if figure.kind == "gauge"}
    for name in {str(selector.name) for selector in selectors(query)}:
        inside = re.findall(rf"(\w+)\({name}\b", query)
        assert set(inside) <= ({"min", "max", "sum"} if name in gauges else {"rate", "increase"})
        assert bool(re.search(rf"\b(rate|increase)\({name}\b", query)) == (name not in gauges)


def test_each_family_is_on_the_dashboard() -> None:
    assert families(QUERIES) == {figure.series for figure in (*LOCKS, *MASTERS)}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_says_what_it_means(panel: dict[str, Any]) -> None:
    assert len(re.findall(r"\w\.(?: |$)", panel["description"])) >= 2
    for target in panel["targets"]:
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert shown == grouped(target["expr"]) - {"le"}


def test_the_panels_do_not_overlap_and_have_their_own_numbers() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_variables_of_the_dashboard_ask_for_what_is_exported() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "group"}
    for name in ("job", "group"):
        (series,) = re.findall(r"label_values\((\w+)", variables[name]["definition"])
        assert name in set(EXPORTED[series]) | OF_PROMETHEUS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_its_place(rule: dict[str, Any]) -> None:
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown
    assert shown <= grouped(rule["expr"])


# --- the page ------------------------------------------------------------------------------------------


def rows() -> Iterator[list[str]]:
    """Yield the cells of the rows of the tables of all figures."""
    section = PAGE.partition("\n## All figures\n")[2].partition("\n### ")[0]
    for figure, *texts in re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", section, re.MULTILINE):
        *names, last = figure.split("<br>")
        yield [name.strip("`") for name in (*names, *last.split(", "))] + texts


def expected() -> Iterator[tuple[str, str, str, str]]:
    """Yield the first cells of the rows: the attribute, both names and the unit."""
    for figures, label in ((LOCKS, "group"), (MASTERS, "master")):
        for figure in figures:
            for part, attribute in figure.parts.items():
                labels = label
                if figure.label:
                    labels += f",{figure.label}" + (f'="{part}"' if part else "")
                yield attribute, f"{figure.series}{{{labels}}}", figure.otel, figure.unit


def test_the_page_has_every_figure() -> None:
    found = list(rows())
    assert sorted((*row[:4],) for row in found) == sorted(expected())
    for row in found:
        assert len(row) == 6
        assert all(cell.endswith(".") for cell in row[4:])


def test_the_page_has_every_reason_of_a_loss() -> None:
    section = PAGE.partition("\n### Reasons of losses\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(REASONS)


def test_the_page_has_the_attributes_of_opentelemetry() -> None:
    from redlatch.metrics import meters

    section = PAGE.partition("\n## OpenTelemetry\n")[2].partition("\n## ")[0]
    for attribute in (meters.GROUP, meters.OUTCOME, meters.REASON, meters.MASTER, "error.type", "redlatch.lock.name"):
        assert f"`{attribute}`" in section
    assert f"{meters.MOST_RECORDS:,}" in section
