"""Checks how masters without a marker come to be new (rules F1 and F2 of the next guard); `founding.pml` is the model.

The rules that were planned are broken: a founder that may finish what others have begun takes drafts of different
moments for drafts of one moment (CONFIRMS_EARLY is the smallest form of that mistake). What holds: a founder writes a
draft with a number of its own on every master, at most once on each. It reads all of them again after the last one was
written, and replaces only its own drafts. At the moment between, no master has a final marker, so no lock stands.

Run with `-s` to see the number of states, and a schedule for each mistake. REDLATCH_MODEL=full lets drafts expire any
number of times: a minute, and 2 GB of memory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from model.spin import Found, search

MODEL = Path(__file__).parent / "founding.pml"

pytestmark = pytest.mark.skipif(shutil.which("spin") is None, reason="there is no spin here (Debian: apt install spin)")
full = pytest.mark.skipif(os.environ.get("REDLATCH_MODEL") != "full", reason="takes minutes: REDLATCH_MODEL=full")


def searched(folder: Path, *definitions: str) -> Found:
    found = search(MODEL, folder, *definitions)
    print(f"\n{definitions}: {found.states:,} states", *found.schedule, sep="\n  ")
    return found


@full
def test_two_founders_make_no_forgetful_master_new(tmp_path: Path) -> None:
    found = searched(tmp_path, "EXPIRIES=1")
    assert not found.schedule
    assert found.states > 1_000_000


@full
def test_the_same_holds_if_drafts_expire_at_any_time(tmp_path: Path) -> None:
    found = searched(tmp_path)
    assert not found.schedule
    assert found.states > 20_000_000


@pytest.mark.parametrize("mistake", ["ONE_STEP", "CONFIRMS_EARLY", "DRAFTS_AGAIN", "ANY_DRAFT"])
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    assert searched(tmp_path, mistake).schedule
