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
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sim.grants import Grant
from support.builds import builds

from .worker import Options

WORKER = str(Path(__file__).with_name("worker.py"))
FACES = ("threads", "asyncio")
BUILDS = ("c", "c", "c", "python") if len(builds()) > 1 else ("python",)


class Worker:
    """One process, and the thread that reads its reports."""

    def __init__(self, number: int, who: str, options: Options, crew: Crew) -> None:
        self.number = number
        # When its last grant began that was reported, in ns.
        self.granted_ns = 0
        # One pair of bytes and descriptors for each report.
        self.sizes: list[tuple[int, int]] = []
        face, build = FACES[number % len(FACES)], BUILDS[number % len(BUILDS)]
        self.label = f"{face}, {build}"
        self.process = subprocess.Popen(
            [sys.executable, WORKER, who, face, json.dumps(asdict(options))],
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
        elif "lost" in said:
            self._crew.wrong.append(f"{said['lost']!r} was lost: {said['why']}")
        else:
            grant = Grant(**said)
            self.granted_ns = max(self.granted_ns, grant.start)
            self._crew.grants.append(grant)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += [line for line in self.process.stderr if not line.startswith(("master ", "the clock of"))]

    def end(self) -> None:
        """Let it end."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()

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
        options: what each process is to do.
    """

    def __init__(self, size: int, options: Options, chance: random.Random) -> None:
        # The grants that were reported since the last look.
        self.grants: deque[Grant] = deque()
        self.wrong: list[str] = []
        self.options = options
        self._chance = chance
        self._hired = 0
        self.workers = [self._hire(number) for number in range(size)]

    def _hire(self, number: int) -> Worker:
        self._hired += 1
        return Worker(number, f"w{self._hired}", self.options, self)

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

    def deploy(self, options: Options, ready: Callable[[Worker], object]) -> None:
        """Replace the processes one after another, as a rolling deployment does.

        Args:
            options: what the new processes are to do.
            ready: waits until a new process works. Then the old one ends.
        """
        self.options = options
        old = list(self.workers)
        for number, worker in enumerate(old):
            self.workers[number] = self._hire(number)
            try:
                ready(self.workers[number])
            finally:
                worker.end()
        for worker in old:
            self.wrong += worker.finish()

    def taken(self) -> list[Grant]:
        """Take the grants that were reported since the last call."""
        # Other threads append meanwhile.
        return [self.grants.popleft() for _ in range(len(self.grants))]

    def end(self) -> None:
        """End all processes, and wait for them."""
        for worker in self.workers:
            worker.end()
        for worker in self.workers:
            self.wrong += worker.finish()
