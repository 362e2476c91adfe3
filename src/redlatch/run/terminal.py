"""The controlling terminal of this process: which process group may read and set it (job control).

The program has its own process group, so that its processes can be killed together. The terminal serves one group at a
time, so this process lends it to the program, and takes it back for the shell. See credentials(7) and the chapter "Job
Control" of the GNU C library.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress

# The kernel stops a process by these signals if it needs the terminal and is in the background.
WANTING = frozenset({signal.SIGTTIN, signal.SIGTTOU})

# Writing to a terminal (`stty tostop`), or changing its foreground, must not stop this process.
BLOCKED = frozenset({signal.SIGTTOU})

# The signals that stop a process, and that it may handle.
STOPPING = WANTING | {signal.SIGTSTP}


class Terminal:
    """The controlling terminal, if there is one; `lent` while the program has it. Its thread must block SIGTTOU."""

    def __init__(self) -> None:
        self.lent = False
        self._eager = not _behind_a_pipe()
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._fd = None

    @property
    def present(self) -> bool:
        return self._foreground() is not None

    @property
    def ours(self) -> bool:
        """True if the user's Ctrl-C is for this process or its program."""
        return self.lent or self._foreground() == os.getpgrp()

    def begin(self, group: int) -> None:
        """Lend the terminal to a program that starts or continues.

        In a pipeline, a Ctrl-C must also reach the processes before this one. So there the program gets the terminal
        only when it needs it.
        """
        self.lent = False
        if self._eager:
            self.lend(group)

    def lend(self, group: int) -> bool:
        now = self._foreground()
        if now == os.getpgrp():
            self._set(group)
        elif now != group:
            return False
        self.lent = self._eager = True
        return True

    def take_back(self) -> None:
        # A shell may have taken the terminal meanwhile.
        if self.lent and self._foreground() != _group_of_leader():
            self._set(os.getpgrp())
        self.lent = False

    def serve_neighbours(self) -> bool:
        """Take the terminal back for stopped neighbours in this process group."""
        if not self.lent:
            return False
        self.take_back()
        # From now on the program gets it when it needs it.
        self._eager = False
        os.killpg(os.getpgrp(), signal.SIGCONT)
        return True

    def _foreground(self) -> int | None:
        if self._fd is None:
            return None
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return None

    def _set(self, group: int) -> None:
        with suppress(OSError):
            assert self._fd is not None
            os.tcsetpgrp(self._fd, group)


def _behind_a_pipe() -> bool:
    mode = os.fstat(0).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _group_of_leader() -> int:
    try:
        return os.getpgid(os.getsid(0))
    except ProcessLookupError:
        return 0


def stop(number: int, whom: int) -> None:
    """Stop this process, or its group if negative, as the signal does by default."""
    before = signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(whom, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)
    signal.signal(number, before)
