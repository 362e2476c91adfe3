"""Checks the use of a single master that forgets (rules R1 to R3 of the guard); `alone.pml` is the model.

Three invariants hold. Two clients never both believe that they have the lock, once both have read from the server since
it forgot. A key stands on that server for as long as such a client believes in it. No client gets back a lock that
another one had meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "alone.pml"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


def test_clients_that_have_read_from_a_forgetful_master_agree(tmp_path: Path) -> None:
    """Commands and answers take any time; the master forgets everything, or what it has not saved."""
    found = search(MODEL, tmp_path, "FORGETS=2")
    assert not found.schedule
    assert found.states > 1_000_000


@full
@pytest.mark.parametrize("definitions", [("TTL=3",), ("FORGETS=3", "EXTENSIONS=1")])
def test_the_same_holds_for_longer(tmp_path: Path, definitions: tuple[str, ...]) -> None:
    found = search(MODEL, tmp_path, *definitions)
    assert not found.schedule
    assert found.states > 1_000_000


@pytest.mark.parametrize("mistake", ["GETS", "RECREATES", "NO_DOUBT"])
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    assert search(MODEL, tmp_path, mistake).schedule
