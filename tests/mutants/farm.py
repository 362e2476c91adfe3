"""Makes a copy of the package with one mutant in it, and has schedules run on that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from simthreads.farm import stream

from .catalogue import Mutant

ROOT = Path(__file__).parents[2]
SEEDS = 10_000  # within which each has to be found


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        seed, rule: by which seed and which rule it was found; -1 where it survived.
        crashes: in how many schedules before that its own code crashed, which is no find; and the first crash.
    """

    mutant: Mutant
    seed: int
    rule: str
    crashes: int = 0
    crash: str = ""

    @property
    def found(self) -> bool:
        """Whether it was found by a rule."""
        return self.seed >= 0


class NoPlaceError(ValueError):
    """The code has changed, so that a mutant has no place in it any more."""


def hunt(mutant: Mutant, seeds: int = SEEDS, plan: str = "") -> Verdict:
    """Run schedules on a mutant until one breaks a rule; or only the plan with the name `plan` (see `sim.found`)."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "redlatch"
        shutil.copytree(ROOT / "src/redlatch", package, ignore=shutil.ignore_patterns("_c", "__pycache__"))
        lines = plant(mutant, package)
        if mutant.threads:
            return hunt_by_threads(mutant, seeds, Path(folder), lines)
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("child.py")),
                str(seeds),
                "foreign" if mutant.foreign else "own",
                mutant.theme,
                plan,
                lines,
            ],
            env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}", "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.strip():
        raise RuntimeError(f"{mutant.name}: {done.stderr}")
    return Verdict(mutant, **json.loads(done.stdout.splitlines()[0]))


def hunt_by_threads(mutant: Mutant, seeds: int, folder: Path, lines: str) -> Verdict:
    """Run thread schedules on the package in `folder` until one breaks a rule; `lines` are those of the mutant."""
    crashed: list[tuple[int, str]] = []
    for batch in stream(0, seeds, folder, stop=True, theme=mutant.threads, mutant=lines):
        crashed += batch.crashed
        if batch.wrong:
            return Verdict(mutant, *batch.wrong[0], len(crashed), crashed[0][1] if crashed else "")
    return Verdict(mutant, -1, "", len(crashed), crashed[0][1] if crashed else "")


def plant(mutant: Mutant, package: Path) -> str:
    """Put the bug in; return its lines, as FILE:FIRST:LAST.

    Raises:
        NoPlaceError: the bug has no place in the code any more.
    """
    path = package / mutant.file
    text = path.read_text()
    found = re.findall(mutant.old if mutant.old.startswith("(?ms)") else re.escape(mutant.old), text)
    if len(found) != 1:
        raise NoPlaceError(f"{mutant.name}: {mutant.file} has {len(found)} times {mutant.old!r}")
    path.write_text(text.replace(found[0], mutant.new))
    first = text[: text.index(found[0])].count("\n") + 1
    return f"{mutant.file}:{first}:{first + max(mutant.new.count(chr(10)) - 1, 0)}"
