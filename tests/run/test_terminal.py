"""`redlatch run` on a terminal: the program is in the foreground, and can be interrupted, stopped and continued."""

from __future__ import annotations

import os
import pty
import signal
import sys
import termios
from collections.abc import Iterator
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
