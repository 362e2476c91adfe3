"""Job control of `redlatch run` in interactive shells, side by side with flock(1) on a terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.faces import PATIENCE, await_true
from support.runs import children

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"

# Interactive, without the user's settings.
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "--noediting", "-i"], "dash": ["dash", "-i"]}

PROMPT = "@@ "

TOOLS = ["flock", "redlatch"]

# Whether the program is in the foreground of its terminal.
FOREGROUND = (
    f"{shlex.quote(sys.executable)} -c "
    '\'import os; fd = os.open("/dev/tty", 2); print("front", os.tcgetpgrp(fd) == os.getpgrp())\''
)

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="flock(1) is the reference")


class Shell:
    """An interactive shell on a terminal of its own.

    Args:
        words: the shell.
        environment: its variables.
        command: what puts a program under a lock.
    """

    def __init__(self, words: list[str], environment: dict[str, str], command: str) -> None:
        self.command = command
        self.pid, self._fd = pty.fork()
        if not self.pid:
            try:
                os.execvpe(words[0], words, environment)
            finally:
                os._exit(127)
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        self._read = ""
        self._numbers = itertools.count()
        self.until(PROMPT)

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def run(self, text: str) -> None:
        """Have the shell run a command, in which LOCK puts a program under the lock."""
        self.type(text.replace("LOCK", self.command).encode() + b"\n")

    def until(self, pattern: str, seconds: float = PATIENCE) -> str:
        """Read until a pattern was found; return what came up to its end."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self._read)) is None:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._fd], [], [], left)[0], f"no {pattern!r}, but {self._read!r}"
            self._read += os.read(self._fd, 1024).decode(errors="replace")
        before, self._read = self._read[: found.end()], self._read[found.end() :]
        return before

    def prompted(self) -> str:
        """Wait until the shell obeys again; return what came before."""
        word = f"asked-{next(self._numbers)}"
        self.run(f"echo {word}")
        return self.until(f"{word}[^@]*{PROMPT}")

    def foreground(self) -> int:
        """Return the process group in the foreground."""
        return os.tcgetpgrp(self._fd)

    def interrupt(self) -> str:
        """Type a Ctrl-C, and wait for the prompt; return what came before."""
        self.type(CTRL_C)
        return self.until(PROMPT)

    def stop(self) -> None:
        """Stop the program, and wait for the prompt: what is typed before it, the terminal may drop."""
        group = self.foreground()
        self.type(CTRL_Z)
        self.until(PROMPT)
        # A shell does not wait for the program of flock, which may still read what is typed next.
        await_true(lambda: set(states_of(group)) <= set("TZ"))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


