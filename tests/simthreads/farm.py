"""Runs schedules in child processes, and therefore imports nothing from redlatch."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
TOGETHER = 100  # seeds in one batch
ANY = "any"  # theme


@dataclass(frozen=True)
class Batch:
    """The results of some schedules.

    Attributes:
        schedules, grants, points, switches: totals.
        digest: a hash of all their histories.
        wrong: (seed, rule) for each schedule that broke a rule.
        crashed: the same for each schedule in which the package crashed, if these are not in `wrong`.
    """

    schedules: int
    grants: int
    points: int
    switches: int
    digest: str
    wrong: list[tuple[int, str]]
    crashed: list[tuple[int, str]]


def stream(
    first: int, seeds: int, package: Path, stop: bool = False, theme: str = ANY, mutant: str = ""
) -> Iterator[Batch]:
    """Run the schedules of many seeds in one process, and yield each batch when it is done.

    Args:
        package: the folder that holds the package redlatch.
        stop: whether to end at the first schedule that breaks a rule.
        theme: one of `drawing.THEMES` or `drawing.LATER` to run only its schedules, or `ANY`.
        mutant: the lines that are those of a mutant, as FILE:FIRST:LAST. A schedule in which it crashes breaks no rule.

    Raises:
        RuntimeError: the process failed.
    """
    command = [str(Path(__file__).with_name("child.py")), str(first), str(first + seeds), str(TOGETHER), theme]
    with subprocess.Popen(
        [sys.executable, *command, *["stop"] * stop, *[mutant] * bool(mutant)],
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{TESTS}", "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield Batch(*json.loads(line))
        except GeneratorExit:
            child.kill()
            raise
    if child.returncode:
        raise RuntimeError(f"seeds {first} to {first + seeds - 1}: the process that ran them gave {child.returncode}")


def every(first: int, seeds: int, jobs: int, package: Path) -> Iterator[Batch]:
    """Run the schedules of many seeds in several processes."""
    done: queue.Queue[Batch | Exception | None] = queue.Queue()

    def work(begin: int, end: int) -> None:
        try:
            for batch in stream(begin, end - begin, package):
                done.put(batch)
        except Exception as error:
            done.put(error)
        done.put(None)

    edges = [first + seeds * job // jobs for job in range(jobs + 1)]
    for begin, end in itertools.pairwise(edges):
        threading.Thread(target=work, args=(begin, end), daemon=True).start()
    while jobs:
        batch = done.get()
        if isinstance(batch, Exception):
            raise batch
        if batch is None:
            jobs -= 1
        else:
            yield batch
