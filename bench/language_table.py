"""Print the figures of `redlatch bench --languages` as the table in docs/benchmarks.md.

    python bench/language_table.py [bench/results/languages.json]

A cell has the median of the rounds, and the ratio to redlatch as median (lowest..highest round).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results/languages.json"

# The rows of redlatch and of C have other names in the scenarios with many callers.
MANY = {"floor (C)": "limit (C)", "redlatch": "redlatch threads"}


def main(path: Path) -> None:
    """Print the table for a file of figures."""
    scenarios = json.loads(path.read_text())["scenarios"]
    print("|".join(["", " client ", *(f" {heading(each)} " for each in scenarios), ""]))
    print("|---" * (len(scenarios) + 1) + "|")
    for label in labels(scenarios):
        print("|".join(["", f" {label} ", *(f" {cell(each, label)} " for each in scenarios), ""]))


def labels(scenarios: list[dict[str, Any]]) -> list[str]:
    """Return the labels of all rows, in the order of their first scenario."""
    found: dict[str, None] = {}
    for scenario in scenarios:
        for row in scenario["rows"]:
            if "rounds" in row:
                found.setdefault({many: one for one, many in MANY.items()}.get(row["label"], row["label"]))
    return list(found)


def heading(scenario: dict[str, Any]) -> str:
    """Return the heading of a scenario, "languages-nMASTERS-CALLERS"."""
    _, masters, callers = scenario["name"].split("-")
    unit = "one caller, µs" if callers == "1" else f"{callers} callers, cycles/s"
    return f"{masters.replace('n', 'N=')}, {unit}"


def cell(scenario: dict[str, Any], label: str) -> str:
    """Return the figure and the ratio of one row; empty if the row is not in the scenario."""
    for row in scenario["rows"]:
        if row["label"] in (label, MANY.get(label)) and "rounds" in row:
            metric = "p50_us" if scenario["name"].endswith("-1") else "cycles_per_s"
            ratio = row["ratios"][scenario["headings"][0]]
            shown = f"{row[metric]:,.0f}"
            if ratio["base"]:
                return shown
            low, middle, high = (f"{ratio[key]:.2f}" for key in ("min", "median", "max"))
            return f"{shown}, {middle} x ({low}..{high})"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT)
