"""The fences, checked in all that can happen to three masters and a few clients; `fence.py` tells what is modelled.

Run with `-s` to see how many states there are, and the shortest schedule that each mistake leads to.
REDLATCH_MODEL=full adds second attempts: two million states at most, some minutes in all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from model.explore import Found, explore
from model.fence import Scheme

full = pytest.mark.skipif(os.environ.get("REDLATCH_MODEL") != "full", reason="takes minutes: REDLATCH_MODEL=full")
BLOCKS: dict[str, Any] = {"block": 2, "gap": 3, "spare": 1}


def searched(**scheme: Any) -> Found:
    """Search a scheme that is expected to hold."""
    found = explore(Scheme(**scheme))
    print(f"\n{scheme}: {found}")
    return found


def mistaken(**scheme: Any) -> Found:
    """Search a scheme that is expected to break; its numbers stay as they were proposed."""
    return searched(gap=0, **scheme)


@pytest.fixture(params=["all", "answered"])
def confirm(request: pytest.FixtureRequest) -> str:
    """Who counts in round 2: every master, or those whose round 1 is in the maximum."""
    return str(request.param)


def test_fences_are_distinct_and_in_the_order_of_time(confirm: str) -> None:
    """No fence is granted twice; one whose attempt began after another was granted is higher; and on a master that
    accepted both, fences are in the order of the keys. One client tries twice, the other once."""
    found = searched(attempts=(2, 1), confirm=confirm)
    assert not found.schedule, found
    assert found.states > 100_000


def test_three_clients_at_once_get_fences_in_order() -> None:
    """The same invariants with three clients, each trying once."""
    found = searched(attempts=(1, 1, 1), spare=1)
    assert not found.schedule, found
    assert found.states > 100_000


@full
def test_fences_stay_in_order_when_both_clients_try_again(confirm: str) -> None:
    """The same invariants with two clients, each trying twice."""
    found = searched(attempts=(2, 2), spare=1, confirm=confirm)
    assert not found.schedule, found


def test_a_counter_may_go_if_a_seed_no_lower_than_any_counter_takes_its_place() -> None:
    """The invariants hold over the loss of one counter at any moment, idle or not, if what is missing counts as a
    number that no counter was above."""
    found = searched(losses=1)
    assert not found.schedule, found


def test_a_counter_that_goes_to_zero_is_found_to_break_the_order() -> None:
    """Even one counter that restarts from 0, even while nobody does anything, lets a fence come back."""
    assert "given out before this attempt began" in mistaken(losses=1, lost_as="zero").schedule[-1]


def test_blocks_are_disjoint_and_above_all_that_was_passed_on_before() -> None:
    """No block meets another, and an attempt that began after a hand-off gets fences above that of the hand-off."""
    found = searched(**BLOCKS)
    assert not found.schedule, found


@full
@pytest.mark.parametrize("pass_on", ["anyhow", "held"])
def test_blocks_and_hand_offs_stay_in_order_when_a_client_tries_again(pass_on: str) -> None:
    """The invariants of blocks and of hand-offs, one client trying twice."""
    found = searched(attempts=(2, 1), **BLOCKS, pass_on=pass_on)
    assert not found.schedule, found


def test_a_hand_off_is_in_order_while_the_key_stands_where_its_block_was_accepted() -> None:
    """A fence that is passed on is above all that was given out before, as long as the lease's keys stand on a quorum
    of the masters that accepted its block."""
    found = searched(**BLOCKS, pass_on="held")
    assert not found.schedule, found


def test_a_hand_off_after_the_end_of_the_lease_is_found_to_be_out_of_order() -> None:
    """A holder that passes its lease on too late gives a fence below one granted meanwhile: hand-offs, unlike grants,
    rest on the deadline."""
    assert "given out before the hand-off" in mistaken(block=2, pass_on="late").schedule[-1]


def test_a_hand_off_by_any_quorum_of_keys_is_found_to_be_out_of_order() -> None:
    """Keys on masters that rejected the block prove nothing of its fences' order."""
    assert "given out before the hand-off" in mistaken(block=2, pass_on="keyed").schedule[-1]


def test_a_counter_set_to_the_start_of_a_block_is_found_to_give_a_fence_twice() -> None:
    """A master has to remember the end of what it accepted."""
    assert "given out twice" in mistaken(block=2, stores_start=True).schedule[-1]


def test_one_round_of_counting_up_is_found_to_give_a_fence_twice() -> None:
    """The maximum of a quorum's INCR is not unique."""
    assert "given out twice" in mistaken(counts_up=True).schedule[-1]


def test_accepting_what_equals_the_counter_is_found_to_give_a_fence_again() -> None:
    """A proposal has to be above the counter."""
    assert "given out before this attempt began" in mistaken(accepts_equal=True).schedule[-1]


def test_confirming_without_a_look_at_the_counter_is_found_to_give_a_fence_twice() -> None:
    """The comparison with F in round 2 is what keeps fences apart."""
    assert "given out twice" in mistaken(asks_counter=False).schedule[-1]


def test_confirming_without_a_look_at_the_key_is_found_to_break_the_order_of_keys() -> None:
    """The comparison of the token in round 2 is what binds the order of fences to that of ownership."""
    assert "key stood later" in mistaken(asks_key=False).schedule[-1]


def test_counting_round_one_in_round_two_is_found_to_break_the_order() -> None:
    """A master that accepted `start` has not accepted the higher number: it has to be asked again."""
    assert mistaken(keeps_votes=True).schedule


def test_a_key_on_a_master_that_only_rejected_is_found_not_to_order_fences() -> None:
    """Only where both were accepted do keys and fences agree; a key that came with a rejection says nothing."""
    assert "key stood later" in mistaken(trusts_every_key=True).schedule[-1]
