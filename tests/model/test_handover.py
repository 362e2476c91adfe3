"""Checks how clients move from one list of masters to another (rules M1 to M5); `handover.pml` is the model.

The rules that were planned needed five corrections; each has its mistake below.
  * A forgetful master that says nothing else gets its vote back only when a witness that has forgotten nothing, or all
    masters, were read, and none says that the list is left. Time alone does not give it back (TRUSTS_UNSEEN).
  * The mover waits for the longest horizon if N - q + 1 masters have told theirs without having forgotten, and else for
    the longest ttl that is allowed (TRUSTS_HORIZONS).
  * After the wait, each old master must have the same tombstone as before it. Otherwise the mover begins again
    (ANY_LEFT, WAITS_ONCE).
  * A tombstone that replaces a missing or unsure marker is unsure, and so is the final marker that replaces it
    (COPIES_SURE, FINAL_IS_SURE).
  * Movers write the tombstone of the first master first, and none replaces a tombstone for another list (ANY_ORDER,
    OVERWRITES).

A client of the new list votes only with masters whose own marker is final. When it has seen one final marker, it may
replace the others as a mover does. `make test-all` adds longer searches: some minutes, and 6 GB of memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model.spin import full, needs_spin, search

MODEL = "handover.pml"

# The old list is {0, 1, 2}, unless a definition says something else. If the lists share no master, one model has the
# old one, and another the new one.
ONE_REPLACED = ("SERVERS=4", "NEW_LIST=14")
NEW_CLIENTS = ("FIRST=NEW_LIST", "SECOND=NEW_LIST", "MOVED")
ALL_REPLACED = ("OLD_LIST=0", "NEW_LIST=7", *NEW_CLIENTS)
ONE_TTL = "LONG=1"

pytestmark = [needs_spin, pytest.mark.slow("an exhaustive search; its result changes only with the model")]


@pytest.mark.parametrize(
    "definitions",
    [
        ("FORGETS=1",),
        ("FORGETS=1", ONE_TTL, *ONE_REPLACED),
        pytest.param(("FORGETS=1", "GRACE=1"), marks=full),
        pytest.param(("FORGETS=3", ONE_TTL, "NEVER_WIPED"), marks=full),
        pytest.param(("FORGETS=1", ONE_TTL, *ONE_REPLACED, "GONE"), marks=full),
        pytest.param(("FORGETS=1", ONE_TTL, "MOVERS=2"), marks=full),
    ],
)
def test_no_client_of_the_old_list_holds_a_lock_after_the_move(tmp_path: Path, definitions: tuple[str, ...]) -> None:
    """It stands from the decision of the move on, which comes before the first final marker."""
    found = search(MODEL, tmp_path, *definitions)
    assert not found.schedule
    assert found.states > 600_000


@full
@pytest.mark.parametrize(
    "definitions",
    [
        ("FORGETS=2",),
        ("FORGETS=1", "GONE"),
        ("FORGETS=1", *ONE_REPLACED),
    ],
)
def test_the_same_holds_with_two_ttls(tmp_path: Path, definitions: tuple[str, ...]) -> None:
    found = search(MODEL, tmp_path, *definitions)
    assert not found.schedule
    assert found.states > 4_000_000


def test_clients_of_a_list_whose_masters_were_all_wiped_are_found(tmp_path: Path) -> None:
    """The documented assumption: nobody uses the old list when its masters have all been wiped after the move."""
    assert search(MODEL, tmp_path, "FORGETS=3", ONE_TTL).schedule


@pytest.mark.parametrize("lists", [ALL_REPLACED, (*ONE_REPLACED, *NEW_CLIENTS)])
def test_a_lock_of_the_new_list_has_one_holder_while_final_markers_are_written(
    tmp_path: Path, lists: tuple[str, ...]
) -> None:
    """A master may forget, and old clients may copy a tombstone to it; the new list is final on some masters only."""
    assert not search(MODEL, tmp_path, "FORGETS=1", ONE_TTL, *lists).schedule


def test_a_lock_has_one_holder_of_either_list(tmp_path: Path) -> None:
    found = search(MODEL, tmp_path, "FORGETS=1", ONE_TTL, *ONE_REPLACED, "SECOND=NEW_LIST")
    assert not found.schedule
    assert found.states > 1_000_000


@full
def test_a_lock_of_the_new_list_has_one_holder_with_two_movers(tmp_path: Path) -> None:
    assert not search(MODEL, tmp_path, "FORGETS=1", ONE_TTL, *ALL_REPLACED, "MOVERS=2").schedule


@pytest.mark.parametrize(
    "lists",
    [
        ("SERVERS=2", "OLD_LIST=1", "NEW_LIST=2", "MOVERS=2"),
        ("SERVERS=3", "OLD_LIST=1", "NEW_LIST=7", "MOVERS=2"),
        ("SERVERS=3", "OLD_LIST=7", "NEW_LIST=1"),
    ],
)
def test_a_list_may_have_one_master_that_forgets_nothing(tmp_path: Path, lists: tuple[str, ...]) -> None:
    definitions = ("FORGETS=0", "GRACE=1", "SECOND=NEW_LIST")
    assert not search(MODEL, tmp_path, *lists, *definitions).schedule


def test_a_list_is_left_for_one_list(tmp_path: Path) -> None:
    """Two movers to different lists do not both decide; if no master forgets, neither stops the other halfway."""
    assert not search(MODEL, tmp_path, "FORGETS=0", ONE_TTL, "TARGETS", "MOVERS=2").schedule
    assert not search(MODEL, tmp_path, "FORGETS=1", ONE_TTL, "TARGETS", "MOVERS=2").schedule


@pytest.mark.parametrize(
    ("mistake", "definitions"),
    [
        ("QUORUM_LEFT", ("FORGETS=1",)),
        ("LEFT_EXPIRES", ("FORGETS=0", ONE_TTL)),
        ("NO_WAIT", ("FORGETS=0",)),
        ("NO_GRACE", ("FORGETS=0", "GRACE=1")),
        ("NO_SECOND_READ", ("FORGETS=2", ONE_TTL)),
        ("STALE_READS", ("FORGETS=2", ONE_TTL)),
        ("WAITS_ONCE", ("FORGETS=2", ONE_TTL)),
        ("COPIES_SURE", ("FORGETS=1", ONE_TTL, *ONE_REPLACED, *NEW_CLIENTS)),
        ("FINAL_IS_SURE", ("FORGETS=1", ONE_TTL, *ALL_REPLACED)),
        ("ANY_ORDER", ("FORGETS=0", ONE_TTL, "TARGETS", "MOVERS=2")),
        pytest.param("ANY_LEFT", ("FORGETS=3", ONE_TTL, "NEVER_WIPED"), marks=full),
        pytest.param("TRUSTS_UNSEEN", ("FORGETS=2", ONE_TTL), marks=full),
        pytest.param("TRUSTS_HORIZONS", ("FORGETS=1", "GONE"), marks=full),
        pytest.param("BLIND_FINAL", ("FORGETS=1", ONE_TTL, *ALL_REPLACED, "MOVERS=2"), marks=full),
        pytest.param("OVERWRITES", ("FORGETS=1", ONE_TTL, "TARGETS", "MOVERS=2"), marks=full),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, mistake: str, definitions: tuple[str, ...]) -> None:
    assert search(MODEL, tmp_path, mistake, *definitions).schedule
