"""Show a race on the terminal."""

from rich.table import Table
from rich.text import Text


def machine_line(machine):
    """Return one line on what the figures were measured on.

    Args:
        machine: what `race.machine_class` found.
    """
    return (
        f"{machine['cores']} cores (load {machine['load']:.1f} before), {machine['kernel']} {machine['architecture']}, "
        f"{machine['python']}, {machine['server']}, loopback TCP"
    )


def scenario_table(result):
    """Return a table with one row per contender; a ratio is the median of the rounds (smallest..largest).

    Args:
        result: what `rounds.summary` returned.
    """
    table = Table(title=result["title"], title_justify="left", title_style="bold", caption_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("p50 µs", "p99 µs", "cycles/s", "CPU µs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in result["headings"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        if row["failure"]:
            table.add_row(row["label"], Text("failed", style="red"))
        else:
            table.add_row(row["label"], *_figures(row), *(_ratio(row["ratios"].get(h)) for h in result["headings"]))
    table.caption = "\n".join(f"{row['label']} failed: {row['failure']}" for row in result["rows"] if row["failure"])
    return table


def _figures(row):
    yield _short(row["p50_us"])
    yield _short(row["p99_us"])
    yield f"{row['cycles_per_s']:,.0f}"
    yield _short(row["cpu_us_per_cycle"])


def _short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(spread):
    if spread is None:
        return "-"
    if spread["min"] == spread["max"] == 1:
        return Text("base", style="dim")
    digits = 3 if spread["median"] < 0.1 else 2 if spread["median"] < 10 else 1
    low, middle, high = (f"{spread[key]:.{digits}f}" for key in ("min", "median", "max"))
    return Text.assemble((f"{middle}x", "bold"), (f" ({low}..{high})", "dim"))
