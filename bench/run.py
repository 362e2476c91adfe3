"""The race: run the scenarios one after the other, on its own masters, and return the result as plain data."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.contender import Absent
from bench.floor import NoFloor, compile_floor
from bench.foreign import FOOTNOTES, build_all, language_scenarios
from bench.grounds import GROUNDS
from bench.machine import machine_class
from bench.process import FLOOR, Programs
from bench.rounds import Race, Scenario, one_core, summary
from bench.scenarios import scenarios
from redlatch.testing import embedded

# The time for a client to detect which masters are sick. The race does not measure the cost of the detection.
KNOWING = "0.5s"

# Called with the name of the last turns and their number.
Progress = Callable[[str, int], object]

Announce = Callable[[dict[str, Any]], object]


class NoSuchScenario(Exception):
    """The settings leave no scenario to run."""


@dataclass(frozen=True)
class Settings:
    """The settings of a race.

    Args:
        masters: the number of masters. Default 5.
        quick: whether to run fewer and shorter rounds. Default False.
        only: a part of the names of the scenarios to run; "" runs all.
        languages: whether to race against the clients of other languages instead. Default False.
    """

    masters: int = 5
    quick: bool = False
    only: str = ""
    languages: bool = False

    def scenarios(self) -> list[Scenario]:
        """Return the scenarios to run on this machine.

        Raises:
            NoSuchScenario: there is no such scenario.
        """
        every = language_scenarios(self.masters) if self.languages else scenarios(self.masters)
        found = [each for each in every if self.only in each.name]
        if not hasattr(os, "sched_setaffinity"):
            found = [each for each in found if not each.one_core]
        if not found:
            names = ", ".join(each.name for each in every)
            raise NoSuchScenario(f"no scenario has {self.only!r} in its name; the scenarios are {names}")
        return [hastened(each) for each in found] if self.quick else found


def hastened(scenario: Scenario) -> Scenario:
    """Return the scenario with fewer and shorter rounds, for --quick."""
    rounds, amount = 2 if scenario.rounds > 3 else 1, min(scenario.amount, 2000)
    seconds, warm_up = scenario.seconds / 4, scenario.warm_up / 4
    return replace(scenario, rounds=rounds, spare=0, amount=amount, seconds=seconds, warm_up=warm_up)


def run_race(settings: Settings, progress: Progress, announce: Announce) -> dict[str, Any]:
    """Run the race.

    Args:
        settings: the settings of the race.
        progress: called after each turn.
        announce: called with {"machine": ...} first, then with the figures of each scenario when it has ended; also
            with {"note": ...} for a message.

    Returns:
        All figures.

    Raises:
        NoSuchScenario: there is no scenario to run.
        ConfigurationError: there is no server program.
    """
    todo = settings.scenarios()
    fleet = embedded.masters(settings.masters)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redlatch-bench-")))
        stack.enter_context(fleet)
        machine = machine_class(fleet.urls[0])
        announce({"machine": machine})
        figures: dict[str, Any] = {"machine": machine, "masters": settings.masters, "quick": settings.quick}
        programs = floor_program(folder, announce)
        if settings.languages:
            built, machine["languages"] = build_all(announce)
            programs |= built
            figures["footnotes"] = FOOTNOTES
        results = []
        for scenario in todo:
            results.append(run_scenario(scenario, fleet, programs, progress))
            announce(results[-1])
        for client, words in figures.get("footnotes", {}).items():
            announce({"note": f"{client}: {words}."})
    return figures | {"scenarios": results}


def floor_program(folder: Path, announce: Announce) -> dict[str, list[str] | str]:
    """Compile the floor into a folder; return its command, or the reason why it is absent."""
    try:
        return {FLOOR: [str(compile_floor(folder)), "--stdin"]}
    except NoFloor as reason:
        announce({"note": f"The floor is left out: {reason}."})
        return {FLOOR: "there is no C compiler"}


def run_scenario(scenario: Scenario, fleet: embedded.Masters, programs: Programs, progress: Progress) -> dict[str, Any]:
    """Run one scenario; return its figures, or the reason why it cannot run here."""
    begin = time.monotonic()
    wanted = frozenset(entry.masters for entry in scenario.entries)
    with ExitStack() as stack:
        try:
            ground = stack.enter_context(GROUNDS[scenario.ground](fleet, wanted))
        except Absent as reason:
            progress(scenario.name, scenario.turns)
            return {"name": scenario.name, "title": scenario.title, "absent": str(reason), "rows": []}
        stack.enter_context(one_core(scenario.one_core, ground.pids))
        race = stack.enter_context(Race(scenario, ground.urls, programs))
        amount, seconds = (str(scenario.amount), 0.0) if scenario.amount else (f"{scenario.seconds}s", scenario.seconds)
        if not scenario.amount:
            race.each(f"{scenario.warm_up}s", scenario.warm_up, keep=False)
        if ground.spoil:
            ground.spoil()
            race.each(KNOWING, keep=False)

        def done(label: str) -> None:
            progress(f"{scenario.name}: {label.strip()}", 1)

        for number in range(scenario.spare + scenario.rounds):
            race.each(amount, seconds, keep=number >= scenario.spare, done=done)
    return summary(scenario, race.outcomes) | {"took_s": round(time.monotonic() - begin, 1)}
