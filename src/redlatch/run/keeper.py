"""A small process that kills the program if its supervisor is stopped, slow or dead.

The supervisor sends it the program's process group, and the time to kill it. If the supervisor was killed, the pipe
breaks, and the keeper kills the whole group at once.
"""

from __future__ import annotations

import os
import select
import signal
import struct
from contextlib import suppress

from redlatch.wire.engine.net import now_ns

# Waits do not count the time of a suspended machine, but the lock does.
LONGEST_MS = 200

# The process group, and the time to kill it; 0 means no group, and never.
_ORDER = struct.Struct("=qq")


class Keeper:
    """The supervisor's handle of the keeper. Make it before the process has a second thread."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self._writing)
                _Kept(reading).keep()
            finally:
                os._exit(0)
        os.close(reading)

    def guard(self, group: int, until_ns: int) -> None:
        """Have a process group killed at a time in ns since boot; 0 means never."""
        # The keeper may have been killed.
        with suppress(BrokenPipeError):
            os.write(self._writing, _ORDER.pack(group, until_ns))

    def end(self) -> None:
        self.guard(0, 0)
        os.close(self._writing)
        os.waitpid(self.pid, 0)


class _Kept:
    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._group = self._until_ns = 0

    def keep(self) -> None:
        # It must survive what ends the supervisor: a closed terminal, or a signal to its process group.
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_IGN)
        # The output may be a pipe, whose reader waits until all writers have closed it.
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        while True:
            if poll.poll(self._left_ms()):
                order = os.read(self._reading, _ORDER.size)
                if not order:
                    self._kill()
                    return
                self._group, self._until_ns = _ORDER.unpack(order)
            elif self._left_ms() == 0:
                self._kill()
                self._until_ns = 0

    def _left_ms(self) -> int | None:
        if not self._until_ns:
            return None
        return min(LONGEST_MS, max(0, -(-(self._until_ns - now_ns()) // 1_000_000)))

    def _kill(self) -> None:
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
