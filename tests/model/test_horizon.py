"""Checks the horizon of the guard (rules G1 to G4) in all that can happen; `horizon.pml` is the model.

`make test-all` adds a second forgetting: a minute, and 1.3 GB of memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "horizon.pml"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


def test_a_lock_has_one_holder_although_a_master_forgets(tmp_path: Path) -> None:
    """Two clients ask at most once each. Every witness of a live lock knows how long the lock lives."""
    found = search(MODEL, tmp_path, "FORGETS=1")
    assert not found.schedule
    assert found.states > 1_000_000


@full
def test_a_lock_has_one_holder_although_masters_forget_twice(tmp_path: Path) -> None:
    """The same invariants hold if one master forgets twice, or two masters forget."""
    found = search(MODEL, tmp_path, "FORGETS=2")
    assert not found.schedule
    assert found.states > 8_000_000


@pytest.mark.parametrize(
    ("mistake", "forgets"),
    [
        ("CACHES_RAISES", 1),
        ("ONE_WITNESS", 1),
        ("TRUSTS_MEMORY", 1),
        ("MARKS_DEFAULT", 1),
        ("PIPELINES_RAISES", 1),
        ("TRUSTS_UNSURE", 2),
        ("IGNORES_RAISES", 2),
        ("LOWERS_HORIZON", 2),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, mistake: str, forgets: int) -> None:
    assert search(MODEL, tmp_path, mistake, f"FORGETS={forgets}").schedule
