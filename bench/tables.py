"""Show a race on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

HEADINGS = {
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "cycles_per_s": "cycles/s",
    "cpu_us_per_cycle": "CPU µs",
    "spins_per_s": "spins/s",
    "bytes_per_lock": "bytes",
    "changes_per_s": "changes/s",
    "fairness": "Jain",
    "held_share": "held",
    "commands": "commands",
    "split_share": "split",
    "attempts_p50": "rounds p50",
    "attempts_p99": "rounds p99",
}

# The metrics from 0 to 1.
SHARES = ("fairness", "held_share", "split_share")


def machine_line(machine: dict[str, Any]) -> str:
    """Return one line about the machine and the versions.

    Args:
        machine: the result of `machine.machine_class`.
    """
    return (
        f"{machine['cores']} cores (load {machine['load']:.1f} before), {machine['kernel']} {machine['architecture']}, "
        f"{machine['python']}, {machine['server']}, loopback"
    )


def scenario_table(result: dict[str, Any]) -> Table | Text:
    """Return a table with one row per contender; a ratio is the median of the rounds (smallest..largest).

    Args:
        result: the result of `rounds.summary`.
    """
    if reason := result.get("absent"):
        return Text(f"{result['title']}: left out, {reason}", style="yellow")
    table = Table(title=result["title"], title_justify="left", title_style="bold", caption_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in (*(HEADINGS[metric] for metric in result["columns"]), *result["headings"]):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        if row["failure"]:
            table.add_row(row["label"], Text("failed", style="red"))
        elif row["absent"]:
            table.add_row(row["label"], Text("absent", style="yellow"))
        else:
            table.add_row(
                row["label"], *_figures(row, result["columns"], result["ranges"]), *_ratios(row, result["headings"])
            )
    # Use Text, which has no markup, because a reason may contain brackets.
    table.caption = Text("\n".join(_reasons(result)))
    return table


def _reasons(result: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each reason why contenders have no figures."""
    for word in ("failure", "absent"):
        labels: dict[str, list[str]] = {}
        for row in result["rows"]:
            if row[word]:
                labels.setdefault(row[word], []).append(row["label"].strip())
        for reason, who in labels.items():
            yield f"{word}: {'; '.join(who)}: {reason}"


def _figures(row: dict[str, Any], columns: list[str], ranges: bool) -> Iterator[str | Text]:
    for metric in columns:
        value = row.get(metric)
        if value is None:
            yield "-"
            continue
        rounds = [answer[metric] for answer in row["rounds"]]
        low, middle, high = (_figure(metric, each) for each in (min(rounds), value, max(rounds)))
        yield Text.assemble(middle, (f" ({low}..{high})", "dim")) if ranges and low != high else middle


def _figure(metric: str, value: float) -> str:
    if metric in SHARES:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratios(row: dict[str, Any], headings: list[str]) -> Iterator[str | Text]:
    for heading in headings:
        yield _ratio(row["ratios"].get(heading))


def _ratio(spread: dict[str, Any] | None) -> str | Text:
    if spread is None:
        return "-"
    if spread["base"]:
        return Text("base", style="dim")
    digits = 3 if spread["median"] < 0.1 else 2 if spread["median"] < 10 else 1
    low, middle, high = (f"{spread[key]:.{digits}f}" for key in ("min", "median", "max"))
    if low == high:
        return Text(f"{middle}x", style="bold")
    return Text.assemble((f"{middle}x", "bold"), (f" ({low}..{high})", "dim"))
