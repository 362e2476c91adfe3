"""python -m tests.mutants: put each known bug into a copy of the code, and see that the simulator finds it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.catalogue import MUTANTS, Mutant
from mutants.catalogue_threads import THREADS
from mutants.farm import SEEDS, NoPlaceError, Verdict, hunt


@click.command()
@click.option("--seeds", default=SEEDS, show_default=True, help="Within how many each has to be found.")
@click.option("--jobs", default=2, show_default=True, help="How many at a time.")
@click.option("--only", default="", help="Only those whose name has this in it.")
def main(seeds: int, jobs: int, only: str) -> None:
    """Show by which seed each mutant is found; one that survives, only crashes or has no place fails the run."""
    console = Console()
    chosen = [mutant for mutant in (*MUTANTS, *THREADS) if only in mutant.name]
    table = Table("mutant", "known from", "seed", "rule")
    found = 0
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = pool.map(lambda mutant: judged(mutant, seeds), chosen)
        for verdict in track(verdicts, "mutants", len(chosen), console=console):
            found += verdict.found
            table.add_row(verdict.mutant.name, verdict.mutant.source, *shown(verdict))
    console.print(table)
    console.print(f"{found} of {len(chosen)} found")
    sys.exit(found < len(chosen))


def judged(mutant: Mutant, seeds: int) -> Verdict:
    """Hunt a mutant; one that has no place in the code any more, or ends its process, is not found."""
    try:
        return hunt(mutant, seeds)
    except NoPlaceError as error:
        return Verdict(mutant, -1, str(error))
    except RuntimeError as error:
        return Verdict(mutant, -1, "", 1, str(error))


def shown(verdict: Verdict) -> tuple[str, str]:
    """Return the seed and the rule for the table."""
    if verdict.found:
        return f"{verdict.seed:,}", verdict.rule[:60]
    if verdict.rule:
        return "[bold]NO PLACE", verdict.rule[:60]
    if verdict.crashes:
        return "[bold]CRASHED", f"{verdict.crashes} schedules: {verdict.crash}"[:60]
    return "[bold]SURVIVED", ""


if __name__ == "__main__":
    main()
