"""Many schedules: what they add up to, and how `python -m` shows their progress. Imports nothing from redlatch."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .outcome import Outcome, Patch

OPTIONS = (
    click.option("--seeds", default=1000, show_default=True, help="How many schedules."),
    click.option("--first", default=0, show_default=True, help="The first seed."),
    click.option("--jobs", default=2, show_default=True, help="In how many processes."),
    click.option("--seed", default=None, type=int, help="Show all that happens in one schedule."),
    click.option("--small/--whole", default=True, help="Whether to shrink a failing schedule before showing it."),
    click.option("--most", default=1, show_default=True, help="How many failing schedules to show."),
)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that tasks and threads share."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Batch:
    """The results of some schedules.

    Attributes:
        schedules, grants: totals.
        counts: more totals, by name.
        digest: a hash of all their histories.
        wrong: (seed, rule) for each schedule that broke a rule.
        crashed: the same for each schedule in which a mutant crashed; these are not in `wrong`.
    """

    schedules: int
    grants: int
    counts: dict[str, int]
    digest: str
    wrong: list[tuple[int, str]]
    crashed: list[tuple[int, str]]


def gather(schedules: int, results: Iterable[Outcome], mutant: Patch | None = None, stop: bool = False) -> Batch:
    """Add the results of some schedules up.

    Args:
        schedules: how many seeds they are of.
        mutant: the lines of a mutant, if there is one.
        stop: whether to end at the first schedule that breaks a rule.
    """
    grants, counts, digest = 0, Counter[str](), blake2b(digest_size=8)
    wrong, crashed = [], []
    for result in results:
        grants += result.grants
        counts.update(result.counts)
        digest.update(result.digest.encode())
        if mutant is not None and (crash := result.crash(mutant)):
            crashed.append((result.seed, crash))
        elif result.wrong:
            wrong.append((result.seed, result.wrong[0]))
            if stop:
                break
    return Batch(schedules, grants, dict(counts), digest.hexdigest(), wrong, crashed)


def watch(what: str, seeds: int, jobs: int, batches: Iterable[Batch], show: Callable[[int], Any], most: int) -> None:
    """Show the progress of schedules, and some of those that broke a rule; then exit.

    Args:
        what: what they are schedules of.
        show: shows the schedule of a seed.
        most: how many are shown.
    """
    console, began = Console(highlight=False), time.monotonic()
    failed: list[tuple[int, str]] = []
    done, counts = 0, Counter[str]()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(what, total=seeds)
        for batch in batches:
            done += batch.schedules
            counts.update({"locks had": batch.grants} | batch.counts)
            failed += batch.wrong
            progress.update(bar, completed=done, description=f"{what}, {len(failed)} wrong")
    seconds = time.monotonic() - began
    totals = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    rate = f"({done / seconds / jobs:.0f} a second and core)"
    console.print(f"{done:,} schedules, {totals} in {seconds:.0f} s {rate}: {len(failed)} broke a rule")
    failed.sort()
    for seed, rule in failed[:20]:
        console.print(f"  seed {seed}: {rule}", markup=False, soft_wrap=True)
    for seed, _ in failed[:most]:
        show(seed)
    sys.exit(bool(failed))