def states_of(group: int) -> list[str]:
    """Return the states of the processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = path.read_text().rpartition(")")[2].split()
            found += words[:1] if int(words[2]) == group else []
    return found


Open = Callable[..., Shell]


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def shell(three: list[str], name: str, tool: str, tmp_path: Path) -> Iterator[Open]:
    """Open shells that have a command to put a program under a lock."""
    made: list[Shell] = []

    def open_shell(kind: str = "bash", *options: str) -> Shell:
        locks = {
            "flock": ["flock", str(tmp_path / "lock")],
            "redlatch": [sys.executable, "-m", "redlatch.cli", "run", "--ttl", "50", *options, name],
        }
        environment = os.environ | {"REDLATCH_MASTERS": ",".join(three), "PS1": PROMPT, "SHELL": "/bin/sh"}
        made.append(Shell(SHELLS[kind], environment, shlex.join(locks[tool])))
        return made[-1]

    yield open_shell
    for each in made:
        each.close()


every_shell = pytest.mark.parametrize("kind", SHELLS)


@pytest.mark.usual(
    "the shells differ in how they make jobs, and the places in a pipeline in who is in them",
    {"kind": "bash"},
    {"kind": "dash", "pipeline": "LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x'"},
)
@every_shell
@pytest.mark.parametrize(
    "pipeline",
    [
        "LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x'",
        "LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x' | cat",
        "echo y | LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x'",
        "echo y | LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x' | cat",
        "sh -c \"LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got \\$x'; echo after\" | cat",
    ],
    ids=["alone", "before a pipe", "behind a pipe", "between", "in a script"],
)
def test_the_program_reads_the_terminal(shell: Open, kind: str, pipeline: str) -> None:
    here = shell(kind)
    here.run(pipeline)
    here.until("ready")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "echo y | {}"])
def test_the_program_sets_the_terminal(shell: Open, pipeline: str) -> None:
    here = shell()
    here.run(pipeline.format("LOCK sh -c 'stty -F /dev/tty min 1 && echo was set'"))
    here.until("was set")
    here.prompted()


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sh -c {}"])
def test_the_program_finds_itself_in_the_foreground(shell: Open, pipeline: str) -> None:
    here = shell()
    command = f"LOCK {FOREGROUND}".replace("LOCK", here.command)
    here.run(pipeline.format(shlex.quote(command) if "-c" in pipeline else command))
    assert "front True" in here.until("front (True|False)")
    here.prompted()


@pytest.mark.usual(
    "the shells differ in how they make jobs, and the places in a pipeline in who is in them",
    {"kind": "bash"},
    {"kind": "dash", "pipeline": "{}"},
)
@every_shell
@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "echo y | {}", 'sh -c "{}; true"'])
def test_ctrl_z_gives_the_prompt_and_fg_goes_on(shell: Open, kind: str, pipeline: str) -> None:
    here = shell(kind)
    here.run(
        pipeline.format(
            "LOCK sh -c 'echo ready >/dev/tty; read x </dev/tty; echo got $x'".replace(
                "$x", "\\$x" if 'sh -c "' in pipeline else "$x"
            )
        )
    )
    here.until("ready")
    here.stop()
    here.prompted()
    here.run("jobs")
    here.until("(Stopped|Suspended)")
    here.prompted()
    here.run("fg")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()


@pytest.mark.parametrize("pipeline", ["{} &", "{} | cat &"])
def test_a_program_in_the_background_that_reads_is_stopped_until_fg(shell: Open, pipeline: str) -> None:
    here = shell()
    here.run(pipeline.format("LOCK sh -c 'read x </dev/tty; echo got $x'"))
    # The shell says so before a prompt.
    while "Stopped" not in here.prompted():
        pass
    here.run("fg")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()


def test_bg_leaves_the_terminal_to_the_shell(shell: Open) -> None:
    here = shell()
    # With "exec": a stop between vfork and exec would leave the shell unstopped, with any command.
    here.run("LOCK sh -c 'echo ready; exec sleep 1'")
    here.until("ready")
    here.stop()
    here.prompted()
    here.run("bg")
    here.prompted()
    here.run("wait; echo waited")
    here.until("waited")
    assert "Stopped" not in here.prompted()


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sleep 1000 | {}"])
def test_ctrl_c_ends_the_whole_pipeline(shell: Open, pipeline: str) -> None:
    here = shell()
    here.run(pipeline.format("LOCK sh -c 'echo ready >/dev/tty; exec sleep 1000'") + "; echo status $?")
    here.until("ready")
    here.interrupt()
    here.prompted()


@pytest.mark.parametrize("loop", ["{}", "bash -c {}"], ids=["typed", "script"])
def test_ctrl_c_ends_a_loop(shell: Open, loop: str) -> None:
    here = shell()
    inner = "for i in 1 2 3; do LOCK sh -c 'echo ready; exec sleep 1000'; done".replace("LOCK", here.command)
    here.run(loop.format(shlex.quote(inner) if "-c" in loop else inner))
    here.until("ready")
    assert "ready" not in here.interrupt()
    assert "ready" not in here.prompted()


def test_ctrl_backslash_ends_the_program(shell: Open) -> None:
    here = shell()
    here.run("ulimit -c 0; LOCK sh -c 'echo ready; exec sleep 1000'; echo status $?")
    here.until("ready")
    here.type(CTRL_BACKSLASH)
    here.until("status 131")


def test_a_neighbour_of_the_pipeline_reads_the_terminal(shell: Open) -> None:
    """A pager: what it shows comes through the pipe, and its keys from the terminal."""
    here = shell()
    here.run("LOCK sh -c 'seq 3; exec sleep 1000' | sh -c 'echo ready; read x </dev/tty; echo got $x; kill 0'")
    here.until("ready")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()


def test_a_pager_behind_the_program(shell: Open) -> None:
    here = shell()
    here.run("LOCK seq 300 | more -n 10")
    here.until("--More--")
    here.type(b" ")
    here.until("--More--")
    here.type(b"q")
    here.until(PROMPT)
    here.prompted()


def test_a_shell_under_the_lock_has_jobs_of_its_own(shell: Open) -> None:
    here = shell()
    here.run("LOCK bash --norc --noprofile --noediting -i")
    here.until(PROMPT)
    here.run("sh -c 'echo ready; exec sleep 1000'")
    here.until("ready")
    job = here.foreground()
    here.stop()
    here.run("jobs")
    here.until("Stopped")
    here.until(PROMPT)
    here.run("fg")
    # The shell writes the command before it gives the terminal away.
    await_true(lambda: here.foreground() == job)
    here.until("sleep 1000'")
    here.interrupt()
    here.run("exit")
    here.until(PROMPT)
    here.run("read x; echo outer $x")
    here.type(b"typed\n")
    here.until("outer typed")


def test_a_stop_while_it_waits_for_the_lock(shell: Open) -> None:
    here = shell()
    here.run("LOCK sh -c 'echo holds; sleep 2; echo ends' &")
    here.until("holds")
    here.prompted()
    here.run("LOCK sh -c 'echo ready; read x; echo got $x'")
    with pytest.raises(AssertionError):
        here.until("ready", 0.5)
    here.type(CTRL_Z)
    here.until(PROMPT)
    here.run("wait %1; fg")
    here.until("ready")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()


def executes(pid: int, program: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == program


def test_ctrl_c_ends_a_loop_that_waits_for_the_lock(shell: Open, tool: str) -> None:
    here = shell()
    here.run("LOCK sh -c 'echo holds; exec sleep 1000' &")
    here.until("holds")
    here.prompted()
    here.run("for i in 1 2 3; do LOCK echo never; done")
    # A shell that was just forked may take the signal before it executes flock. And the first processes of redlatch
    # are there when it takes signals: before, the interpreter has a text of its own.
    begun = partial(executes, program="flock") if tool == "flock" else children
    await_true(lambda: here.foreground() != here.pid and begun(here.foreground()))
    here.interrupt()
    here.run("kill %1; wait; echo over")
    assert "never" not in here.until("over")


def test_both_ends_of_a_pipe_read_the_terminal_in_turn(shell: Open) -> None:
    here = shell()
    program = "sh -c 'echo first >/dev/tty; read x </dev/tty; echo program $x; echo second >/dev/tty; sleep 1000'"
    neighbour = "sh -c 'read line; echo $line; read x </dev/tty; echo neighbour $x; kill 0'"
    here.run(f"LOCK {program} | {neighbour}")
    here.until("first")
    here.type(b"a\n")
    here.until("program a")
    here.type(b"b\n")
    here.until("neighbour b")
    here.prompted()


def test_a_terminal_that_stops_writers_in_the_background(shell: Open) -> None:
    """`stty tostop`."""
    here = shell()
    here.run("stty tostop; LOCK sh -c 'echo ready; read x; echo got $x'; echo status $?")
    here.until("ready")
    here.type(b"typed\n")
    here.until("got typed")
    here.until("status 0")


@pytest.mark.parametrize("tool", ["redlatch"], indirect=True)
def test_a_lock_inside_a_lock_hands_the_terminal_through(shell: Open) -> None:
    here = shell()
    here.run("LOCK LOCK-inner sh -c 'echo ready; read x; echo got $x'")
    here.until("ready")
    here.stop()
    here.prompted()
    here.run("fg")
    here.type(b"typed\n")
    here.until("got typed")
    here.prompted()
