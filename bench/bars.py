"""Draw the race against other languages: one panel of bars for each scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.plots import saved, style

# The colours of the bars; the references are written in C.
REFERENCE, OURS, OTHERS = "#222222", "#c0392b", "#95a5a6"


def draw_bars(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all scenarios that have figures.

    Args:
        figures: the result of `run.run_race`.
        folder: the folder for languages.svg and languages.png.

    Returns:
        The paths of the files.

    Raises:
        NoPlots: matplotlib is not installed.
    """
    scenarios = [each for each in figures["scenarios"] if any("rounds" in row for row in each["rows"])]
    if not scenarios:
        return []
    with style():
        from matplotlib import pyplot

        counts = sorted({masters_of(each) for each in scenarios}, reverse=True)
        columns = [[each for each in scenarios if masters_of(each) == count] for count in counts]
        depth = max(map(len, columns))
        size = 5.4 * len(columns), 2.9 * depth
        figure, panels = pyplot.subplots(depth, len(columns), figsize=size, layout="constrained", squeeze=False)
        for number, column in enumerate(columns):
            for panel, scenario in zip(panels[:, number], column, strict=False):
                draw_panel(panel, scenario)
            for panel in panels[len(column) :, number]:
                panel.set_axis_off()
        return saved(figure, folder, "languages")


def masters_of(scenario: dict[str, Any]) -> int:
    """Return the number of masters in a scenario's name, "languages-nMASTERS-CALLERS"."""
    return int(scenario["name"].split("-")[1].removeprefix("n"))


def draw_panel(axes: Any, scenario: dict[str, Any]) -> None:
    """Draw one bar for each contender, from its median, with a line from its smallest to its largest round."""
    one = scenario["name"].endswith("-1")
    metric, unit = ("p50_us", "µs, p50 (less is better)") if one else ("cycles_per_s", "cycles/s (more is better)")
    rows = [row for row in scenario["rows"] if "rounds" in row]
    values = [row[metric] for row in rows]
    rounds = [[answer[metric] for answer in row["rounds"]] for row in rows]
    below = [value - min(each) for value, each in zip(values, rounds, strict=True)]
    above = [max(each) - value for value, each in zip(values, rounds, strict=True)]
    colours = [colour(row["contender"]) for row in rows]
    lines = {"ecolor": "#555555", "elinewidth": 0.8}
    bars = axes.barh([row["label"] for row in rows], values, xerr=[below, above], color=colours, error_kw=lines)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=7)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(scenario["title"].removeprefix("Other languages, "), fontsize=9)
    axes.set_xlabel(unit, fontsize=8)


def colour(contender: str) -> str:
    """Return the colour of a contender's bar."""
    if contender == "floor":
        return REFERENCE
    return OURS if contender.startswith("redlatch") else OTHERS
