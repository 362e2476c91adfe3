"""Repeats an operation on real servers while processes lock and unlock, and counts second holders."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redlatch.operate.markers import CannotMove
from redlatch.testing.groups import wait_until
from redlatch.wire.engine.net import now_ns

from .crew import Crew
from .run import SECOND, SETTLED_NS, Judge
from .sites import PATIENCE, SITES, Site
from .worker import Options

# Seconds between two lines about the progress.
PROGRESS = 60.0


@dataclass
class Campaign:
    """Repeats one kind of operation.

    Args:
        name: the kind of operation, one of `SITES`.
        options: what each process does; the site adds its masters.
        seed: of the choice of servers.
        say: called with a line about the progress, and with each broken rule at once.
    """

    name: str
    options: Options
    processes: int = 4
    seed: int = 0
    say: Callable[[str], object] = print
    wrong: list[str] = field(default_factory=list)
    done: int = 0
    longest_ns: int = 0

    def run(self, times: int) -> dict[str, Any]:
        """Do an operation so many times; return the figures."""
        chance, began = random.Random(self.seed), time.monotonic()
        site = SITES[self.name](self.options, chance, self.processes)
        # If there is one master, fences are compared only with those that were given when their holder asked.
        self.believed, self.confirmed = Judge(strictly=not site.alone), Judge(strictly=not site.alone)
        try:
            crew = Crew(self.processes, site.options, chance)
            try:
                self._repeat(times, site, crew)
            except (TimeoutError, CannotMove) as error:
                self._add([f"operation {self.done} failed: {error}"])
            finally:
                crew.end()
            self._look(crew, now_ns() + SECOND, site.alone)
            self._add(crew.wrong)
        finally:
            site.close()
        figures = {
            "operations": self.done,
            "locks granted": self.believed.grants,
            "second holders": self.confirmed.overlaps if site.alone else self.believed.overlaps,
            "longest wait (s)": round(self.longest_ns / SECOND, 2),
            "fences out of order": self.believed.fences,
            "minutes": round((time.monotonic() - began) / 60, 1),
        }
        return figures | ({"second holders before the first was told": self.believed.overlaps} if site.alone else {})

    def _repeat(self, times: int, site: Site, crew: Crew) -> None:
        next_line = time.monotonic() + PROGRESS
        self._await_locks(crew)
        for number in range(times):
            began_ns, began = now_ns(), time.monotonic()
            what = site.operate(crew)
            self._await_locks(crew)
            self.done += 1
            seconds = time.monotonic() - began
            if self._look(crew, now_ns() - SETTLED_NS, site.alone):
                self.say(f"found after operation {number}, {what}, which began at {began_ns / 1e6:.3f} ms")
            if time.monotonic() > next_line:
                next_line += PROGRESS
                self.say(f"{self.name}: {self.done} operations, the last one took {seconds:.1f} s ({what})")

    def _await_locks(self, crew: Crew) -> None:
        """Wait until each process has had a lock from now on."""
        since = now_ns()
        wait_until(
            lambda: all(worker.granted_ns > since for worker in crew.workers), PATIENCE, "a process gets no lock"
        )

    def _look(self, crew: Crew, until_ns: int, alone: bool) -> bool:
        """Judge the grants of the last time; return whether a rule was broken."""
        before = len(self.wrong)
        fresh = crew.taken()
        self.longest_ns = max([self.longest_ns, *(grant.start - grant.asked for grant in fresh)])
        self.believed.look(fresh, until_ns)
        self.confirmed.look([grant for grant in fresh if grant.confirmed], until_ns)
        self._add(self.confirmed.wrong if alone else self.believed.wrong)
        self.believed.wrong, self.confirmed.wrong = [], []
        return len(self.wrong) > before

    def _add(self, wrong: list[str]) -> None:
        self.wrong += wrong
        for line in wrong:
            self.say(f"WRONG: {line}")
