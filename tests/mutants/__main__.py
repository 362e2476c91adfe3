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

from mutants.catalogue import MUTANTS
from mutants.catalogue_threads import THREADS
from mutants.farm import SEEDS, hunt


@click.command()
@click.option("--seeds", default=SEEDS, show_default=True, help="Within how many each has to be found.")
@click.option("--jobs", default=2, show_default=True, help="How many at a time.")
@click.option("--only", default="", help="Only those whose name has this in it.")
def main(seeds: int, jobs: int, only: str) -> None:
    """Show by which seed each mutant is found; one that survives fails the run."""
    console = Console()
    chosen = [mutant for mutant in (*MUTANTS, *THREADS) if only in mutant.name]
    table = Table("mutant", "known from", "seed", "rule")
    survived = 0
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = pool.map(lambda mutant: hunt(mutant, seeds), chosen)
        for verdict in track(verdicts, "mutants", len(chosen), console=console):
            survived += verdict.seed < 0
            seed = f"{verdict.seed:,}" if verdict.seed >= 0 else "[bold]SURVIVED"
            table.add_row(verdict.mutant.name, verdict.mutant.source, seed, verdict.rule[:60])
    console.print(table)
    console.print(f"{len(chosen) - survived} of {len(chosen)} found")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
