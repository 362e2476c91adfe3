"""The master that is asked before the others."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_queues import World
from support.scripted_votes import KEY, SECOND, Play

from redlatch import impl


@given(masters=st.permutations([f"10.0.0.{number}:6379" for number in range(5)]), name=st.binary(min_size=1))
def test_all_clients_agree_on_a_first_master_whatever_the_order_of_their_lists(
    build: impl.Implementation, masters: list[str], name: bytes
) -> None:
    world = World(build, 5)
    quorum = world.quorum_of(build, tuple(masters))
    agreed = masters[world.queues.first_master.first_of(quorum, name, world.now)]
    assert agreed == sorted(masters)[crc32(name) % 5]


def test_names_are_spread_over_the_masters(world: World) -> None:
    firsts = {world.queues.first_master.first_of(world.quorum, b"name-%d" % number, world.now) for number in range(100)}
    assert firsts == {0, 1, 2}


def test_a_master_that_was_silent_is_not_asked_first_for_a_second(world: World) -> None:
    first = world.queues.first_master.first_of(world.quorum, KEY, world.now)
    world.queues.first_master.deprioritise(first, world.now)
    others = {world.queues.first_master.first_of(world.quorum, KEY, world.now + since) for since in (0, SECOND - 1)}
    assert len(others) == 1 and first not in others
    assert world.queues.first_master.first_of(world.quorum, KEY, world.now + SECOND) == first


@pytest.mark.parametrize("votes", ["...", "!!!"])
def test_an_acquire_asks_another_master_first_after_one_was_silent_or_failed(
    implementation: impl.Implementation, votes: str
) -> None:
    play = Play(3, build=implementation)
    assert play.acquire("nnn", votes, "nnn", "yyy", give_up_ns=None)
    asked = [ballot.asked for ballot in play.of("Ballot") if type(ballot.command).__name__ == "Acquire"]
    every, silent, again, first, others = asked
    assert (every, again) == (-1, -1)
    assert silent != first and others == ~first
    assert {silent, first} < {1, 2, 4}


def test_no_master_is_asked_first_if_all_were_silent(world: World) -> None:
    for index in range(3):
        world.queues.first_master.deprioritise(index, world.now)
    assert world.queues.first_master.first_of(world.quorum, KEY, world.now) == -1


def test_a_single_master_is_not_asked_before_the_others(implementation: impl.Implementation) -> None:
    world = World(implementation, 1)
    assert world.queues.first_master.first_of(world.quorum, KEY, world.now) == -1
