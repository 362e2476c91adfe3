"""python -m tests.sim: run many schedules, or show one."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from redlatch import impl

from .drawing import DRAWN, GUARDING, draw, draw_foreign
from .plan import Plan
from .schedule import Result, run
from .shrink import shrink

# The number of seeds that one job runs.
TOGETHER = 200


def choose(name: str) -> None:
    """Use the compiled or the pure implementation from now on."""
    impl.current = impl.load(name)


def drawing(foreign: bool, theme: str = "") -> Callable[[int], Plan]:
    """Return a function that draws plans: of redlatch's locks, with the given theme if any, or of the drop-ins."""
    return draw_foreign if foreign else partial(draw, theme=theme)


def _some(first: int, last: int, foreign: bool, theme: str) -> tuple[int, int, int, list[Result]]:
    """Run the schedules of some seeds; return their number, grants and steps, and the results that broke a rule."""
    drawn = drawing(foreign, theme)
    wrong, grants, steps = [], 0, 0
    for seed in range(first, last):
        result = run(drawn(seed))
        grants += result.grants
        steps += result.steps
        if result.wrong:
            wrong.append(result)
    return last - first, grants, steps, wrong


def every(
    first: int, seeds: int, jobs: int, implementation: str, foreign: bool = False, theme: str = ""
) -> Iterator[tuple[int, int, int, list[Result]]]:
    """Run the schedules of many seeds, in several processes."""
    edges = [*range(first, first + seeds, TOGETHER), first + seeds]
    with ProcessPoolExecutor(jobs, initializer=choose, initargs=(implementation,)) as pool:
        yield from pool.map(_some, edges, edges[1:], itertools.repeat(foreign), itertools.repeat(theme))


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many schedules.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--jobs", default=2, show_default=True, help="In how many processes.")
@click.option("--impl", "implementation", default=impl.current.name, type=click.Choice(["c", "python"]))
@click.option("--seed", default=None, type=int, help="Show all that happens in one schedule.")
@click.option("--small/--whole", default=True, help="Whether a schedule that fails is made small before it is shown.")
@click.option("--foreign/--own", default=False, help="Whether the locks are those of the drop-ins.")
@click.option("--theme", default="", type=click.Choice(["", *DRAWN, *GUARDING]), help="The theme of all schedules.")
@click.option("--most", default=1, show_default=True, help="How many of those that fail are shown.")
def main(
    seeds: int,
    first: int,
    jobs: int,
    implementation: str,
    seed: int | None,
    small: bool,
    foreign: bool,
    theme: str,
    most: int,
) -> None:
    """Simulate clients, masters and everything that can go wrong between them; seed by seed."""
    console = Console(highlight=False)
    choose(implementation)
    if seed is not None:
        sys.exit(show(console, drawing(foreign, theme)(seed), small))
    began = time.monotonic()
    failed: list[Result] = []
    done = grants = steps = 0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"schedules ({implementation})", total=seeds)
        for number, held, stepped, wrong in every(first, seeds, jobs, implementation, foreign, theme):
            done, grants, steps = done + number, grants + held, steps + stepped
            failed += wrong
            progress.update(bar, completed=done, description=f"schedules ({implementation}), {len(failed)} wrong")
    seconds = time.monotonic() - began
    console.print(
        f"{done:,} schedules, {grants:,} locks had, {steps:,} events in {seconds:.0f} s "
        f"({done / seconds / jobs:.0f} a second and core): {len(failed)} broke a rule"
    )
    for result in failed[:20]:
        console.print(f"  seed {result.seed}: {result.wrong[0]}", markup=False)
    for result in failed[:most]:
        show(console, drawing(foreign, theme)(result.seed), small)
    sys.exit(bool(failed))


def show(console: Console, plan: Plan, small: bool) -> int:
    """Print a schedule and the rules that it broke; return 1 if it broke one, else 0."""
    if small:
        plan = shrink(plan, run)
    result = run(plan, tracing=True)
    console.print(f"seed {plan.seed}, {len(plan.masters)} masters, {'trusty' if plan.trusty else 'not trusty'}")
    for client, actions in plan.tasks:
        for action in actions:
            console.print(f"  client {client}: {action}", markup=False)
    for fault in plan.faults:
        console.print(f"  {fault}", markup=False)
    for line in result.trace:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{result.steps} events, digest {result.digest}")
    for wrong in result.wrong:
        console.print(f"WRONG: {wrong}", markup=False, soft_wrap=True)
    return int(bool(result.wrong))


if __name__ == "__main__":
    main()
