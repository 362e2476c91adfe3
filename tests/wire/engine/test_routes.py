"""The table of slots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster_ends import HOST, ClusterEnds

from redlatch import impl
from redlatch.votes.key import SLOTS, slot_of


@pytest.fixture
def nodes(implementation: impl.Implementation) -> Iterator[ClusterEnds]:
    nodes = ClusterEnds(implementation)
    yield nodes
    nodes.close()


def test_a_command_has_the_link_of_its_slot(nodes: ClusterEnds) -> None:
    slot = slot_of(b"the-key")
    nodes.fleet.route([(0, slot - 1, 0), (slot, slot, 1), (slot + 1, SLOTS - 1, 2)], nodes.clock.now())
    routes = nodes.fleet.routes
    assert routes.link_of(nodes.command()) is nodes.fleet.links[1]
    assert routes.link_of(nodes.command(key=b"{the-key}.x")) is nodes.fleet.links[1]
    assert routes.link_of(nodes.command(key=b"other")) is not nodes.fleet.links[1]


def test_a_topology_that_was_asked_for_before_moved_does_not_undo_it(nodes: ClusterEnds) -> None:
    routes, slot = nodes.fleet.routes, slot_of(b"the-key")
    asked_ns = nodes.clock.now()
    routes.move(slot, nodes.fleet.links[1], nodes.clock.now())
    nodes.give_all_to(0, asked_ns)
    assert routes.table[slot] is nodes.fleet.links[1]
    nodes.give_all_to(0)
    assert routes.table[slot] is nodes.fleet.links[0]
    assert not routes.moved


def test_a_slot_that_moved_to_a_node_which_has_left_has_no_link(nodes: ClusterEnds) -> None:
    asked_ns, slot = nodes.clock.now(), slot_of(b"the-key")
    nodes.fleet.routes.move(slot, nodes.fleet.links[1], nodes.clock.now())
    nodes.give_all_to(2, asked_ns)
    nodes.fleet.remove_node(HOST, 7001, ConnectionAbortedError())
    assert nodes.fleet.routes.table[slot] is None and nodes.source.asked
    nodes.give_all_to(2, asked_ns)
    assert nodes.fleet.routes.table[slot] is nodes.fleet.links[2]


def test_a_slot_that_no_range_has_has_no_link(nodes: ClusterEnds) -> None:
    nodes.fleet.route([(0, slot_of(b"the-key") - 1, 0)], nodes.clock.now())
    assert nodes.fleet.routes.link_of(nodes.command()) is None


def test_a_release_takes_the_former_link_while_that_may_execute_its_acquire(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command(token=b"mine"))
    nodes.give_all_to(1)
    routes, release = nodes.fleet.routes, nodes.command("Release", token=b"mine")
    first, second = nodes.fleet.links[0], nodes.fleet.links[1]
    assert routes.link_of(release) is first
    assert routes.link_of(nodes.command()) is second
    assert routes.link_of(nodes.command("Release")) is second
    nodes.answer(0, b"+OK\r\n")
    assert routes.link_of(release) is second


def test_a_slot_that_moves_twice_at_once_has_two_former_links(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command(token=b"mine"))
    nodes.give_all_to(1)
    nodes.submit(nodes.command(token=b"other"))
    nodes.give_all_to(2)
    routes, links = nodes.fleet.routes, nodes.fleet.links
    tokens = (b"mine", b"other", b"third")
    assert [routes.link_of(nodes.command("Release", token=token)) for token in tokens] == links


def test_a_release_does_not_wait_for_a_former_link_that_broke(nodes: ClusterEnds) -> None:
    nodes.submit(nodes.command(token=b"mine"))
    nodes.give_all_to(1)
    nodes.lose(0)
    assert nodes.fleet.routes.link_of(nodes.command("Release", token=b"mine")) is nodes.fleet.links[1]
