"""Each bug has its place in the code still, and some are found; `python -m tests.mutants` shows that all are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mutants.__main__ import judged, shown
from mutants.catalogue import MUTANTS as OWN
from mutants.catalogue import SCHEDULE, Mutant
from mutants.catalogue_threads import THREADS
from mutants.farm import ROOT, hunt, plant

MUTANTS = (*OWN, *THREADS)

# One of each part, of those that are found within a few schedules.
QUICK = (
    "no look at the clock after the votes",
    "half of the masters are a quorum",
    "a lock without a ttl",
    "a cancelled acquire leaves its key",
    "no look but by a push",
    "a loss is reported twice",
    "check looks at the event and not at the clock",
    "numbers are not kept on the masters",
    "readers do not look for a writer",
    "who holds a key that is deleted is not told",
    "a leaving driver promotes nobody",
    "an undo goes to the new owner of its slot only",
    "a promotion raises no doubt",
    "no waiter is called when its slot has moved",
)

# Mutants that restore code of 0.1.0, each with a plan on which the simulator found the fault (see `sim.found`).
KEPT = (
    ("a late extension shortens a lock", "row 39: late bytes, plain"),
    ("a late extension shortens a lock", "row 39: late bytes, fair"),
    ("a late extension shortens a lock", "row 39: sent again in full, plain"),
    ("a late extension shortens a reader's entry", "row 39: late bytes, reader"),
    ("a late extension shortens a writer's lock", "row 39: late bytes, writer"),
    ("a late extension shortens a permit", "row 39: late bytes, semaphore"),
    ("rounds wait for silent masters", "row 42: fence"),
    ("rounds wait for silent masters", "row 42: rlock"),
    ("rounds wait for silent masters", "row 42: multi"),
    ("a master that failed over and back is trusted although it forgets soon", "row 50: failed over and back"),
)


def test_each_bug_still_has_its_place(tmp_path: Path) -> None:
    package = tmp_path / "redlatch"
    for mutant in MUTANTS:
        file = package / mutant.file
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(ROOT, "src/redlatch", mutant.file), file)
        plant(mutant, package)
        compile(file.read_text(), mutant.file, "exec")


@pytest.mark.slow("each mutant needs many schedules")
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.name in QUICK], ids=lambda m: m.name)
def test_the_simulator_finds_it(mutant: Any) -> None:
    assert hunt(mutant, seeds=1000).found


@pytest.mark.slow("each mutant needs a process of its own")
@pytest.mark.parametrize(("name", "plan"), KEPT)
def test_the_plan_that_found_it_still_does(name: str, plan: Any) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert ("was free" if plan.startswith("row 42") else "holders") in hunt(mutant, plan=plan).rule


@pytest.mark.parametrize("threads", ["", "caring"])
def test_a_mutant_that_only_crashes_is_not_found(threads: str) -> None:
    old = "            self.lost.append((lock, term, reason))\n"
    crashing = Mutant("crashes", "own", SCHEDULE, old, old.replace("term,", "term.missing,"), threads=threads)
    verdict = hunt(crashing, seeds=100)
    assert not verdict.found
    assert verdict.crashes
    assert "AttributeError" in verdict.crash


def test_a_mutant_without_a_place_fails_the_run() -> None:
    verdict = judged(Mutant("gone", "own", SCHEDULE, "no such text", ""), seeds=1)
    assert not verdict.found
    assert "NO PLACE" in shown(verdict)[0]


def test_there_are_forty_at_least_each_under_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert set(QUICK) <= {mutant.name for mutant in MUTANTS}
