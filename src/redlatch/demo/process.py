"""A buyer process as the demo sees it: start it, let its buyers in, follow its events, kill it."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from redlatch.demo.messages import Event, Plan


class BuyerProcess:
    """One buyer process; its events go to `inbox` as they come, None at its end, its stderr to the file `errors`."""

    def __init__(self, plan: Plan, inbox: Inbox, errors: Path) -> None:
        self.plan = plan
        self.finished = False
        with errors.open("ab") as stderr:
            # A session of its own: Ctrl-C in the terminal goes to the demo, which then ends its buyers itself.
            # -P and our own path: it imports what we import, whatever modules lie in the current folder.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "redlatch.demo.buyer"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()
        self._write(plan.to_line())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def open_door(self) -> None:
        """Let the buyers in."""
        self._write(b"go\n")

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it still runs, and wait for its end."""
        self.finished = True
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended; its reader says so
            os.write(self._process.stdin.fileno(), line)

    def _read(self, inbox: Inbox) -> None:
        """Put the events of the process into the inbox, and None at its end."""
        assert self._process.stdout is not None
        try:
            with os.fdopen(os.dup(self._process.stdout.fileno()), "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # else the process was killed while it wrote
                        inbox.put((self, Event.from_line(line)))
        finally:  # also after a line that is no event: without its None the demo would wait until its time is over
            inbox.put((self, None))


Inbox: TypeAlias = "queue.SimpleQueue[tuple[BuyerProcess, Event | None]]"
