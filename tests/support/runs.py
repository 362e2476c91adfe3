"""`redlatch run` as a process, and programs for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.faces import PATIENCE, await_true

# A program that writes the time since boot, in ns, over and over. Its children are told by FORKS.
BEATS = """
import os, signal, sys, time
path, *words = sys.argv[1:]
if "deaf" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "forks" in words and not os.fork():
    path += ".child"
if "forks" in words and "leaves" in words and not path.endswith(".child"):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
while True:
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {time.clock_gettime_ns(clock)}")
    os.replace(path + ".new", path)
    time.sleep(0.002)
"""


def start(urls: list[str], *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start `redlatch run` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "redlatch.cli", "run", *arguments],
        env=os.environ | {"REDLATCH_MASTERS": ",".join(urls), "SHELL": "/bin/sh"},
        text=True,
        # Without a terminal, wherever the tests run.
        start_new_session=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def ran(urls: list[str], *arguments: str) -> tuple[int, str, str]:
    """Run `redlatch run` to its end; return its exit status and what it wrote."""
    process = start(urls, *arguments)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def beating(path: Path, *words: str) -> list[str]:
    """Return the command of a program that writes to a file how late it is.

    Args:
        path: the file.
        words: "deaf" ignores SIGTERM; "forks" has a child that writes to a file of its own, and "leaves" obeys SIGTERM
            although the child is deaf to it.
    """
    return [sys.executable, "-c", BEATS, str(path), *words]


def beat(path: Path) -> tuple[int, int]:
    """Return the process that has written to a file, and when it did so last, in ns since boot."""
    await_true(path.exists)
    pid, written = path.read_text().split()
    return int(pid), int(written)


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        os.kill(pid, 0)
        if sys.platform != "linux":
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def now() -> int:
    """Return the time since boot, in ns."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found
