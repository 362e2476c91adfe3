"""Each bug has its place in the code still, and some are found; `python -m tests.mutants` shows that all are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mutants.catalogue import MUTANTS
from mutants.farm import ROOT, hunt, plant

# One of each part, of those that are found within a few schedules.
QUICK = (
    "the ttl counts from the last vote",
    "half of the masters are a quorum",
    "a lock without a ttl",
    "a cancelled acquire leaves its key",
    "no look but by a push",
    "a loss is not told",
    "numbers are not kept on the masters",
    "readers do not look for a writer",
    "who holds a key that is deleted is not told",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_bug_still_has_its_place(mutant, tmp_path):
    package = tmp_path / "redlatch"
    file = package / mutant.file
    file.parent.mkdir(parents=True)
    shutil.copy(Path(ROOT, "src/redlatch", mutant.file), file)
    plant(mutant, package)
    compile(file.read_text(), mutant.file, "exec")


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.name in QUICK], ids=lambda m: m.name)
def test_the_simulator_finds_it(mutant):
    assert hunt(mutant, seeds=1000).seed >= 0


def test_there_are_forty_at_least_each_under_a_name_of_its_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert set(QUICK) <= {mutant.name for mutant in MUTANTS}
