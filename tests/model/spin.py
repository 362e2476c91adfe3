"""Runs a model of SPIN (https://spinroot.com), which searches all that can happen; Debian: apt install spin.

Run a test with `-s` to see the number of states, and a schedule for each mistake. `make test-all` adds the long
searches.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_spin = pytest.mark.skipif(shutil.which("spin") is None, reason="there is no spin here (Debian: apt install spin)")
full = pytest.mark.slow("a search of minutes")

# The models need some hundred steps; SPIN stops at this depth, and says so.
DEPTH = 1_000_000
MEGABYTES = 8000


@dataclass
class Found:
    """What a search has found.

    Attributes:
        states: how many states were visited.
        schedule: the steps to the first state that breaks an invariant; empty if there is none.
    """

    states: int
    schedule: list[str]


def search(model: str, folder: Path, *definitions: str) -> Found:
    """Search a model in all its states, or to the first error, and print what was found.

    Args:
        model: the name of its file, beside this one.
        folder: an empty folder for what SPIN and the compiler write.
        definitions: of the preprocessor: "NAME" or "NAME=value".

    Raises:
        RuntimeError: a program failed, or the search was not exhaustive; the message has what was printed.
    """
    shutil.copy(Path(__file__).with_name(model), folder)
    options = [f"-D{definition}" for definition in definitions]
    _run(folder, "spin", "-a", *options, model)
    # The state of these models is small: COLLAPSE would make the search slower by half and save no memory.
    limits = ["-DSAFETY", f"-DMEMLIM={MEGABYTES}"]
    _run(folder, "gcc", "-O1", "-w", *limits, "-o", "pan", "pan.c")
    printed = _run(folder, "./pan", f"-m{DEPTH}")
    errors, states = (int(_number(pattern, printed)) for pattern in (r"errors: (\d+)", r"(\d+) states, stored"))
    schedule: list[str] = []
    if errors:
        # What the model prints, and then the state. SPIN warns first when the model is as old as the trail in seconds.
        steps = _run(folder, "spin", "-t", *options, model)
        printed_by_model = steps.partition("spin: trail ends")[0].splitlines()
        schedule = [line.strip() for line in printed_by_model if not line.startswith("spin: ")]
        if not schedule:
            raise RuntimeError(steps)
    elif "max search depth too small" in printed or "Search not completed" in printed:
        raise RuntimeError(printed)
    print(f"\n{definitions}: {states:,} states", *schedule, sep="\n  ")
    return Found(states, schedule)


def _number(pattern: str, printed: str) -> str:
    found = re.search(pattern, printed)
    if found is None:
        raise RuntimeError(printed)
    return found[1]


def _run(folder: Path, *command: str) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")
    return ran.stdout
