"""The test environment: a test that hangs fails with stack traces, and a shell may run the tests in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.faces import PATIENCE

TESTS = Path(__file__).parent

HANGS = """
import ctypes, threading

def test_before():
    pass

def deep_down():
    threading.Event().wait()

def test_hangs():
    threading.Thread(target=deep_down, daemon=True).start()
    deep_down()

def test_hangs_with_the_gil():
    ctypes.PyDLL(None).pause()
"""


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, env=os.environ | environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=4 * PATIENCE
    )


@pytest.mark.usual(
    "workers change where the stacks go, and the GIL changes who writes them",
    {"test": "test_hangs_with_the_gil", "workers": ()},
    {"test": "test_hangs", "workers": ("-n", "2")},
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs pause() of the C library")
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("test", ["test_hangs", "test_hangs_with_the_gil"])
def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads(tmp_path: Path, test: str, workers: tuple[str]) -> None:
    file = tmp_path / "test_that_hangs.py"
    file.write_text(HANGS)
    options = ["-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "support.timelimit"]
    done = run(*options, "--timeout", "1", *workers, f"{file}::test_before", f"{file}::{test}", PYTHONPATH=str(TESTS))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (0:00:01)!" in done.stderr
    assert f"in {test}" in done.stderr
    assert ("in deep_down" in done.stderr) == (test == "test_hangs")
    if workers:
        assert f"crashed while running 'test_that_hangs.py::{test}'" in done.stdout


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) > 0
    # The method "signal" uses SIGALRM, which tests use themselves.
    assert request.config.getini("timeout_method") == "thread"


def test_children_can_be_interrupted_when_a_shell_runs_the_tests_in_the_background() -> None:
    """A shell without job control starts background jobs with SIGINT ignored, and all children inherit this."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = run("tests/faults/test_interrupts.py", "-k", "sigint_in_a_waiting_acquire")
    finally:
        signal.signal(signal.SIGINT, former)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
