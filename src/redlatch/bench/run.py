"""The race: the scenarios one after the other, on masters of its own, and the result as plain data."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redlatch import embedded
from redlatch.bench.contender import Absent
from redlatch.bench.floor import NoFloor, compile_floor
from redlatch.bench.grounds import GROUNDS
from redlatch.bench.machine import machine_class
from redlatch.bench.rounds import Race, Scenario, one_core, summary
from redlatch.bench.scenarios import scenarios

WARM_UP = 0.1  # seconds before the first round, which is not counted either
KNOWING = "0.5s"  # time for a client to detect which masters are sick; the cost of detection is not measured here

Progress = Callable[[str, int], object]  # what is run, and how many turns that was
Announce = Callable[[dict[str, Any]], object]


class NoSuchScenario(Exception):
    """Nothing is left to run."""


@dataclass(frozen=True)
class Settings:
    """What to run.

    Args:
        masters: how many there are in the quorum.
        quick: fewer and shorter rounds.
        only: run the scenarios that have this in their name; all for "".
    """

    masters: int = 5
    quick: bool = False
    only: str = ""

    def scenarios(self) -> list[Scenario]:
        """Return what is to be run here.

        Raises:
            NoSuchScenario: nothing is.
        """
        found = [each for each in scenarios(self.masters) if self.only in each.name]
        if not hasattr(os, "sched_setaffinity"):
            found = [each for each in found if not each.one_core]
        if not found:
            names = ", ".join(each.name for each in scenarios(self.masters))
            raise NoSuchScenario(f"no scenario has {self.only!r} in its name; there are {names}")
        return [hastened(each) for each in found] if self.quick else found


def hastened(scenario: Scenario) -> Scenario:
    """Return the scenario as --quick runs it."""
    rounds, amount = 2 if scenario.rounds > 3 else 1, min(scenario.amount, 2000)
    return replace(scenario, rounds=rounds, spare=0, amount=amount, seconds=scenario.seconds / 4)


def run_race(settings: Settings, progress: Progress, announce: Announce) -> dict[str, Any]:
    """Run the race.

    Args:
        settings: what to run.
        progress: told of every turn.
        announce: given {"machine": ...} first, then each scenario's figures when it is over, or {"note": ...} in words.

    Returns:
        All figures.

    Raises:
        NoSuchScenario: nothing is to be run.
        ConfigurationError: there is no server.
    """
    todo = settings.scenarios()
    fleet = embedded.masters(settings.masters)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-bench-")))
        stack.enter_context(fleet)
        machine = machine_class(fleet.urls[0])
        announce({"machine": machine})
        floor = None
        try:
            floor = compile_floor(folder)
        except NoFloor as reason:
            announce({"note": f"The floor is left out: {reason}."})
        results = []
        for scenario in todo:
            results.append(run_scenario(scenario, fleet, floor, settings, progress))
            announce(results[-1])
    return {"machine": machine, "masters": settings.masters, "quick": settings.quick, "scenarios": results}


def run_scenario(
    scenario: Scenario, fleet: embedded.Masters, floor: Path | None, settings: Settings, progress: Progress
) -> dict[str, Any]:
    """Run one scenario and return its figures, or why it cannot be run here."""
    begin = time.monotonic()
    wanted = frozenset(entry.masters for entry in scenario.entries)
    with ExitStack() as stack:
        try:
            ground = stack.enter_context(GROUNDS[scenario.ground](fleet, wanted))
        except Absent as reason:
            progress(scenario.name, scenario.turns)
            return {"name": scenario.name, "title": scenario.title, "absent": str(reason), "rows": []}
        stack.enter_context(one_core(scenario.one_core, ground.pids))
        race = stack.enter_context(Race(scenario, ground.urls, floor))
        amount, seconds = (str(scenario.amount), 0.0) if scenario.amount else (f"{scenario.seconds}s", scenario.seconds)
        if not scenario.amount:
            race.each(f"{WARM_UP / (4 if settings.quick else 1)}s", keep=False)
        if ground.spoil:
            ground.spoil()
            race.each(KNOWING, keep=False)

        def done(label: str) -> None:
            progress(f"{scenario.name}: {label.strip()}", 1)

        for number in range(scenario.spare + scenario.rounds):
            race.each(amount, seconds, keep=number >= scenario.spare, done=done)
    return summary(scenario, race.outcomes) | {"took_s": round(time.monotonic() - begin, 1)}
