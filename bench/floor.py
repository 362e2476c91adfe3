"""Compile `floor.c`, the race's reference, for this machine.

Every race compiles it again. This takes half a second, and a program of an older source cannot be used by mistake.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("floor.c")


class NoFloor(Exception):
    """The floor cannot be compiled; the message gives the reason in one line."""


def compile_floor(folder: Path) -> Path:
    """Compile the floor.

    Args:
        folder: the folder for the program.

    Returns:
        The path of the program.

    Raises:
        NoFloor: there is no C compiler ($CC, or else cc), or it failed.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise NoFloor(f"no C compiler called {compiler[0]} is here")
    program = folder / "floor"
    command = [*compiler, "-O2", "-std=c11", "-o", str(program), str(SOURCE)]
    # The files that an interrupted compiler leaves behind are removed with the folder.
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise NoFloor(f"{compiler[0]} could not compile it: {words[-1] if words else f'status {done.returncode}'}")
    return program
