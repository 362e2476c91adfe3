"""Runs schedules in child processes; this module imports nothing of the package."""

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
TOGETHER = 100  # seeds that are told of at a time
ANY = "any"  # theme


@dataclass(frozen=True)
class Batch:
    """What came of some schedules.

    Attributes:
        schedules, grants, points, switches: their sums.
        digest: of all their histories.
        wrong: (seed, rule) of those that broke one.
    """

    schedules: int
    grants: int
    points: int
    switches: int
    digest: str
    wrong: list[tuple[int, str]]


def stream(first: int, seeds: int, package: Path, stop: bool = False, theme: str = ANY) -> Iterator[Batch]:
    """Run the schedules of many seeds in one process, and tell of each batch as it is done.

    Args:
        package: the folder that holds the package redlatch.
        stop: whether it ends with the first schedule that breaks a rule.
        theme: the schedules that are run, see `plan.THEMES`; the others are left out.

    Raises:
        RuntimeError: the process has failed.
    """
    command = [str(Path(__file__).with_name("child.py")), str(first), str(first + seeds), str(TOGETHER), theme]
    with subprocess.Popen(
        [sys.executable, *command, *["stop"] * stop],
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
    """Run them in several processes."""
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
