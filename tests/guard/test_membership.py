"""Clients that do not agree on the list of masters, or on the options."""

from __future__ import annotations

from redlatch import Guard
from redlatch.votes.units import SECOND

from .rig import ADDRESSES, MAX_TTL, Rig, is_marked, refused


def test_another_number_of_masters_is_refused() -> None:
    rig = Rig(owner="orders").found()
    refused(
        rig.again(addresses=ADDRESSES[:2], owner="billing").decide(0, [None] * 2),
        "a:1 is one of 3 masters for orders (a:1, b:1, c:1), and of 2 for billing: all clients must have the same "
        "list, or another prefix",
    )


def test_another_list_of_as_many_masters_is_refused() -> None:
    one = Rig().found()
    two = Rig(addresses=("d:1", "e:1", "f:1")).found()
    mixed = Rig(addresses=("a:1", "b:1", "d:1"))
    mixed.now, mixed.markers = one.now, [*one.markers[:2], two.markers[0]]
    mixed.run_ids[2] = "run-d:1"
    assert mixed.decide(0).admitted
    refused(mixed.decide(2), "all clients must have the same list")


def test_a_master_without_a_marker_that_the_others_do_not_list_is_refused() -> None:
    rig = Rig().found()
    mixed = rig.again(addresses=("a:1", "b:1", "d:1"))
    mixed.markers[2] = None
    assert mixed.decide(0).admitted
    refused(mixed.decide(2), "d:1 is not one of the masters")


def test_the_same_master_under_two_names_is_refused() -> None:
    rig = Rig().found()
    twice = rig.again(addresses=("a:1", "b:1", "localhost:1"))
    twice.markers[2], twice.run_ids[2] = rig.markers[0], "run-a:1"
    assert twice.decide(0).admitted
    refused(twice.decide(2, [None] * 3), "localhost:1 as a:1 of")


def test_masters_may_be_known_by_other_addresses() -> None:
    rig = Rig().found()
    other = rig.again(addresses=("x:9", "y:9", "z:9"))
    other.run_ids = rig.run_ids
    assert all(other.decide(index).admitted for index in range(3))
    rig.markers[1] = None
    assert is_marked(other.decide(1))
    other.decide(1)
    assert other.marker(1).master == "b:1"


def test_a_client_with_other_addresses_keeps_the_list_of_a_master_that_was_restarted() -> None:
    rig = Rig().found()
    other = rig.again(addresses=("x:9", "y:9", "z:9"))
    rig.restart(0, keeps=True)
    other.run_ids = rig.run_ids
    assert is_marked(other.decide(0))
    other.decide(0)
    assert other.marker(0).masters == ADDRESSES


def test_a_client_that_agrees_with_nobody_marks_no_empty_master() -> None:
    """Its list has a fourth master, or its options differ. It must not take a master away from the others."""
    for other in (Rig(addresses=(*ADDRESSES, "d:1")), Rig(guard=Guard(MAX_TTL, trust_persistence=True))):
        rig = Rig().found()
        other.now, size = rig.now, len(other.markers)
        other.markers[: len(rig.markers)] = rig.markers
        empty = size - 1
        other.markers[empty] = None
        before = list(other.markers)
        for _ in range(3):
            other.now += SECOND
            admissions = other.shake_all()
        assert other.markers == before
        refused(admissions[empty], "all clients must")


def test_a_client_that_agrees_with_another_master_marks_an_empty_one() -> None:
    rig = Rig().found()
    rig.now += SECOND
    stranger = Rig(addresses=(*ADDRESSES, "d:1")).found()
    rig.markers[1], rig.markers[2] = stranger.markers[1], None
    for _ in range(3):
        rig.now += SECOND
        rig.shake_all()
    assert rig.marker(2).out
