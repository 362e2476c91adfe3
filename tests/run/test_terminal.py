"""`redlatch run` on a terminal: the program is in the foreground, and can be interrupted, stopped and continued."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faces import PATIENCE, await_true, in_thread

from redlatch import Client

# What the user types: an interrupt, and a stop.
CTRL_C, CTRL_Z = b"\x03", b"\x1a"

# A shell with job control runs this; each step waits for a line of input, so the test decides when it happens.
SHELL = "set -m; {run}; echo status $?; read line; fg >/dev/null; echo again $?"


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, masters: list[str], script: str) -> None:
        environment = os.environ | {"REDLATCH_MASTERS": ",".join(masters)}
        self.pid, self._fd = pty.fork()
        if not self.pid:
            try:
                os.execvpe("bash", ["bash", "-c", script], environment)
            finally:
                os._exit(127)
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSANOW, attributes)
        self.read = b""

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def until(self, text: bytes) -> bytes:
        """Read until a text has come; return what came before it and it."""

        def read() -> bytes:
            while text not in self.read:
                self.read += os.read(self._fd, 1024)
            before, text_, self.read = self.read.partition(text)
            return before + text_

        found: bytes = in_thread(read).result(PATIENCE)
        return found

    def close(self) -> None:
        os.close(self._fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal() -> Iterator[Any]:
    """Start shells on terminals."""
    made: list[Terminal] = []

    def make(masters: list[str], script: str) -> Terminal:
        made.append(Terminal(masters, script))
        return made[-1]

    yield make
    for each in made:
        each.close()


def command(name: str, *words: str) -> str:
    return " ".join(
        [sys.executable, "-m redlatch.cli run", *words, f"'{name}' sh -c 'echo ready; read line; echo $line'"]
    )


def test_the_program_reads_from_the_terminal(terminal: Any, three: list[str], name: str) -> None:
    shell = terminal(three, command(name) + "; echo status $?")
    shell.until(b"ready")
    shell.type(b"typed\n")
    assert b"typed" in shell.until(b"status 0")


def test_ctrl_c_interrupts_the_program_and_the_lock_is_released(terminal: Any, three: list[str], name: str) -> None:
    shell = terminal(three, "trap : INT; " + command(name, "--ttl", "50") + "; echo status $?")
    shell.until(b"ready")
    shell.type(CTRL_C)
    shell.until(b"status 130")
    with Client(three) as client:
        assert client.lock(name).acquire(blocking=False)


def test_a_stopped_program_goes_on_while_its_lock_is_valid(terminal: Any, three: list[str], name: str) -> None:
    shell = terminal(three, SHELL.format(run=command(name, "--ttl", "50")))
    shell.until(b"ready")
    shell.type(CTRL_Z)
    # 128 + SIGSTOP or SIGTSTP: the shell sees that the job was stopped.
    shell.until(b"status 1")
    with Client(three) as client:
        assert client.lock(name).locked()
        shell.type(b"go on\n")
        shell.type(b"typed\n")
        assert b"typed" in shell.until(b"again 0")
        assert not client.lock(name).locked()


def test_a_stopped_program_dies_with_its_lock(terminal: Any, three: list[str], name: str) -> None:
    shell = terminal(three, SHELL.format(run=command(name, "--ttl", "1")))
    shell.until(b"ready")
    shell.type(CTRL_Z)
    shell.until(b"status 1")
    with Client(three) as client:
        lock = client.lock(name)
        await_true(lambda: not lock.locked())
        shell.type(b"go on\n")
        shell.until(b"again 75")


class Alone:
    """`redlatch run` on a terminal without a shell, as in a container or behind `ssh -t`: nobody can continue it."""

    def __init__(self, masters: list[str], *words: str) -> None:
        environment = os.environ | {"REDLATCH_MASTERS": ",".join(masters)}
        self.pid, self._fd = pty.fork()
        if not self.pid:
            try:
                os.execve(sys.executable, [sys.executable, "-m", "redlatch.cli", "run", *words], environment)
            finally:
                os._exit(127)
        self._read = b""

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def line(self) -> bytes:
        def read() -> bytes:
            while b"\n" not in self._read:
                self._read += os.read(self._fd, 1024)
            line, _, self._read = self._read.partition(b"\n")
            return line.strip()

        found: bytes = in_thread(read).result(PATIENCE)
        return found

    def end(self) -> int:
        _, status = in_thread(lambda: os.waitpid(self.pid, 0)).result(PATIENCE)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


# It says when it was continued.
CONTINUED = """
import os, signal, sys
signal.signal(signal.SIGCONT, lambda *_: print("continued", flush=True))
print(os.getpid(), flush=True)
for line in sys.stdin:
    print("read", line, end="", flush=True)
"""


def test_ctrl_z_without_a_shell_changes_nothing(three: list[str], name: str) -> None:
    run = Alone(three, name, sys.executable, "-c", CONTINUED)
    run.line()
    run.type(CTRL_Z)
    assert run.line() == b"^Zcontinued"
    run.type(b"typed\n")
    assert [run.line(), run.line()] == [b"typed", b"read typed"]
    run.type(CTRL_C)
    assert run.end() == -signal.SIGINT
    with Client(three) as client:
        assert client.lock(name).acquire(blocking=False)


def test_a_program_that_somebody_stopped_keeps_its_lock_where_no_shell_is(three: list[str], name: str) -> None:
    run = Alone(three, "--ttl", "2", name, sys.executable, "-c", CONTINUED)
    program = int(run.line())
    os.kill(program, signal.SIGSTOP)
    with Client(three) as client:
        lock = client.lock(name)
        assert not lock.acquire(timeout=3)
        os.kill(program, signal.SIGCONT)
        assert run.line() == b"continued"
        run.type(b"\x04")
        assert run.end() == 0
        assert lock.acquire(timeout=PATIENCE)
        lock.release()


def test_a_program_in_the_background_is_hung_up_if_it_reads_where_no_shell_is(
    three: list[str], name: str, tmp_path: Path
) -> None:
    """Under flock it reads an error. No shell could ever put it into the foreground."""
    ended = tmp_path / "ended"
    words = [sys.executable, "-m", "redlatch.cli", "run", name, "cat", "/dev/tty"]
    script = f"{shlex.join(words)}; echo $? >{ended}.new; mv {ended}.new {ended}"
    leader, terminal = pty.fork()
    if not leader:
        try:
            # The parent of the job ends, so that the kernel has nobody who could continue the job.
            if not os.fork():
                os.setpgid(0, 0)
                if not os.fork():
                    os.execvpe("sh", ["sh", "-c", script], os.environ | {"REDLATCH_MASTERS": ",".join(three)})
                os._exit(0)
            signal.pause()
        finally:
            os._exit(127)
    try:
        await_true(ended.exists)
        assert ended.read_text() == f"{128 + signal.SIGHUP}\n"
    finally:
        os.kill(leader, signal.SIGKILL)
        os.waitpid(leader, 0)
        os.close(terminal)
