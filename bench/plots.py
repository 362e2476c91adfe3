"""Draw a race: throughput against the number of callers, and latency against the number of masters.

Only this module and `bars` import matplotlib, and only to draw a plot. Without matplotlib the race has tables but no
plots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The label, colour and marker of each contender's line.
LOOKS = {
    "floor": ("the floor, in C", "#222222", ""),
    "redlatch-c": ("redlatch", "#c0392b", "o"),
    "redlatch-python": ("redlatch, pure Python", "#e59866", "o"),
    "redlatch-aio-c": ("redlatch, asyncio", "#8e44ad", "s"),
    "redlatch-uvloop-c": ("redlatch, uvloop", "#2471a3", "D"),
    "redlock-py": ("redlock-py", "#7f8c8d", "^"),
    "pottery-aio": ("pottery, asyncio", "#229954", "v"),
}

Line = list[tuple[int, dict[str, Any]]]


class NoPlots(Exception):
    """matplotlib cannot be imported; the message gives the reason in one line."""


@dataclass(frozen=True)
class Picture:
    """One plot.

    Args:
        name: the name of its files, without the suffix.
        title, across, up: the texts of its title, its x axis and its y axis.
        metric: the metric to draw.
        lines: {contender: [(x, row), ...]}.
    """

    name: str
    title: str
    across: str
    up: str
    metric: str
    lines: dict[str, Line]


def draw(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the plots for which the race has figures.

    Args:
        figures: the result of `run.run_race`.
        folder: the folder for throughput.svg, throughput.png, latency.svg and latency.png.

    Returns:
        The paths of the files.

    Raises:
        NoPlots: matplotlib is not installed.
    """
    with style():
        return [path for each in pictures(figures) if each.lines for path in save(each, folder)]


@contextmanager
def style() -> Iterator[None]:
    """Give all plots one style.

    Raises:
        NoPlots: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise NoPlots("matplotlib is not installed (pip install 'redlatch[bench]')") from error
    # Draw to files only, even if there is a display.
    matplotlib.use("Agg")
    settings = {"svg.hashsalt": "redlatch", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    settings |= {"axes.grid": True, "grid.color": "#e5e5e5"}
    with matplotlib.rc_context(settings):
        yield


def pictures(figures: dict[str, Any]) -> tuple[Picture, ...]:
    """Return both plots, with all lines for which the race has figures."""
    return (
        Picture(
            "throughput",
            f"Throughput on {figures['masters']} masters, bars from the slowest to the fastest round",
            "callers at once, each on its own names",
            "cycles (acquire + release) per second",
            "cycles_per_s",
            throughput_lines(figures),
        ),
        Picture(
            "latency",
            "One caller, bars from the fastest to the slowest round",
            "masters",
            "one cycle (acquire + release), p50, µs",
            "p50_us",
            latency_lines(figures),
        ),
    )


def throughput_lines(figures: dict[str, Any]) -> dict[str, Line]:
    """Return {contender: [(callers, row), ...]}."""
    lines: dict[str, Line] = {}
    for scenario in figures["scenarios"]:
        if scenario["name"].startswith("callers-n"):
            for row in scenario["rows"]:
                if "rounds" in row:
                    lines.setdefault(row["contender"], []).append((row["width"], row))
    return {contender: line for contender, line in lines.items() if len(line) > 1}


def latency_lines(figures: dict[str, Any]) -> dict[str, Line]:
    """Return {contender: [(masters, row), ...]} for the contenders that raced on several numbers of masters."""
    lines: dict[str, Line] = {}
    for scenario in figures["scenarios"]:
        before, found, count = scenario["name"].partition("cycle-n")
        if found and not before:
            for row in scenario["rows"]:
                if "rounds" in row and row["contender"] in LOOKS:
                    lines.setdefault(row["contender"], []).append((int(count), row))
    return {contender: sorted(line, key=lambda point: point[0]) for contender, line in lines.items() if len(line) > 1}


def save(picture: Picture, folder: Path) -> list[Path]:
    """Draw one picture and save it as SVG and as PNG."""
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for contender, line in picture.lines.items():
        draw_line(axes, contender, line, picture.metric)
    places = sorted({where for line in picture.lines.values() for where, _ in line})
    if picture.name == "throughput":
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [str(where) for where in places])
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel=picture.across, ylabel=picture.up, title=picture.title)
    axes.legend(fontsize=8, frameon=False)
    return saved(figure, folder, picture.name)


def saved(figure: Any, folder: Path, name: str) -> list[Path]:
    """Save a drawn figure as SVG and as PNG, and close it."""
    from matplotlib import pyplot

    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    # Without the date, the same figures give the same file.
    figure.savefig(files[0], metadata={"Date": None})
    figure.savefig(files[1], dpi=160)
    pyplot.close(figure)
    return files


def draw_line(axes: Any, contender: str, line: Line, metric: str) -> None:
    """Draw one contender's line, with bars from its smallest to its largest round; the floor's line is dashed."""
    label, colour, marker = LOOKS[contender]
    middle = [row[metric] for _, row in line]
    rounds = [[answer[metric] for answer in row["rounds"]] for _, row in line]
    below = [value - min(each) for value, each in zip(middle, rounds, strict=True)]
    above = [max(each) - value for value, each in zip(middle, rounds, strict=True)]
    axes.errorbar(
        [where for where, _ in line],
        middle,
        yerr=[below, above],
        label=label,
        color=colour,
        marker=marker,
        markersize=4,
        linestyle="--" if contender == "floor" else "-",
        linewidth=1.4,
        elinewidth=0.8,
    )
