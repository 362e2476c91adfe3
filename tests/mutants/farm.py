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
    """What became of a mutant: by which seed it was found, and by which rule; -1 where it survived."""

    mutant: Mutant
    seed: int
    rule: str


def hunt(mutant: Mutant, seeds: int = SEEDS, plan: str = "") -> Verdict:
    """Run schedules on a mutant until one breaks a rule; or only the plan with the name `plan` (see `sim.found`)."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "redlatch"
        shutil.copytree(ROOT / "src/redlatch", package, ignore=shutil.ignore_patterns("_c", "__pycache__"))
        plant(mutant, package)
        if mutant.threads:
            return hunt_by_threads(mutant, seeds, Path(folder))
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("child.py")),
                str(seeds),
                "foreign" if mutant.foreign else "own",
                mutant.theme,
                plan,
            ],
            env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}", "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.strip():
        raise RuntimeError(f"{mutant.name}: {done.stderr}")
    told = json.loads(done.stdout.splitlines()[0])
    return Verdict(mutant, told["seed"], told["rule"])


def hunt_by_threads(mutant: Mutant, seeds: int, folder: Path) -> Verdict:
    """Run thread schedules on the package in `folder` until one breaks a rule."""
    for batch in stream(0, seeds, folder, stop=True, theme=mutant.threads):
        if batch.wrong:
            return Verdict(mutant, *batch.wrong[0])
    return Verdict(mutant, -1, "")


def plant(mutant: Mutant, package: Path) -> None:
    """Put the bug in.

    Raises:
        ValueError: the code has changed, so that the bug has no place any more.
    """
    path = package / mutant.file
    text = path.read_text()
    found = re.findall(mutant.old if mutant.old.startswith("(?ms)") else re.escape(mutant.old), text)
    if len(found) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has {len(found)} times {mutant.old!r}")
    path.write_text(text.replace(found[0], mutant.new))
