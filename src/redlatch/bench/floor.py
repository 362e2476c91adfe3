"""Compile `floor.c`, the race's measure, for this machine.

It is compiled for every race: half a second costs less than a stale program would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("floor.c")


class NoFloor(Exception):
    """There is no floor here; the message says why in one line."""


def compile_floor(folder: Path) -> Path:
    """Compile the floor.

    Args:
        folder: where to put the program.

    Returns:
        The program.

    Raises:
        NoFloor: there is no C compiler ($CC, else cc), or it failed.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise NoFloor(f"no C compiler called {compiler[0]} is here")
    program = folder / "floor"
    command = [*compiler, "-O2", "-std=c11", "-o", str(program), str(SOURCE)]
    environment = {**os.environ, "TMPDIR": str(folder)}  # what an interrupted compiler leaves goes with the folder
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise NoFloor(f"{compiler[0]} could not compile it: {words[-1] if words else f'status {done.returncode}'}")
    return program
