"""Checks the repair of lost votes (row 73) in all that can happen; `repair.pml` is the model.

Within the model a repair on a master that is kept out gives no lock a second holder by itself: the holder has a quorum
elsewhere. The rule is an assertion of its own, because the guard promises that nothing is set there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "repair.pml"

# No master is kept out, and nothing comes between the messages of the holder.
UNGUARDED = "UNGUARDED", "PROMPT"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


def test_a_lock_has_one_holder_although_its_votes_are_repaired(tmp_path: Path) -> None:
    """No repair takes a vote away, comes behind a release, or reaches a master that is kept out."""
    found = search(MODEL, tmp_path, "FORGETS=1")
    assert not found.schedule
    assert found.states > 5_000_000


@full
def test_the_same_holds_if_connections_break(tmp_path: Path) -> None:
    assert not search(MODEL, tmp_path, "FORGETS=1", "BREAKS=1").schedule


@pytest.mark.parametrize("guard", [("PROMPT",), UNGUARDED], ids=["guarded", "unguarded"])
def test_no_lost_lock_comes_back_and_no_key_outlives_its_lock(tmp_path: Path, guard: tuple[str, ...]) -> None:
    found = search(MODEL, tmp_path, *guard, "FORGETS=2", "ROUNDS=3")
    assert not found.schedule
    assert found.states > 500_000


@pytest.mark.parametrize(
    ("mistake", "definitions"),
    [
        ("AFTER_RELEASE", ()),
        ("OVERWRITES", ()),
        ("PARKS_REPAIRS", ()),
        ("COUNTS_AT_ONCE", ("FORGETS=2", "ROUNDS=3")),
        ("WITHOUT_QUORUM", (*UNGUARDED, "FORGETS=2", "ROUNDS=3")),
        ("AFTER_DEADLINE", ("PROMPT",)),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, mistake: str, definitions: tuple[str, ...]) -> None:
    assert search(MODEL, tmp_path, mistake, *definitions).schedule
