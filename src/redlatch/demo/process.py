"""The demo's side of a buyer process: it starts the process and its sale, reads its events, and kills it."""

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
    """One buyer process. The inbox receives its events as they arrive, and None at its end."""

    def __init__(self, plan: Plan, inbox: Inbox, errors: Path) -> None:
        self.plan = plan
        self.finished = False
        with errors.open("ab") as stderr:
            # It gets its own session, so that Ctrl-C reaches only the demo. With -P and our own path it imports the
            # same modules as the demo, regardless of the current folder.
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
        return self._process.pid

    def open_door(self) -> None:
        self._write(b"go\n")

    def kill(self) -> None:
        self.finished = True
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # If the process has ended, the reader reports that.
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), line)

    def _read(self, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        try:
            with os.fdopen(os.dup(self._process.stdout.fileno()), "rb") as lines:
                for line in lines:
                    # The process was killed while it wrote.
                    if line.endswith(b"\n"):
                        inbox.put((self, Event.from_line(line)))
        finally:
            # Even after a line that is not an event: otherwise the demo would wait until its time limit.
            inbox.put((self, None))


Inbox: TypeAlias = "queue.SimpleQueue[tuple[BuyerProcess, Event | None]]"
