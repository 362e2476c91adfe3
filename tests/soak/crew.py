"""The processes of a soak, and their reports."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

from sim.grants import Grant
from support.builds import builds

WORKER = str(Path(__file__).with_name("worker.py"))
FACES = ("threads", "asyncio")
BUILDS = ("c", "c", "c", "python") if len(builds()) > 1 else ("python",)


class Worker:
    """One process, and the thread that reads its reports."""

    def __init__(self, number: int, who: str, arguments: list[str], crew: Crew) -> None:
        self.number = number
        # One pair of bytes and descriptors for each report.
        self.sizes: list[tuple[int, int]] = []
        face, build = FACES[number % len(FACES)], BUILDS[number % len(BUILDS)]
        self.label = f"{face}, {build}"
        self.process = subprocess.Popen(
            [sys.executable, WORKER, who, *arguments, face],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"REDLATCH_IMPL": build},
        )
        self._crew = crew
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A killed process may leave a partial line.
            if line.endswith("}\n"):
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if "rss" in said:
            self.sizes.append((said["rss"], said["fds"]))
        else:
            self._crew.grants.append(Grant(**said))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += [line for line in self.process.stderr if not line.startswith(("master ", "the clock of"))]

    def finish(self) -> list[str]:
        """Wait for its end; return its errors."""
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._errors.append(f"worker {self.number} did not end")
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self.process.returncode not in (0, -signal.SIGKILL):
            self._errors.append(f"worker {self.number} ended with {self.process.returncode}")
        return self._errors


class Crew:
    """All processes.

    Args:
        size: the number of processes.
        arguments: the arguments of each process, without its name and its face.
    """

    def __init__(self, size: int, arguments: list[str], chance: random.Random) -> None:
        # The grants that were reported since the last look.
        self.grants: deque[Grant] = deque()
        self.wrong: list[str] = []
        self._arguments = arguments
        self._chance = chance
        self._hired = 0
        self.workers = [self._hire(number) for number in range(size)]

    def _hire(self, number: int) -> Worker:
        self._hired += 1
        return Worker(number, f"w{self._hired}", self._arguments, self)

    def stop(self) -> int:
        """Stop one process (SIGSTOP); return its number."""
        number = self._chance.randrange(len(self.workers))
        self.workers[number].process.send_signal(signal.SIGSTOP)
        return number

    def resume(self, number: int) -> None:
        """Resume a process (SIGCONT)."""
        self.workers[number].process.send_signal(signal.SIGCONT)

    def replace(self) -> None:
        """Kill a process of the first half (SIGKILL) and start another one.

        The processes of the other half live to the end, so that their growth can be measured.
        """
        number = self._chance.randrange((len(self.workers) + 1) // 2)
        worker = self.workers[number]
        worker.process.kill()
        self.wrong += worker.finish()
        self.workers[number] = self._hire(number)

    def end(self) -> None:
        """End all processes, and wait for them."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self.workers:
            self.wrong += worker.finish()
