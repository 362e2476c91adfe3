"""Checks clients that give different `max_ttl` (rule G5 of the guard); `limits.pml` is the model.

Two invariants hold. Two clients never hold the lock at once. Every master that votes for a live lock has its ttl in its
marker: as `max_ttl`, or as `raised`. The client with the larger `max_ttl` asks for its lock first, because only the
other one may know too little.

Both hold while fewer than a quorum of masters have *lapsed*. Such a master has forgotten, and no client with the larger
`max_ttl` has read its marker since. `make test-all` adds longer searches: a minute, and 1.4 GB of memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "limits.pml"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


def test_a_lock_with_a_longer_ttl_has_one_holder(tmp_path: Path) -> None:
    """One master forgets twice, or two masters forget, before or after the longer ttl is allowed."""
    found = search(MODEL, tmp_path, "FORGETS=2")
    assert not found.schedule
    assert found.states > 1_000_000


def test_what_former_markers_have_allowed_is_believed_only_if_a_marker_says_so(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "FORMER", "FORGETS=1")
    assert not found.schedule
    assert found.states > 10_000


@full
@pytest.mark.parametrize(
    "definitions",
    [("FORGETS=3",), ("FORGETS=2", "RAISERS=2"), ("FORMER", "FORGETS=2"), ("FORMER", "FORGETS=1", "RAISERS=2")],
)
def test_the_same_holds_in_longer_searches(tmp_path: Path, definitions: tuple[str, ...]) -> None:
    """Masters forget three times; or a client that has read of the longer ttl helps to raise it."""
    found = search(MODEL, tmp_path, *definitions)
    assert not found.schedule
    assert found.states > 4_000_000


@pytest.mark.parametrize(
    ("mistake", "forgets"),
    [
        ("QUORUM_RAISED", 1),
        ("NOT_AT_ONCE", 2),
        ("VOTES_UNHEARD", 1),
        ("HEARS_EARLIER", 1),
        ("OUT_AS_MARKED", 1),
        ("IGNORES_RAISED", 1),
        ("LOSES_RAISE", 2),
        ("BLIND_WRITES", 2),
        # A client goes on using a ttl that only former markers have allowed.
        ("REMEMBERS", 1),
        # It does so if one of the new masters has forgotten since.
        ("BELIEVES_RAISED", 2),
        # What others said counts from when a mark was sent; the master may forget again before the mark arrives.
        ("HEARS_SINCE_SENT", 3),
        # A mark may be on its way for as long as a quarantine lasts.
        ("LATE=1", 2),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, mistake: str, forgets: int) -> None:
    assert search(MODEL, tmp_path, mistake, f"FORGETS={forgets}").schedule


@pytest.mark.parametrize("assumption", ["MOST_LAPSE", "LAPSE_APART"])
def test_two_holders_are_found_if_most_masters_have_lapsed(tmp_path: Path, assumption: str) -> None:
    """It does not help that the first of them is back before the second one forgets."""
    assert search(MODEL, tmp_path, assumption, "FORGETS=2").schedule
