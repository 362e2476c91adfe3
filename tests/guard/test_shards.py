"""Where the markers of a cluster's nodes are. `tests/cluster/test_memory.py` runs the guards on real clusters."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch import ConfigurationError, Guard
from redlatch.guard.admission import Admissions
from redlatch.guard.marker import MARKER
from redlatch.guard.shards import ShardAdmissions, marker_key
from redlatch.votes.key import SLOTS, slot_of

FIRST, SECOND = range(SLOTS // 2), range(SLOTS // 2, SLOTS)


def admissions(settings: Guard | None = None) -> tuple[ShardAdmissions, list[tuple[int, int]]]:
    """Return the guards of two nodes, and the list of clocks that were set back."""
    set_back: list[tuple[int, int]] = []
    known = settings or Guard()

    def make(name: str, key: bytes, clock_set_back: object) -> Admissions:
        more = partial(Admissions, (name,), known, key, 10_000, 0.01, lambda: 0, lambda: 0.5, lambda since: None)
        return more(clock_set_back)  # type: ignore[arg-type]

    made = ShardAdmissions(known, b"app:", make, lambda index, by_ns: set_back.append((index, by_ns)))
    made.add("10.0.0.1:7000", FIRST)
    made.add("10.0.0.2:7000", SECOND)
    return made, set_back


@given(st.binary(max_size=20), st.integers(0, SLOTS - 1), st.integers(1, SLOTS))
def test_a_marker_is_in_a_slot_of_its_node_and_ends_as_every_marker(prefix: bytes, first: int, count: int) -> None:
    slots = range(first, first + count)
    key = marker_key(prefix, "10.0.0.1:7000", slots)
    assert slot_of(key) in slots
    assert key.endswith(b"10.0.0.1:7000" + MARKER)


def test_a_marker_begins_as_the_derived_keys_of_the_prefix_do() -> None:
    # So one rule for keys allows both.
    assert marker_key(b"app:", "10.0.0.1:7000", range(SLOTS)).startswith(b"{app:")


def test_two_nodes_have_two_markers_in_one_slot() -> None:
    assert marker_key(b"", "10.0.0.1:7000", FIRST) != marker_key(b"", "10.0.0.2:7000", FIRST)


def test_a_marker_keeps_its_key_until_its_slot_leaves() -> None:
    guards, _ = admissions()
    before = guards.monitor(0).key
    assert not guards.has_moved(0, {slot_of(before)})
    assert guards.monitor(0).key == before
    rest = set(FIRST) - {slot_of(before)}
    assert guards.has_moved(0, rest)
    assert slot_of(guards.monitor(0).key) in rest


def test_a_repeated_handshake_looks_where_the_marker_is_now() -> None:
    guards, _ = admissions()
    handshake = guards.handshake(1)
    assert handshake.key == guards.monitor(1).key
    guards.has_moved(1, {5})
    assert handshake.repeated().key == guards.monitor(1).key != handshake.key


def test_each_node_reports_its_own_clock() -> None:
    guards, set_back = admissions()
    guards.monitor(1).clock_set_back(7)
    assert set_back == [(1, 7)]
    assert guards.masters == [guards.monitor(0), guards.monitor(1)]


def test_strict_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="guard: strict=True is for servers"):
        admissions(Guard(strict=True))


def test_a_node_that_comes_back_is_known_by_all_its_guards() -> None:
    guards, _ = admissions()
    guards.add("10.0.0.1:7000", FIRST)
    assert guards.known_as("10.0.0.1:7000") == [guards.monitor(0), guards.monitor(2)]
    assert guards.known_as("10.0.0.2:7000") == [guards.monitor(1)]
    assert guards.known_as("10.0.0.3:7000") == []
