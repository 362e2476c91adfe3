"""Checks how masters without a marker come to be new (rules F1 and F2 of the guard); `founding.pml` is the model.

The rules that were planned are broken: a founder that may finish what others have begun takes drafts of different
moments for drafts of one moment (CONFIRMS_EARLY is the smallest form of that mistake). What holds: a founder writes a
draft with a number of its own on every master, at most once on each. It reads all of them again after the last one was
written, and replaces only its own drafts. At the moment between, no master has a final marker, so no lock stands.

REDLATCH_MODEL=full lets drafts expire: a minute, and 2.3 GB of memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "founding.pml"

pytestmark = needs_spin


def test_two_founders_make_no_forgetful_master_new(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "LASTING_DRAFTS")
    assert not found.schedule
    assert found.states > 1_000_000


@full
def test_the_same_holds_if_drafts_expire_at_any_time(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path)
    assert not found.schedule
    assert found.states > 20_000_000


@pytest.mark.parametrize("mistake", ["ONE_STEP", "CONFIRMS_EARLY", "DRAFTS_AGAIN", "ANY_DRAFT"])
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    assert search(MODEL, tmp_path, mistake).schedule
