"""Print the figures of `python -m bench --languages` as the tables in docs/benchmarks.md.

    python bench/language_table.py [bench/results/languages.json]

A cell has the median of the rounds, and the ratio to redlatch as median (lowest..highest round).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results/languages.json"

# The rows that have another name in the scenarios with many callers.
MANY = {"floor (C)": "limit (C)", "redlatch": "redlatch threads", "Redisson": "Redisson, threads"}


def main(path: Path) -> None:
    """Print a table for each number of masters in a file of figures, and the footnotes."""
    figures = json.loads(path.read_text())
    scenarios = figures["scenarios"]
    for masters in dict.fromkeys(each["name"].split("-")[1] for each in scenarios):
        some = [each for each in scenarios if each["name"].split("-")[1] == masters]
        print("|".join(["", f" {masters.replace('n', 'N=')} ", *(f" {heading(each)} " for each in some), ""]))
        print("|---" * (len(some) + 1) + "|")
        for label in labels(some):
            print("|".join(["", f" {label} ", *(f" {cell(each, label)} " for each in some), ""]))
        print()
    print("| client | |\n|---|---|")
    for client, words in figures["footnotes"].items():
        print(f"| {client} | {words} |")


def labels(scenarios: list[dict[str, Any]]) -> list[str]:
    """Return the labels of all rows, in the order of the scenario with most rows."""
    found: dict[str, None] = {}
    for scenario in sorted(scenarios, key=lambda each: len(each["rows"]), reverse=True):
        for row in scenario["rows"]:
            if "rounds" in row:
                found.setdefault({many: one for one, many in MANY.items()}.get(row["label"], row["label"]))
    return list(found)


def heading(scenario: dict[str, Any]) -> str:
    """Return the heading of a scenario, "languages-nMASTERS-CALLERS"."""
    callers = scenario["name"].split("-")[2]
    return "one caller, p50 in µs" if callers == "1" else f"{callers} callers, cycles/s"


def cell(scenario: dict[str, Any], label: str) -> str:
    """Return the figure and the ratio of one row; empty if the row is not in the scenario."""
    for row in scenario["rows"]:
        if row["label"] in (label, MANY.get(label)) and "rounds" in row:
            metric = "p50_us" if scenario["name"].endswith("-1") else "cycles_per_s"
            ratio = row["ratios"][scenario["headings"][0]]
            shown = f"{row[metric]:,.0f}"
            if ratio["base"]:
                return shown
            digits = 3 if ratio["median"] < 0.1 else 2
            low, middle, high = (f"{ratio[key]:.{digits}f}" for key in ("min", "median", "max"))
            return f"{shown}, {middle} x ({low}..{high})"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT)
