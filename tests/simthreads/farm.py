"""Runs schedules in child processes, and therefore imports nothing from redlatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sim.batches import Batch

TESTS = Path(__file__).parents[1]
TOGETHER = 100  # seeds in one batch
ANY = "any"  # theme


def child(package: Path, *args: object) -> subprocess.Popen[str]:
    """Start `child.py` with arguments."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("child.py")), *map(str, args)],
        env=os.environ | {"PYTHONPATH": f"{package}{os.pathsep}{TESTS}", "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )


def show(package: Path, small: bool, seed: int) -> int:
    """Print a schedule and the rules that it breaks; return 1 if it breaks any, else 0."""
    with child(package, seed, "show", *["small"] * small) as shown:
        assert shown.stdout is not None
        for line in shown.stdout:
            print(line, end="")
    return shown.returncode


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
    flags = [*["stop"] * stop, *[mutant] * bool(mutant)]
    with child(package, first, first + seeds, TOGETHER, theme, *flags) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                yield Batch(**json.loads(line))
        except GeneratorExit:
            running.kill()
            raise
    if running.returncode:
        raise RuntimeError(f"seeds {first} to {first + seeds - 1}: the process that ran them gave {running.returncode}")


def every(first: int, seeds: int, jobs: int, package: Path) -> Iterator[Batch]:
    """Run the schedules of many seeds in several processes, a few for each job."""
    edges = [*range(first, first + seeds, max(TOGETHER, seeds // (4 * jobs))), first + seeds]
    with ThreadPoolExecutor(jobs) as pool:
        for batches in pool.map(lambda begin, end: [*stream(begin, end - begin, package)], edges, edges[1:]):
            yield from batches
