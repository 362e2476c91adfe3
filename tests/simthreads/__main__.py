"""python -m tests.simthreads: run many schedules of threads, or show one. Only the pure build can be simulated."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim.batches import watch, with_options

from simthreads.farm import TESTS, every, show

SOURCE = TESTS.parent / "src"


@click.command()
@with_options
@click.option("--package", default=SOURCE, type=click.Path(path_type=Path), help="The folder that holds the package.")
def main(seeds: int, first: int, jobs: int, seed: int | None, small: bool, most: int, package: Path) -> None:
    """Simulate threads that share a client: the seed decides which one runs, and where it is preempted."""
    if seed is not None:
        sys.exit(show(package, small, seed))
    batches = every(first, seeds, jobs, package)
    watch("schedules of threads", seeds, jobs, batches, partial(show, package, small), most)


if __name__ == "__main__":
    main()
