"""Sets the clocks of real processes with a preloaded library, which the tests compile."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock.c")
SECOND = 1_000_000_000


def compile_library(folder: Path) -> Path:
    """Compile the library; skip if there is no C compiler, or on systems without this kind of preloading."""
    if sys.platform != "linux":
        pytest.skip("the clocks of processes are moved on Linux only")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the preloaded clock")
    library = folder / "clock.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True)
    return library


class Clock:
    """The clocks of one process, which must be started with `environment`, or by `wrapped`."""

    def __init__(self, library: Path, folder: Path, name: str) -> None:
        self._library = library
        self._file = folder / f"{name}.clock"
        self._file.write_bytes(bytes(24))
        with self._file.open("r+b") as file:
            self._said = mmap.mmap(file.fileno(), 24)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that the process needs."""
        preloaded = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(self._library)]))
        return {"LD_PRELOAD": preloaded, "REDLATCH_CLOCK": str(self._file)}

    def wrapped(self, program: str) -> str:
        """Return a script that starts the program under these clocks."""
        script = self._file.with_suffix(".sh")
        settings = " ".join(f"{name}='{value}'" for name, value in self.environment.items())
        script.write_text(f"#!/bin/sh\nexec env {settings} '{program}' \"$@\"\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return str(script)

    def _say(self, place: int, ns: int) -> None:
        self._said[place * 8 : place * 8 + 8] = struct.pack("=q", ns)

    def set_ahead(self, seconds: float) -> None:
        """Set the wall clock ahead of the true time; it continues from there."""
        self._say(0, int(seconds * SECOND))
        self._say(1, 0)

    def freeze(self, at: float) -> None:
        """Stop the wall clock at a time in seconds since 1970."""
        self._say(1, int(at * SECOND))

    def suspend(self, seconds: float) -> None:
        """Advance the time since boot, as if the machine had been suspended."""
        self._say(2, int(seconds * SECOND))
