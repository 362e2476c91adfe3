"""Checks how masters without a marker come to be new (rules F1 and F2 of the guard); `founding.pml` is the model.

A two-phase commit: drafts on all masters, then prepared markers on all, then final ones. Any client may do the second
and the third step. So a founder may end at any time, and no master is kept out that has forgotten nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "founding.pml"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


def test_two_founders_make_no_forgetful_master_new(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path)
    assert not found.schedule
    assert found.states > 200_000


def test_no_master_is_kept_out_that_has_forgotten_nothing_wherever_founders_end(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "SECOND_LOOK", "FORGETS=0")
    assert not found.schedule
    assert found.states > 50_000


# With FORGETS=1 the search does not end within 8 GB: after 96 million states it has found nothing.
@full
def test_three_founders_make_no_forgetful_master_new(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "FOUNDERS=3", "LASTING_DRAFTS")
    assert not found.schedule
    assert found.states > 10_000_000


@full
def test_three_founders_keep_no_master_out_that_has_forgotten_nothing(tmp_path: Path) -> None:
    assert not search(MODEL, tmp_path, "SECOND_LOOK", "FORGETS=0", "FOUNDERS=3").schedule


@pytest.mark.parametrize("mistake", ["ONE_STEP", "PREPARES_EARLY", "FINISHES_EARLY", "DRAFTS_AGAIN", "ANY_DRAFT"])
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    assert search(MODEL, tmp_path, mistake).schedule


def test_a_founder_that_gives_up_without_a_second_look_keeps_masters_out(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "FORGETS=0", "HASTY")
    assert any("is kept out" in step for step in found.schedule)
