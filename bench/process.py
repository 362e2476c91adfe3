"""The race's side of a contender process: start it, order a run, read the answer, end it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from bench.contender import Absent
from bench.order import Answer

# The seconds to wait for an answer beyond the length of the run. A contender that is silent for longer hangs.
PATIENCE_SECONDS = 30

FLOOR = "floor"

# The command of each contender that is no Python, to which the masters are added; or the reason why it is absent.
Programs = Mapping[str, list[str] | str]


class Failed(Exception):
    """A contender ended or hung; the message is its last line on stderr, if there is one."""


class Racer:
    """A contender's process.

    Args:
        contender: a name in `programs` or in `contender.REGISTRY`.
        urls: the URLs of the masters.
        programs: the commands of the contenders that are no Python.
        ledger: the file descriptor of the ledger; None for no ledger.
    """

    def __init__(self, contender: str, urls: list[str], programs: Programs, ledger: int | None = None) -> None:
        # With -P and our own path, the process imports the same modules as the race, regardless of modules in the
        # current folder.
        of_python = [sys.executable, "-P", "-m", "bench.serve", contender]
        command = programs.get(contender, of_python)
        if isinstance(command, str):
            raise Absent(command)
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*command, *urls],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            pass_fds=() if ledger is None else (ledger,),
            # Ctrl-C in the terminal then reaches only the race, which ends its contenders itself.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def run(self, order: str, seconds: float = 0.0) -> Answer:
        """Order one run and return the answer.

        Args:
            order: "MODE AMOUNT WIDTH".
            seconds: the shortest time that the run takes.

        Raises:
            Absent: the contender or its mode is not available here.
            Failed: there is no answer.
        """
        self.tell(order)
        return self.listen(seconds)

    def tell(self, order: str) -> None:
        """Order one run; `listen` returns its answer."""
        # If the process has ended, `listen` reports the reason from its last line or its stderr.
        with suppress(BrokenPipeError):
            self._orders.write(f"{order}\n".encode())

    def listen(self, seconds: float = 0.0) -> Answer:
        """Return the answer to the last order.

        Raises:
            Absent, Failed: as for `run`.
        """
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll((seconds + PATIENCE_SECONDS) * 1000):
            raise Failed("no answer")
        line = self._answers.readline()
        if not line:
            raise Failed(self._last_words())
        answer: Answer = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        return answer

    def _last_words(self) -> str:
        self._process.wait(PATIENCE_SECONDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.returncode}"

    def dismiss(self) -> None:
        """Ask the process to end, without waiting for it."""
        with suppress(BrokenPipeError):
            self._orders.close()

    def close(self) -> None:
        """Ask the process to end, and kill it if it has not ended after 2 s."""
        self.dismiss()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._errors.close()
