"""python -m tests.simthreads: run many schedules of threads, or show one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .farm import TESTS, every

SOURCE = TESTS.parent / "src"


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many schedules.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--jobs", default=2, show_default=True, help="In how many processes.")
@click.option("--impl", default="python", show_default=True, type=click.Choice(["python"]), help="Only the pure build.")
@click.option("--seed", default=None, type=int, help="Show all that happens in one schedule.")
@click.option("--small/--whole", default=True, help="Whether to shrink a failing schedule before showing it.")
@click.option("--package", default=SOURCE, type=click.Path(path_type=Path), help="The folder that holds the package.")
@click.option("--most", default=1, show_default=True, help="How many failing schedules to show.")
def main(seeds: int, first: int, jobs: int, impl: str, seed: int | None, small: bool, package: Path, most: int) -> None:
    """Simulate threads that share a client: the seed decides which one runs, and where it is preempted."""
    console = Console(highlight=False)
    if seed is not None:
        sys.exit(show(seed, small, package))
    began = time.monotonic()
    failed: list[tuple[int, str]] = []
    done = grants = points = switches = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"schedules of threads ({impl})", total=seeds)
        for batch in every(first, seeds, jobs, package):
            done, grants = done + batch.schedules, grants + batch.grants
            points, switches = points + batch.points, switches + batch.switches
            failed += batch.wrong
            progress.update(bar, completed=done, description=f"schedules of threads ({impl}), {len(failed)} wrong")
    seconds = time.monotonic() - began
    console.print(
        f"{done:,} schedules, {grants:,} locks had, {switches:,} switches at {points:,} points in {seconds:.0f} s "
        f"({done / seconds / jobs:.0f} a second and core): {len(failed)} broke a rule"
    )
    failed.sort()
    for number, rule in failed[:20]:
        console.print(f"  seed {number}: {rule}", markup=False, soft_wrap=True)
    for number, _ in failed[:most]:
        show(number, small, package)
    sys.exit(bool(failed))


def show(seed: int, small: bool, package: Path) -> int:
    """Print a schedule and the rules that it broke; runs a child process."""
    command = [sys.executable, str(Path(__file__).with_name("child.py")), str(seed), "show", *["small"] * small]
    environment = os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{TESTS}", "PYTHONHASHSEED": "0"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
