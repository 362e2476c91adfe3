"""python -m tests.sim: run many schedules, or show one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click

from redlatch import impl

from .batches import Batch, gather, watch, with_options
from .drawing import CLUSTERS, DRAWN, GUARDING, draw, draw_foreign
from .plan import Plan
from .schedule import run
from .shrink import show

# The number of seeds that one job runs.
TOGETHER = 200


def choose(name: str) -> None:
    """Use the compiled or the pure implementation from now on."""
    impl.current = impl.load(name)


def drawing(foreign: bool, theme: str = "") -> Callable[[int], Plan]:
    """Return a function that draws plans: of redlatch's locks, with the given theme if any, or of the drop-ins."""
    return draw_foreign if foreign else partial(draw, theme=theme)


def _some(first: int, last: int, foreign: bool, theme: str) -> Batch:
    """Run the schedules of some seeds."""
    return gather(last - first, map(run, map(drawing(foreign, theme), range(first, last))))


def every(
    first: int, seeds: int, jobs: int, implementation: str, foreign: bool = False, theme: str = ""
) -> Iterator[Batch]:
    """Run the schedules of many seeds, in several processes."""
    edges = [*range(first, first + seeds, TOGETHER), first + seeds]
    with ProcessPoolExecutor(jobs, initializer=choose, initargs=(implementation,)) as pool:
        yield from pool.map(_some, edges, edges[1:], itertools.repeat(foreign), itertools.repeat(theme))


@click.command()
@with_options
@click.option("--impl", "implementation", default=impl.current.name, type=click.Choice(["c", "python"]))
@click.option("--foreign/--own", default=False, help="Whether the locks are those of the drop-ins.")
@click.option(
    "--theme", default="", type=click.Choice(["", *DRAWN, *GUARDING, *CLUSTERS]), help="The theme of all schedules."
)
def main(
    seeds: int,
    first: int,
    jobs: int,
    seed: int | None,
    small: bool,
    most: int,
    implementation: str,
    foreign: bool,
    theme: str,
) -> None:
    """Simulate clients, masters and everything that can go wrong between them; seed by seed."""
    choose(implementation)

    def show_seed(seed: int) -> bool:
        return show(drawing(foreign, theme)(seed), run, small)

    if seed is not None:
        sys.exit(show_seed(seed))
    batches = every(first, seeds, jobs, implementation, foreign, theme)
    watch(f"schedules ({implementation})", seeds, jobs, batches, show_seed, most)


if __name__ == "__main__":
    main()
