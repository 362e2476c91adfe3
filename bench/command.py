"""The command line of `python -m bench`: its options, its output, its files and its exit status."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.bars import draw_bars
from bench.plots import NoPlots, draw
from bench.run import NoSuchScenario, Settings, run_race
from bench.tables import machine_line, scenario_table
from redlatch.errors import ConfigurationError

# The number of columns when the output is not a terminal.
WIDTH = 140

# The exit status that shells report for a program ended by Ctrl-C.
INTERRUPTED = 130


class Display:
    """Shows the tables on stdout, and the progress on stderr."""

    def __init__(self) -> None:
        self.console = Console()
        if not self.console.is_terminal:
            self.console.width = WIDTH
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task: TaskID | None = None

    def start(self, turns: int) -> None:
        """Show a progress bar for this number of turns."""
        self._task = self.bar.add_task("starting masters", total=turns)

    def progress(self, what: str, turns: int) -> None:
        """Show the name of the last turns, and move the bar by their number."""
        if self._task is not None:
            self.bar.update(self._task, advance=turns, description=what)

    def announce(self, news: dict[str, Any]) -> None:
        """Show the machine, a note, or the figures of a scenario."""
        if "note" in news:
            self.console.print(news["note"], highlight=False, markup=False)
        elif "machine" in news:
            self.console.print(machine_line(news["machine"]), highlight=False, markup=False)
        else:
            self.console.print(scenario_table(news))


@click.command()
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: under 90 seconds in all.")
@click.option(
    "--masters", type=click.IntRange(min=3, max=32), default=5, show_default=True, help="Masters in the quorum."
)
@click.option("--only", metavar="NAME", default="", help="Run only the scenarios whose name contains NAME.")
@click.option("--languages", is_flag=True, help="Race against lock clients of Rust, Go, Node and Java.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the figures and the plots. Default: bench/results, or build/bench with --quick or --only.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to this file."
)
def bench(quick: bool, masters: int, only: str, languages: bool, results: Path | None, json_file: Path | None) -> None:
    """Race redlatch, its peers and the physical floor.

    All run on real masters that the race starts on loopback, in interleaved rounds. The tables show the median of the
    rounds, and each ratio with its smallest and largest round. The race takes seven minutes. Peers that are not
    installed are listed and left out; `make bench` installs them. With --languages, the peers are the
    clients of other languages instead: it builds a program for each language whose toolchain is here. The exit status
    is 1 if a contender failed.
    """
    settings = Settings(masters, quick, only, languages)
    display = Display()
    begin = time.monotonic()
    # Handle SIGTERM like Ctrl-C, so that it leaves no process and no file either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with display.bar:
            display.start(sum(scenario.turns for scenario in settings.scenarios()))
            figures = run_race(settings, display.progress, display.announce)
    except NoSuchScenario as error:
        raise click.BadParameter(str(error), param_hint="--only") from error
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("Stopped; no process is left, and no file was written.", err=True)
        sys.exit(INTERRUPTED)
    write(figures, results or Path("build/bench" if quick or only else "bench/results"), json_file, display.console)
    display.console.print(f"{time.monotonic() - begin:.0f} s in all", highlight=False, markup=False)
    sys.exit(any(row["failure"] for scenario in figures["scenarios"] for row in scenario["rows"]))


def write(figures: dict[str, Any], results: Path, json_file: Path | None, console: Console) -> None:
    """Write latest.json or languages.json and the plots, and print their names."""
    results.mkdir(parents=True, exist_ok=True)
    name, draw_all = ("languages.json", draw_bars) if "footnotes" in figures else ("latest.json", draw)
    files = [results / name, *([json_file] if json_file else [])]
    for path in files:
        path.write_text(json.dumps(figures, indent=1) + "\n")
    try:
        files += draw_all(figures, results)
    except NoPlots as reason:
        console.print(f"No plots: {reason}.", highlight=False, markup=False)
    console.print(f"Written: {', '.join(map(str, files))}", highlight=False, markup=False)
