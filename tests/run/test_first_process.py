"""`redlatch run` as the first process of a container: it reaps the orphans that it inherits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support.faces import PATIENCE

from redlatch import Client

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def namespaces() -> bool:
    """Return whether this machine lets a user have a PID namespace."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces(), reason="needs PID namespaces")

# Orphans end, and this program waits until nobody is left but PID 1, its keeper and itself.
ORPHANS = """
import os, subprocess, sys, time
print(os.getppid(), flush=True)
for _ in range(20):
    subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
def others():
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
end = time.monotonic() + 20
while len(others()) > 1 and time.monotonic() < end:
    time.sleep(0.01)
print(len(others()), flush=True)
"""


def first(urls: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*UNSHARE, sys.executable, "-m", "redlatch.cli", "run", *arguments]
    environment = os.environ | {"REDLATCH_MASTERS": ",".join(urls)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_it_reaps_the_orphans_of_its_program(three: list[str], name: str) -> None:
    done = first(three, name, sys.executable, "-c", ORPHANS)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["1", "1"], "")
    with Client(three) as client:
        assert client.lock(name).acquire(blocking=False)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -2 $$", 130)])
def test_the_exit_status_is_that_of_the_program(three: list[str], name: str, script: str, status: int) -> None:
    assert first(three, name, "sh", "-c", f"sleep 0 & {script}").returncode == status
