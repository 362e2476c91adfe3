"""Checks the fences in all possible schedules of three masters and a few clients; `fence.py` describes the model.

Run with `-s` to see the number of states, and the shortest schedule for each mistake. `make test-all` adds second
attempts: two million states at most, some minutes in all.
"""

from __future__ import annotations

from typing import Any

import pytest

from model.explore import Found, explore
from model.fence import Scheme

full = pytest.mark.slow("a search of minutes")
BLOCKS: dict[str, Any] = {"block": 2, "gap": 3, "spare": 1}


def searched(**scheme: Any) -> Found:
    """Search a scheme that is expected to hold."""
    found = explore(Scheme(**scheme))
    print(f"\n{scheme}: {found}")
    return found


def mistaken(**scheme: Any) -> Found:
    """Search a scheme that is expected to break, without narrowing its numbers."""
    return searched(gap=0, **scheme)


@pytest.fixture(params=["all", "answered"])
def confirm(request: pytest.FixtureRequest) -> str:
    """Return the masters that count in round 2: all of them, or those whose round 1 is in the maximum."""
    return str(request.param)


@pytest.mark.slow("240,336 states; the mistakes are searched beside it")
def test_fences_are_distinct_and_increase_with_time(confirm: str) -> None:
    """Three invariants hold; one client makes two attempts, the other makes one.

    No fence is granted twice. A fence whose attempt began after another grant is higher. On a master that accepted
    both, fences are in the order of the keys.
    """
    found = searched(attempts=(2, 1), confirm=confirm)
    assert not found.schedule, found
    assert found.states > 100_000


@full
def test_three_clients_at_once_get_fences_in_order() -> None:
    """The same invariants hold with three clients of one attempt each."""
    found = searched(attempts=(1, 1, 1), spare=1)
    assert not found.schedule, found
    assert found.states > 100_000


@full
def test_fences_stay_in_order_when_both_clients_try_again(confirm: str) -> None:
    """The same invariants hold with two clients of two attempts each."""
    found = searched(attempts=(2, 2), spare=1, confirm=confirm)
    assert not found.schedule, found


def test_a_lost_counter_is_harmless_if_a_seed_at_least_as_high_replaces_it() -> None:
    """The invariants survive the loss of one counter at any moment, idle or not.

    The missing counter counts as a number at least as high as every counter.
    """
    found = searched(losses=1)
    assert not found.schedule, found


def test_a_counter_that_goes_to_zero_is_found_to_break_the_order() -> None:
    """One counter that restarts from 0 lets a fence come back, even if all clients are idle at that moment."""
    assert "given out before this attempt began" in mistaken(losses=1, lost_as="zero").schedule[-1]


def test_blocks_are_disjoint_and_above_all_that_was_passed_on_before() -> None:
    """No two blocks overlap, and an attempt that began after a hand-off gets fences above that of the hand-off."""
    found = searched(**BLOCKS)
    assert not found.schedule, found


@full
@pytest.mark.parametrize("pass_on", ["anyhow", "held"])
def test_blocks_and_hand_offs_stay_in_order_when_a_client_tries_again(pass_on: str) -> None:
    """The invariants of blocks and hand-offs hold when one client makes two attempts."""
    found = searched(attempts=(2, 1), **BLOCKS, pass_on=pass_on)
    assert not found.schedule, found


def test_a_hand_off_is_in_order_while_a_quorum_that_accepted_its_block_has_its_key() -> None:
    """A passed-on fence is above all fences given out before, under one condition.

    The lease's keys must stand on a quorum of the masters that accepted its block.
    """
    found = searched(**BLOCKS, pass_on="held")
    assert not found.schedule, found


def test_a_hand_off_after_the_end_of_the_lease_is_found_to_be_out_of_order() -> None:
    """A holder that passes its lease on too late gives a fence below one that was granted meanwhile.

    Unlike grants, hand-offs depend on the deadline.
    """
    assert "given out before the hand-off" in mistaken(block=2, pass_on="late").schedule[-1]


def test_a_hand_off_by_any_quorum_of_keys_is_found_to_be_out_of_order() -> None:
    """Keys on masters that rejected the block prove nothing about the order of its fences."""
    assert "given out before the hand-off" in mistaken(block=2, pass_on="keyed").schedule[-1]


def test_a_counter_set_to_the_start_of_a_block_is_found_to_give_a_fence_twice() -> None:
    """A master has to remember the end of the block that it accepted."""
    assert "given out twice" in mistaken(block=2, stores_start=True).schedule[-1]


def test_one_round_of_counting_up_is_found_to_give_a_fence_twice() -> None:
    """The maximum of a quorum's INCR is not unique."""
    assert "given out twice" in mistaken(counts_up=True).schedule[-1]


def test_accepting_a_start_equal_to_the_counter_is_found_to_give_a_fence_twice() -> None:
    """A proposal has to be above the counter."""
    assert "given out before this attempt began" in mistaken(accepts_equal=True).schedule[-1]


def test_confirming_without_comparing_the_counter_is_found_to_give_a_fence_twice() -> None:
    """The comparison with F in round 2 keeps fences distinct."""
    assert "given out twice" in mistaken(asks_counter=False).schedule[-1]


def test_confirming_without_comparing_the_key_is_found_to_break_the_order_of_keys() -> None:
    """The comparison of the token in round 2 binds the order of fences to the order of ownership."""
    assert "key stood later" in mistaken(asks_key=False).schedule[-1]


def test_counting_round_one_in_round_two_is_found_to_break_the_order() -> None:
    """A master that accepted `start` has not accepted the higher number and has to be asked again."""
    assert mistaken(keeps_votes=True).schedule


def test_a_key_on_a_master_that_only_rejected_is_found_not_to_order_fences() -> None:
    """Keys and fences agree only on masters that accepted both; a key that came with a rejection proves nothing."""
    assert "key stood later" in mistaken(trusts_every_key=True).schedule[-1]
