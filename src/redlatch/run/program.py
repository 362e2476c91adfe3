"""The program that runs while the lock is held: a process group of its own, which ends with its supervisor."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from redlatch.run.terminal import WANTING, Terminal

NOT_EXECUTABLE, NOT_FOUND = 126, 127

_PR_SET_PDEATHSIG = 1


class Program:
    """A process that waits for `start`, and then becomes the program.

    Make it before this process has a second thread: between fork and exec it runs Python. `denied` is True once a
    signal could not be sent, because the processes belong to another user.
    """

    def __init__(self, command: list[str]) -> None:
        self.denied = False
        self.terminal = Terminal()
        reading, self._writing = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            status = NOT_EXECUTABLE
            try:
                os.close(self._writing)
                status = _become(command, reading, parent)
            finally:
                os._exit(status)
        os.close(reading)
        # Here and in the child, because either may come first.
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)

    def start(self, environment: Mapping[str, str | bytes]) -> None:
        """Start the program with these further variables. Text is UTF-8 in every locale."""
        self.terminal.begin(self.pid)
        raw = {name: value if isinstance(value, bytes) else value.encode() for name, value in environment.items()}
        words = [name.encode() + b"=" + value for name, value in raw.items()]
        with suppress(BrokenPipeError), os.fdopen(self._writing, "wb") as pipe:
            pipe.write(b"\0".join([b"go", *words]))

    def give_up(self) -> None:
        os.close(self._writing)
        os.waitpid(self.pid, 0)

    def send(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            # Processes of another user; on macOS also zombies.
            self.denied = True

    def look(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        return status if pid else None

    def go_on(self) -> None:
        """Continue the program, in the foreground if this process is there (`fg`)."""
        self.terminal.begin(self.pid)
        self.send(signal.SIGCONT)

    def serve(self, number: int) -> bool:
        """Continue the program if it was stopped only for the terminal, and this process can lend that."""
        if number not in WANTING or not self.terminal.lend(self.pid):
            return False
        self.send(signal.SIGCONT)
        return True


def _become(command: list[str], reading: int, parent: int) -> int:
    """Wait for the parent's order, then execute the program; return the exit status if that fails."""
    # This process must not write to the pipe of its parent's signals.
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # Python ignores these two. The program should start with the defaults.
        if number in (signal.SIGPIPE, signal.SIGXFSZ) or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    with os.fdopen(reading, "rb") as pipe:
        go, *words = pipe.read().split(b"\0")
    # The supervisor did not get the lock, or was killed.
    if go != b"go":
        return 0
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return 0
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    environment = os.environb | dict(word.partition(b"=")[::2] for word in words)
    try:
        _execute(command, environment)
    except OSError as error:
        sys.stderr.write(f"redlatch run: cannot execute {command[0]!r}: {error.strerror}\n")
        sys.stderr.flush()
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _execute(command: list[str], environment: Mapping[bytes, bytes]) -> NoReturn:
    """Execute a program as execvp(3) does, a script without "#!" through the shell."""
    name, arguments = os.fsencode(command[0]), [os.fsencode(each) for each in command[1:]]
    folders = [b""] if b"/" in name else [os.fsencode(folder) for folder in os.get_exec_path()]
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in [os.path.join(folder, name) for folder in folders if name]:
        try:
            os.execve(path, command, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refused = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", [b"/bin/sh", path, *arguments], environment)
    raise refused
